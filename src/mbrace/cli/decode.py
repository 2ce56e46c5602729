"""`mbrace decode`: candidate files in, MBR decisions out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mbrace.cli.candidates import add_input, read_input, run_candidates
from mbrace.cli.methods import add_method
from mbrace.cli.options import add_race, add_top, add_utility, race_settings, utility_settings
from mbrace.cli.presets import apply_preset
from mbrace.cli.runs import add_cluster, add_output, add_save_utilities, check_output

if TYPE_CHECKING:
    from mbrace.jobs.decode import DecodeJob


def add(commands: Any) -> None:
    """The options of `mbrace decode`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "decode",
        help="decode candidate files with minimum Bayes risk",
        description="Choose the hypothesis with the highest expected utility for each source, by a race.",
    )
    add_input(parser)
    add_output(parser)
    add_save_utilities(parser)
    add_utility(parser)
    add_race(parser)
    add_method(parser)
    add_top(parser)
    parser.add_argument("--explain", metavar="ID", help="only print the race of the record with this id")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--no-shuffle", action="store_true", help="take listed pseudo-references in the order given")
    order.add_argument(
        "--cover",
        action=argparse.BooleanOptionalAction,
        help="take listed pseudo-references in an order in which the first few cover the n-grams of all, so that fewer "
        "are encoded; for neural utilities, with --regret",
    )
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then decode."""
    check_output(args)
    apply_preset(args, "decode")
    job = job_from(args)
    if args.explain is not None:
        from mbrace.cli.explain import run_explain

        return run_explain(job, read_input(args)[0], args)
    return run_candidates(job, args)


def job_from(args: argparse.Namespace) -> DecodeJob:
    """The job that was asked for."""
    from mbrace.jobs.decode import DecodeJob

    race, utility = race_settings(args), utility_settings(args)
    return DecodeJob(
        utility,
        race,
        shuffle=not args.no_shuffle,
        cover=bool(args.cover),
        text=args.text,
        save_utilities=args.save_utilities,
        top=args.top,
    )
