"""`mbrace translate`: text in, MBR-decoded text out, with pseudo-references drawn while the race is open."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from mbrace.cli.methods import add_method
from mbrace.cli.models import add_model, add_sampling, check_model, model_settings, sampling_settings
from mbrace.cli.options import add_race, add_utility, race_settings, utility_settings
from mbrace.cli.presets import apply_preset
from mbrace.cli.runs import add_cluster, add_output, add_save_utilities, check_output, run_here, run_on_cluster
from mbrace.errors import UserError

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
    parser.add_argument("--json", action="store_true", help="write JSON Lines whatever the name of OUT")
    add_utility(parser)
    add_model(parser)
    add_sampling(parser, by_preset=", or as --preset says")
    add_race(parser, preset="fast")
    add_method(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then translate."""
    from mbrace.io.candidates import checked_input
    from mbrace.jobs.sources import source_items

    check_output(args)
    apply_preset(args, "translate")
    job = job_from(args)
    if args.ray is not None:
        return run_on_cluster(job, [args.sources], args)
    read = partial(source_items, args.sources, make_item=job.item)
    return run_here(job, checked_input(read, [args.sources], output=args.output), args)


def job_from(args: argparse.Namespace) -> TranslateJob:
    """The job that was asked for."""
    from mbrace.jobs.decode import DecodeJob
    from mbrace.jobs.translate import TranslateJob

    race = race_settings(args)
    if args.beam is not None and args.beam < 1:
        raise UserError(f"--beam {args.beam}: must be 1 or more")
    if race.schedule == "all":
        raise UserError("--schedule all: a live model has no last pseudo-reference; give the sizes")
    check_model(args)
    if args.text and args.json:
        raise UserError("--text and --json: give one of them")
    text = args.text or not (args.json or ".jsonl" in args.output or args.output.endswith(".parquet"))
    if text and race.nbest > 1:
        raise UserError(f"--nbest {race.nbest}: plain text has one line per source; give --json or -o OUT.jsonl")
    model, candidates, utility = model_settings(args), sampling_settings(args), utility_settings(args)
    races = DecodeJob(utility, race, text=text, save_utilities=args.save_utilities)
    return TranslateJob(model, candidates, races)
