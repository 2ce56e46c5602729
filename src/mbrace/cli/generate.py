"""`mbrace generate`: candidate files from a model; `mbrace translate`: text in, MBR-decoded text out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mbrace.cli.options import (
    add_model,
    add_race,
    add_threads,
    add_utility,
    given,
    model_settings,
    race_settings,
    utility_settings,
)
from mbrace.cli.parser import seed
from mbrace.cli.runs import (
    add_cluster,
    add_output,
    add_resume,
    add_save_utilities,
    check_run,
    run_sources,
)
from mbrace.settings import Sampling, names_in_preset

if TYPE_CHECKING:
    from mbrace.jobs.generate import GenerateJob
    from mbrace.jobs.translate import TranslateJob


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("generate", help="write hypotheses and sampled pseudo-references of a model")
    parser.add_argument(
        "sources",
        help="one source per line, a .tsv with references in its second column, or .jsonl; .gz, .xz, .bz2, .zst",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="output file, packed (.gz, .xz, .bz2, .zst) or .parquet by its suffix; - is stdout",
    )
    parser.add_argument("--window", type=int, metavar="N", help="sources processed at once (default: 32; on a CPU 4)")
    add_resume(parser)
    add_threads(parser)
    parser.add_argument("--prefix", default="", help="text before the line number in ids")
    parser.add_argument("--logprobs", action="store_true", help="write the pseudo-references' log-probabilities")
    parser.add_argument(
        "--sample", type=int, default=1024, metavar="N", help="pseudo-references per source (default: 1024; 0: none)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    add_model(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_run(args)
    return run_sources(job_from(args), args)


def job_from(args: argparse.Namespace) -> GenerateJob:
    from mbrace.jobs.generate import GenerateJob

    made = {name: getattr(args, name) for name in ("sample", "seed", "logprobs", "prefix", "window")}
    return GenerateJob(model_settings(args), Sampling(**given(args, Sampling)), **made)


def add_translate(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "translate",
        help="translate text with a model and minimum Bayes risk",
        description="Hypotheses come from beam search, pseudo-references from sampling; a race picks the answer. "
        "OUT.jsonl (.gz) has the fields that `mbrace decode` writes; any other OUT, and stdout, the texts alone.",
    )
    parser.add_argument("sources", nargs="?", default="-", metavar="SOURCES.txt", help="one per line; .gz; - is stdin")
    add_output(parser)
    add_save_utilities(parser)
    add_utility(parser)
    by_preset = names_in_preset("fast", "translate")
    add_model(parser, by_preset=by_preset)
    add_race(parser, preset="fast", by_preset=by_preset, without=("shuffle", "cover"))
    add_cluster(parser)
    parser.set_defaults(run=run_translate)


def run_translate(args: argparse.Namespace) -> int:
    check_run(args)
    return run_sources(translate_job(args), args)


def translate_job(args: argparse.Namespace) -> TranslateJob:
    from mbrace.jobs.decode import DecodeJob
    from mbrace.jobs.translate import TranslateJob

    model = model_settings(args)
    race, candidates = race_settings(args, "translate" if model.server is None else "server")
    text = args.text
    if text is None:
        text = not (".jsonl" in args.output or args.output.endswith(".parquet"))
    races = DecodeJob(utility_settings(args), race, text, args.save_utilities)
    return TranslateJob(model, candidates, races)
