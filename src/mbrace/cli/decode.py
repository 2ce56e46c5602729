"""`mbrace decode`: candidate files in, MBR decisions out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mbrace.cli.options import add_race, add_utility, race_settings, utility_settings
from mbrace.cli.runs import (
    add_cluster,
    add_input,
    add_output,
    add_save_utilities,
    add_top,
    check_run,
    read_input,
    run_candidates,
)

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
    add_top(parser)
    parser.add_argument("--explain", metavar="ID", help="only print the race of the record with this id")
    add_utility(parser)
    add_race(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then decode."""
    check_run(args)
    job = job_from(args)
    if args.explain is not None:
        from mbrace.cli.explain import run_explain

        return run_explain(job, read_input(args)[0], args)
    return run_candidates(job, args)


def job_from(args: argparse.Namespace) -> DecodeJob:
    """The job that was asked for."""
    from mbrace.jobs.decode import DecodeJob

    race, _ = race_settings(args, "decode")
    return DecodeJob(utility_settings(args), race, bool(args.text), args.save_utilities, args.top)
