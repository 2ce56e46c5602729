"""`mbrace decode`: candidate files in, MBR decisions out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mbrace.cli.options import (
    add_quality,
    add_race,
    add_utility,
    apply_preset,
    quality_settings,
    race_settings,
    utility_settings,
)
from mbrace.cli.runs import add_cluster, add_output, check_output, run_here, run_on_cluster
from mbrace.errors import UserError

if TYPE_CHECKING:
    from mbrace.io.candidates import Item
    from mbrace.jobs.decode import DecodeJob


def add(commands: Any) -> None:
    """The options of `mbrace decode`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "decode",
        help="decode candidate files with minimum Bayes risk",
        description="Choose the hypothesis with the highest expected utility for each source, by a race.",
    )
    parser.add_argument(
        "candidates",
        nargs="*",
        metavar="CANDIDATES.jsonl",
        help="JSON Lines (.gz, .xz, .bz2, .zst) or .parquet: files, patterns such as 'part-*.jsonl', URLs; - is stdin",
    )
    add_output(parser)
    flat = parser.add_argument_group("flat text input, instead of CANDIDATES.jsonl")
    flat.add_argument("--hypotheses", metavar="H.txt", help="N hypotheses per source, one per line")
    flat.add_argument("--references", metavar="R.txt", help="pseudo-references (default: the hypotheses)")
    flat.add_argument("--num-candidates", type=int, metavar="N", help="hypotheses per source")
    flat.add_argument("--num-references", type=int, metavar="M", help="pseudo-references per source (default: N)")
    flat.add_argument("--source", metavar="S.txt", help="one source per line")
    add_utility(parser)
    add_race(parser)
    add_quality(parser)
    parser.add_argument(
        "--start",
        type=int,
        metavar="K",
        help="with --pool: start with the first K hypotheses of a record (default: all)",
    )
    parser.add_argument("--no-shuffle", action="store_true", help="take listed pseudo-references in their order")
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then decode."""
    check_output(args)
    apply_preset(args, "decode")
    job = job_from(args)
    if args.ray is None:
        items, total = _input(args)
        return run_here(job, items, args, total=total)
    if not args.candidates:
        if os.path.exists(args.ray):
            raise UserError(f"--ray {args.ray}: is read as a cluster's address; give the files before --ray")
        raise UserError("--ray: reads CANDIDATES.jsonl or .parquet, not flat text")
    return run_on_cluster(job, args.candidates, args)


def job_from(args: argparse.Namespace) -> DecodeJob:
    """The job that was asked for."""
    from mbrace.jobs.decode import DecodeJob

    qe, utility, race = quality_settings(args), utility_settings(args), race_settings(args)
    return DecodeJob(utility, race, shuffle=not args.no_shuffle, text=args.text, qe=qe, qe_top=args.qe_top)


def _input(args: argparse.Namespace) -> tuple[Iterable[Item], int | None]:
    """The records, and how many there are where that is cheap to know."""
    from mbrace.io.candidates import read_flat, read_items
    from mbrace.io.inputs import check_inputs, expand, rereadable

    flat = [args.hypotheses, args.references, args.num_candidates, args.num_references, args.source]
    if args.candidates:
        if any(value is not None for value in flat):
            raise UserError("CANDIDATES.jsonl and --hypotheses: give one kind of input")
        paths = expand(args.candidates)
        check_inputs(paths, args.output)
        return rereadable(lambda: read_items(paths), paths), count_records(paths)
    if args.hypotheses is None or args.num_candidates is None:
        raise UserError("no input: give CANDIDATES.jsonl, or --hypotheses H.txt with --num-candidates N")
    if args.num_references is not None and args.references is None:
        raise UserError("--num-references: only valid with --references; the hypotheses are the others")
    check_inputs(filter(None, (args.hypotheses, args.references, args.source)), args.output)
    flat_files = list(filter(None, (args.hypotheses, args.references, args.source)))
    sizes = {"num_candidates": args.num_candidates, "num_references": args.num_references}
    records = rereadable(lambda: read_flat(args.hypotheses, args.references, source=args.source, **sizes), flat_files)
    return records, None


def count_records(paths: list[str]) -> int | None:
    """Lines of all files for the progress bar, if there is one and counting is quick."""
    from mbrace.io.reading import count_lines

    plain = all(os.path.isfile(path) and path.endswith(".jsonl") for path in paths)
    if not (sys.stderr.isatty() and plain and sum(map(os.path.getsize, paths)) < 1 << 28):
        return None
    return sum(map(count_lines, paths))
