"""`mbrace score`: evaluate translations against references."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mbrace.cli.options import add_utility, report_truncated, utility_from
from mbrace.errors import UserError
from mbrace.utility import CorpusUtility, truncated_texts


def add(commands: Any) -> None:
    """The options of `mbrace score`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "score",
        help="score translations against references",
        description="The sentence average, as in the paper, and the corpus score if the utility has one.",
    )
    parser.add_argument(
        "hypotheses",
        metavar="HYP.txt",
        help="one translation per line (.gz, .xz; - is stdin), or JSON Lines or Parquet with `text`",
    )
    parser.add_argument(
        "references", metavar="REF.txt", help="one reference per line, or JSON Lines or Parquet with `reference`"
    )
    parser.add_argument(
        "--source",
        metavar="SRC.txt",
        help="one source per line, or JSON Lines or Parquet with `source`; for utilities that read it",
    )
    parser.add_argument("--per-line", action="store_true", help="first print the score of every sentence")
    add_utility(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, score, print."""
    utility = utility_from(args)
    hypotheses, references, sources = read_aligned([args.hypotheses], args.references, args.source)
    if utility.needs_source and sources is None:
        raise UserError(f"--utility {args.utility}: scores with the source; give --source SRC.txt")
    scores = utility.pairs(hypotheses, references, sources)
    report_truncated(truncated_texts(utility))
    if args.per_line:
        print("\n".join(f"{score:.4f}" for score in scores))
    print(f"sentence average  {scores.mean(dtype='float64'):.4f}  ({len(scores)} lines, {utility.name})")
    if isinstance(utility, CorpusUtility):
        print(f"corpus            {utility.corpus(hypotheses, references):.4f}")
    return 0


def read_aligned(outputs: Sequence[str], references: str, source: str | None) -> list[Any]:
    """The texts of each output, the references and the sources (or None), aligned by id or else by line."""
    from mbrace.io.aligned import align_texts, read_texts

    systems = [read_texts(path, "text") for path in outputs]
    others = [read_texts(references, "reference")] + ([] if source is None else [read_texts(source, "source")])
    _, found = align_texts(systems, others)
    return [*found, None] if source is None else list(found)
