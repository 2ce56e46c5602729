"""`mbrace decode`: candidate files in, MBR decisions out."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mbrace.cli.options import add_prune, add_utility, prune_from, schedule_from, utility_from
from mbrace.errors import UserError

if TYPE_CHECKING:
    from mbrace.files import Item
    from mbrace.job import Summary


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
        help="JSON Lines (.gz, .xz) or .parquet: files, patterns such as 'part-*.jsonl', URLs; - is stdin",
    )
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
    parser.add_argument(
        "-o", "--output", default="-", metavar="OUT.jsonl", help=".gz or .parquet by suffix; - is stdout"
    )
    parser.add_argument("--text", action="store_true", help="write the texts alone, one line a source")
    parser.add_argument("--resume", action="store_true", help="keep the answers in OUT and go on after them")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--window", type=int, default=64, metavar="N", help="sentences racing at a time (default: 64)")
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="a bad record stops the run (default), or is set aside in OUT.errors.jsonl",
    )


def check_output(args: argparse.Namespace) -> None:
    """Refuse options of `add_output` that make no sense."""
    if args.resume and args.force:
        raise UserError("--resume and --force: give one of them")
    if args.window < 1:
        raise UserError(f"--window {args.window}: must be 1 or more")
    if args.on_error == "skip" and args.output == "-":
        raise UserError("--on-error skip: what is set aside goes to OUT.errors.jsonl; give a file with -o OUT")


def run(args: argparse.Namespace) -> int:
    """Check every option, then decode."""
    from mbrace.cli.progress import progress
    from mbrace.job import Decoder, run_job
    from mbrace.output import Output
    from mbrace.signals import Stop

    check_output(args)
    if args.nbest < 1:
        raise UserError(f"--nbest {args.nbest}: must be 1 or more")
    decoder = Decoder(
        utility_from(args),
        prune_from(args),
        schedule_from(args),
        seed=args.seed,
        nbest=args.nbest,
        window=args.window,
        shuffle=not args.no_shuffle,
        text=args.text,
    )
    items, total = _input(args)
    with (
        warnings.catch_warnings(),
        Stop() as stop,
        Output(args.output, resume=args.resume, force=args.force, text=args.text) as output,
        progress("decoding", total) as advance,
    ):
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        summary = run_job(decoder, items, output, skip=args.on_error == "skip", stop=stop, advance=advance)
    print(summary_line(summary), file=sys.stderr)
    return ended(args, stop.signal)


def ended(args: argparse.Namespace, signal: int | None) -> int:
    """The exit status of a run; one that a signal ended says how to go on."""
    if signal is None:
        return 0
    how = "" if args.output == "-" else "; go on with the same command and --resume"
    print(f"mbrace: stopped by signal {signal} after the window at work, which is written{how}", file=sys.stderr)
    return 128 + signal


def _input(args: argparse.Namespace) -> tuple[Iterator[Item], int | None]:
    """The records, and how many there are where that is cheap to know."""
    from mbrace.files import open_input, read_flat, read_items
    from mbrace.storage import expand

    flat = [args.hypotheses, args.references, args.num_candidates, args.num_references, args.source]
    if args.candidates:
        if any(value is not None for value in flat):
            raise UserError("CANDIDATES.jsonl and --hypotheses: give one kind of input")
        paths = expand(args.candidates)
        _check_readable(paths)
        return read_items(paths), _count(paths)
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


def _check_readable(paths: list[str]) -> None:
    """A missing file is an error before the output is made."""
    from mbrace.files import open_input

    for path in paths:
        if path != "-" and "://" not in path:
            with open_input(path):
                pass


def _count(paths: list[str]) -> int | None:
    """Lines of all files for the progress bar, if there is one and counting is quick."""
    from mbrace.files import open_input

    plain = all(os.path.isfile(path) and path.endswith(".jsonl") for path in paths)
    if not (sys.stderr.isatty() and plain and sum(map(os.path.getsize, paths)) < 1 << 28):
        return None
    total = 0
    for path in paths:
        with open_input(path) as file:
            total += sum(1 for _ in file)
    return total


def _show_warning(message: Warning | str, *rest: Any) -> None:
    print(f"mbrace: warning: {message}", file=sys.stderr)


def summary_line(summary: Summary) -> str:
    """What a run did, for stderr."""
    phases = summary.phases
    parts = [f"{summary.sentences} sentences in {summary.seconds:.2f} s"]
    if summary.kept:
        parts.append(f"{summary.kept} kept from before")
    if summary.skipped:
        parts.append(f"{summary.skipped} set aside")
    if summary.standard_calls:
        saved = 1 - summary.utility_calls / summary.standard_calls
        parts.append(
            f"{summary.utility_calls:,} utility calls ({saved:.1%} saved), {summary.pairs_scored:,} pairs scored"
        )
    timed = [("draw", phases.draw), ("encode", phases.encode), ("score", phases.score), ("prune", phases.prune)]
    parts.append(", ".join(f"{name} {seconds:.2f} s" for name, seconds in timed))
    return "mbrace: " + "; ".join(parts)
