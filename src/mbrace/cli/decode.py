"""`mbrace decode`: candidate files in, MBR decisions out."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mbrace.cli.options import add_prune, add_utility, prune_from, report_truncated, schedule_from, utility_from
from mbrace.errors import UserError

if TYPE_CHECKING:
    from mbrace.job import Summary
    from mbrace.records import Record


def add(commands: Any) -> None:
    """The options of `mbrace decode`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "decode",
        help="decode candidate files with minimum Bayes risk",
        description="Choose the hypothesis with the highest expected utility for each source, by a race.",
    )
    parser.add_argument("candidates", nargs="?", metavar="CANDIDATES.jsonl", help="JSON Lines, .gz or .xz; - is stdin")
    add_output(parser)
    flat = parser.add_argument_group("flat text input, instead of CANDIDATES.jsonl")
    flat.add_argument("--hypotheses", metavar="H.txt", help="N hypotheses a source, one a line")
    flat.add_argument("--references", metavar="R.txt", help="pseudo-references (default: the hypotheses)")
    flat.add_argument("--num-candidates", type=int, metavar="N", help="hypotheses a source")
    flat.add_argument("--num-references", type=int, metavar="M", help="pseudo-references a source (default: N)")
    flat.add_argument("--source", metavar="S.txt", help="one source a line")
    add_utility(parser)
    add_prune(parser)
    parser.set_defaults(run=run)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Where answers go."""
    parser.add_argument("-o", "--output", default="-", metavar="OUT.jsonl", help=".gz packs it; - is stdout (default)")
    parser.add_argument("--text", action="store_true", help="write the texts alone, one line a source")
    parser.add_argument("--resume", action="store_true", help="keep the answers in OUT and go on after them")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--window", type=int, default=64, metavar="N", help="sentences racing at a time (default: 64)")


def run(args: argparse.Namespace) -> int:
    """Check every option, then decode."""
    from mbrace.cli.progress import progress
    from mbrace.job import decode_job
    from mbrace.output import Output

    utility, prune, schedule = utility_from(args), prune_from(args), schedule_from(args)
    if args.resume and args.force:
        raise UserError("--resume and --force: give one of them")
    for option in ("nbest", "window"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} {getattr(args, option)}: must be 1 or more")
    records, total = _input(args)
    with (
        warnings.catch_warnings(),
        Output(args.output, resume=args.resume, force=args.force, text=args.text) as output,
        progress("decoding", total) as advance,
    ):
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        summary = decode_job(
            records,
            output,
            utility=utility,
            prune=prune,
            schedule=schedule,
            seed=args.seed,
            nbest=args.nbest,
            window=args.window,
            shuffle=not args.no_shuffle,
            text=args.text,
            advance=advance,
        )
    report_truncated(utility)
    print(summary_line(summary), file=sys.stderr)
    return 0


def _input(args: argparse.Namespace) -> tuple[Iterator[Record], int | None]:
    """The records, and how many there are where that is cheap to know."""
    from mbrace.files import open_input, read_flat, read_records

    flat = [args.hypotheses, args.references, args.num_candidates, args.num_references, args.source]
    if args.candidates is not None:
        if any(value is not None for value in flat):
            raise UserError("CANDIDATES.jsonl and --hypotheses: give one kind of input")
        with open_input(args.candidates) as file:  # a missing file is an error before the output is made
            total = None
            if sys.stderr.isatty() and os.path.isfile(args.candidates):
                total = sum(1 for _ in file)
        return read_records(args.candidates), total
    if args.hypotheses is None or args.num_candidates is None:
        raise UserError("no input: give CANDIDATES.jsonl, or --hypotheses H.txt with --num-candidates N")
    for path in (args.hypotheses, args.references, args.source):
        if path is not None:
            with open_input(path):
                pass
    records = read_flat(
        args.hypotheses,
        args.references,
        num_candidates=args.num_candidates,
        num_references=args.num_references,
        source=args.source,
    )
    return records, None


def _show_warning(message: Warning | str, *rest: Any) -> None:
    print(f"mbrace: warning: {message}", file=sys.stderr)


def summary_line(summary: Summary) -> str:
    """What a run did, for stderr."""
    phases = summary.phases
    parts = [f"{summary.sentences} sentences in {summary.seconds:.2f} s"]
    if summary.kept:
        parts.append(f"{summary.kept} kept from before")
    if summary.standard_calls:
        saved = 1 - summary.utility_calls / summary.standard_calls
        parts.append(
            f"{summary.utility_calls:,} utility calls ({saved:.1%} saved), {summary.pairs_scored:,} pairs scored"
        )
    timed = [("draw", phases.draw), ("encode", phases.encode), ("score", phases.score), ("prune", phases.prune)]
    parts.append(", ".join(f"{name} {seconds:.2f} s" for name, seconds in timed))
    return "mbrace: " + "; ".join(parts)
