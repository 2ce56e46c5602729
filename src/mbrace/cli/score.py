"""`mbrace score`: evaluate translations against references."""

from __future__ import annotations

import argparse
from typing import Any

from mbrace.cli.options import add_utility, report_truncated, utility_from
from mbrace.errors import UserError


def add(commands: Any) -> None:
    """The options of `mbrace score`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "score",
        help="score translations against references",
        description="Sentence average, as the paper evaluates, and the corpus score where the utility has one.",
    )
    parser.add_argument("hypotheses", metavar="HYP.txt", help="one translation a line (.gz, .xz; - is stdin)")
    parser.add_argument("references", metavar="REF.txt", help="one reference a line")
    parser.add_argument("--source", metavar="SRC.txt", help="one source a line, for utilities that read it")
    parser.add_argument("--per-line", action="store_true", help="also print every sentence's score, first")
    add_utility(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, score, print."""
    from mbrace.files import read_lines

    utility = utility_from(args)
    hypotheses, references = list(read_lines(args.hypotheses)), list(read_lines(args.references))
    sources = None if args.source is None else list(read_lines(args.source))
    for path, lines in ((args.references, references), (args.source, sources)):
        if lines is not None and len(lines) != len(hypotheses):
            raise UserError(f"{path}: {len(lines)} lines, but {args.hypotheses} has {len(hypotheses)}")
    if not hypotheses:
        raise UserError(f"{args.hypotheses}: empty; give one translation a line")
    if utility.needs_source and sources is None:
        raise UserError(f"--utility {args.utility}: scores with the source; give --source SRC.txt")
    scores = utility.pairs(hypotheses, references, sources)
    report_truncated(utility)
    if args.per_line:
        print("\n".join(f"{score:.4f}" for score in scores))
    print(f"sentence average  {scores.mean(dtype='float64'):.4f}  ({len(scores)} lines, {utility.name})")
    corpus = getattr(utility, "corpus", None)
    if corpus is not None:
        print(f"corpus            {corpus(hypotheses, references):.4f}")
    return 0
