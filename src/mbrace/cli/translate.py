"""`mbrace translate`: text in, MBR-decoded text out, with pseudo-references drawn while the race is open."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from mbrace.cli.options import add_model, add_race, add_utility, model_settings, race_settings, utility_settings
from mbrace.cli.runs import add_cluster, add_output, add_save_utilities, check_run, run_here, run_on_cluster

if TYPE_CHECKING:
    from mbrace.jobs.translate import TranslateJob


def add(commands: Any) -> None:
    """The options of `mbrace translate`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "translate",
        help="translate text with a model and minimum Bayes risk",
        description="Beam search makes the hypotheses, sampling the pseudo-references, a race chooses. "
        "OUT.jsonl (.gz) gets the same fields as `mbrace decode` writes; any other OUT, and stdout, the texts alone.",
    )
    parser.add_argument("sources", nargs="?", default="-", metavar="SOURCES.txt", help="one per line; .gz; - is stdin")
    add_output(parser)
    add_save_utilities(parser)
    add_utility(parser)
    add_model(parser)
    add_race(parser, preset="fast", without=("shuffle", "cover"))
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then translate."""
    from mbrace.io.candidates import checked_input
    from mbrace.jobs.translate import source_items

    check_run(args)
    job = job_from(args)
    if args.ray is not None:
        return run_on_cluster(job, [args.sources], args)
    read = partial(source_items, args.sources, make_item=job.item)
    return run_here(job, checked_input(read, [args.sources], output=args.output), args)


def job_from(args: argparse.Namespace) -> TranslateJob:
    """The job that was asked for."""
    from mbrace.jobs.decode import DecodeJob
    from mbrace.jobs.translate import TranslateJob

    model = model_settings(args)
    race, candidates = race_settings(args, "translate" if model.server is None else "server")
    text = args.text
    if text is None:
        text = not (".jsonl" in args.output or args.output.endswith(".parquet"))
    races = DecodeJob(utility_settings(args), race, text, args.save_utilities)
    return TranslateJob(model, candidates, races)
