"""The input of commands that read candidates, files or flat text, and a job run over it here or on a cluster."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from mbrace.cli.runs import run_here, run_on_cluster
from mbrace.errors import UserError

if TYPE_CHECKING:
    from mbrace.io.candidates import Item
    from mbrace.jobs.run import Job


def add_input(parser: argparse.ArgumentParser, *, references: bool = True) -> None:
    """CANDIDATES.jsonl, or flat text. Without `references` there are no pseudo-references, and sources are required."""
    sources = "" if references else " with sources"
    parser.add_argument(
        "candidates",
        nargs="*",
        metavar="CANDIDATES.jsonl",
        help=f"JSON Lines (.gz, .xz, .bz2, .zst) or .parquet{sources}: files, patterns such as 'part-*.jsonl', URLs; "
        "- is stdin",
    )
    flat = parser.add_argument_group("flat text input, instead of CANDIDATES.jsonl")
    flat.add_argument("--hypotheses", metavar="H.txt", help="N hypotheses per source, one per line")
    flat.add_argument("--num-candidates", type=int, metavar="N", help="hypotheses per source")
    if references:
        flat.add_argument("--references", metavar="R.txt", help="pseudo-references (default: the hypotheses)")
        flat.add_argument("--num-references", type=int, metavar="M", help="pseudo-references per source (default: N)")
    flat.add_argument("--source", metavar="S.txt", help="one source per line")
    parser.set_defaults(
        **({} if references else {"references": None, "num_references": None}), needs_source=not references
    )


def run_candidates(job: Job, args: argparse.Namespace) -> int:
    """Run a job over the input that was given, on this machine or with --ray."""
    if args.ray is None:
        items, total = read_input(args)
        return run_here(job, items, args, total=total)
    if not args.candidates:
        if os.path.exists(args.ray):
            raise UserError(f"--ray {args.ray}: is read as a cluster's address; give the files before --ray")
        raise UserError("--ray: reads CANDIDATES.jsonl or .parquet, not flat text")
    return run_on_cluster(job, args.candidates, args)


def read_input(args: argparse.Namespace) -> tuple[Iterable[Item], int | None]:
    """The records, and their number where that is cheap to find out."""
    from mbrace.io.candidates import checked_input, expand, read_flat, read_items

    sizes = {"num_candidates": args.num_candidates, "num_references": args.num_references}
    if args.candidates:
        if any(value is not None for value in (args.hypotheses, args.references, args.source, *sizes.values())):
            raise UserError("CANDIDATES.jsonl and --hypotheses: give one kind of input")
        paths = expand(args.candidates)
        return checked_input(lambda: read_items(paths), paths, output=args.output), _count_records(paths)
    if args.hypotheses is None or args.num_candidates is None or (args.needs_source and args.source is None):
        with_source = " and --source S.txt" if args.needs_source else ""
        raise UserError(f"no input: give CANDIDATES.jsonl, or --hypotheses H.txt with --num-candidates N{with_source}")
    if args.num_references is not None and args.references is None:
        raise UserError("--num-references: only valid with --references; the hypotheses are the others")
    files = list(filter(None, (args.hypotheses, args.references, args.source)))
    read = partial(read_flat, args.hypotheses, args.references, source=args.source, **sizes)
    return checked_input(read, files, output=args.output), None


def _count_records(paths: list[str]) -> int | None:
    """The number of lines of all files, for the progress bar; None without one, or where counting would be slow."""
    from mbrace.io.reading import count_lines

    plain = all(os.path.isfile(path) and path.endswith(".jsonl") for path in paths)
    if not (sys.stderr.isatty() and plain and sum(map(os.path.getsize, paths)) < 1 << 28):
        return None
    return sum(map(count_lines, paths))
