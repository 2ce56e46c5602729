"""`mbrace score`: evaluate translations against references."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mbrace.cli.options import add_utility, report_cost, report_truncated, utility_from
from mbrace.errors import UserError
from mbrace.utility import truncated_texts, utility_cost
from mbrace.wording import counted


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
        help="one translation per line (.gz, .xz, .bz2, .zst; - is stdin), or JSON Lines or Parquet with `text`",
    )
    parser.add_argument(
        "references",
        nargs="+",
        metavar="REF.txt",
        help="one reference per line, or JSON Lines or Parquet with `reference`; of several files the closest counts",
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
    from mbrace.experiments.significance import Evaluated

    utility = utility_from(args)
    (hypotheses,), references, sources = read_aligned([args.hypotheses], args.references, args.source)
    if utility.needs_source and sources is None:
        raise UserError(f"--utility {args.utility}: scores with the source; give --source SRC.txt")
    found = Evaluated.of(hypotheses, references, utility, sources)
    report_truncated(truncated_texts(utility))
    report_cost(utility_cost(utility))
    if args.per_line:
        print("\n".join(f"{score:.4f}" for score in found.scores))
    several = f", {len(references)} references" if len(references) > 1 else ""
    print(f"sentence average  {found.scores.mean():.4f}  ({counted(len(hypotheses), 'line')}{several}, {utility.name})")
    if found.corpus is not None:
        print(f"corpus            {found.corpus:.4f}")
    return 0


def read_aligned(
    outputs: Sequence[str], references: Sequence[str], source: str | None
) -> tuple[list[Sequence[str]], list[Sequence[str]], Sequence[str] | None]:
    """The texts of each output and of each file of references, and the sources (or None), paired by id, or by line."""
    from mbrace.io.candidates import check_stdin
    from mbrace.io.texts import align_texts, read_texts

    check_stdin([*outputs, *references, source or ""])
    systems = [read_texts(path, "text") for path in outputs]
    others = [read_texts(path, "reference") for path in references]
    others += [] if source is None else [read_texts(source, "source")]
    _, found = align_texts(systems, others)
    last = len(outputs) + len(references)
    return found[: len(outputs)], found[len(outputs) : last], None if source is None else found[-1]
