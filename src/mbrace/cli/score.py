"""`mbrace score` and `mbrace compare`: translations against references; are differences between systems significant?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from mbrace.cli.messages import show
from mbrace.cli.options import add_utility, report_cost, report_truncated, utility_from
from mbrace.cli.parser import seed
from mbrace.errors import UserError, check_whole, counted
from mbrace.utility import truncated_texts, utility_cost

if TYPE_CHECKING:
    from mbrace.experiments.significance import Comparison

MOST = 1_000_000  # resamples or shuffles


def add(commands: Any) -> None:
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
    from mbrace.experiments.significance import Evaluated

    utility = utility_from(args)
    (hypotheses,), references, sources = read_aligned([args.hypotheses], args.references, args.source)
    if utility.needs_source and sources is None:
        raise UserError(f"--utility {args.utility}: scores with the source; give --source SRC.txt")
    found = Evaluated.of(hypotheses, references, utility, sources)
    report_truncated(truncated_texts(utility))
    report_cost(utility_cost(utility))
    if args.per_line:
        show("\n".join(f"{score:.4f}" for score in found.scores))
    several = f", {len(references)} references" if len(references) > 1 else ""
    show(f"sentence average  {found.scores.mean():.4f}  ({counted(len(hypotheses), 'line')}{several}, {utility.name})")
    if found.corpus is not None:
        show(f"corpus            {found.corpus:.4f}")
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


def add_compare(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="significance tests for the outputs of two systems or more",
        description="Paired bootstrap (Koehn 2004) and paired approximate randomisation. The p-values are sacreBLEU's, "
        "except that ties count. More than two systems: the first is compared with each of the others, and p-values "
        "are corrected for the number of tests (Holm 1979).",
    )
    parser.add_argument(
        "systems",
        nargs="+",
        metavar="SYSTEM",
        help="text, one translation per line, or JSON Lines or Parquet from mbrace decode, paired by id",
    )
    parser.add_argument(
        "--reference",
        required=True,
        action="append",
        metavar="R",
        help="text, or JSON Lines or Parquet with `reference`; may be repeated: the closest reference counts",
    )
    parser.add_argument(
        "--source", metavar="S", help="text, or JSON Lines or Parquet with `source`; for utilities that read it"
    )
    parser.add_argument("--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples (default: 1000)")
    parser.add_argument(
        "--shuffles", type=int, default=10000, metavar="N", help="randomisation trials (default: 10000)"
    )
    parser.add_argument("--seed", type=seed, default=12345, help="random seed (default: 12345, sacreBLEU's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_utility(parser)
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> int:
    from mbrace.experiments.significance import Evaluated, compare_evaluated

    utility = utility_from(args)
    for option in ("resamples", "shuffles"):
        check_whole(option, getattr(args, option), least=1, most=MOST)
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: must be 0 or more")
    if not 2 <= len(args.systems) <= len(ascii_uppercase):
        raise UserError(
            f"{counted(len(args.systems), 'system')}: give 2 to {len(ascii_uppercase)} files of translations"
        )
    systems, references, sources = read_aligned(args.systems, args.reference, args.source)
    if utility.needs_source and sources is None:
        raise UserError(f"--utility {args.utility}: scores with the source; give --source S")
    first, *others = (Evaluated.of(system, references, utility, sources) for system in systems)
    options = {"resamples": args.resamples, "shuffles": args.shuffles, "seed": args.seed}
    tests = [compare_evaluated(first, other, **options) for other in others]
    found = [_corrected([test[measure] for test in tests]) for measure in range(len(tests[0]))]
    about = {"sentences": len(systems[0]), "utility": utility.name, "systems": args.systems, **options}
    if args.json:
        rows = [{"a": args.systems[0], "b": args.systems[n], **row} for rows in found for n, row in enumerate(rows, 1)]
        show(json.dumps({**about, "references": len(references), "tests": rows}, ensure_ascii=False, indent=1))
    else:
        _print(about, found)
    return 0


def _corrected(tests: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The tests of one measure as rows, with p-values corrected for their number."""
    from mbrace.experiments.significance import holm

    names = ("p_bootstrap", "p_randomisation")
    corrected = {f"{name}_holm": holm([getattr(test, name) for test in tests]) for name in names}
    rows = [
        {**asdict(test), "few_differ": test.few_differ, **{name: values[n] for name, values in corrected.items()}}
        for n, test in enumerate(tests)
    ]
    return [{("score_a" if k == "a" else "score_b" if k == "b" else k): v for k, v in row.items()} for row in rows]


def _print(about: dict[str, Any], found: Sequence[Sequence[dict[str, Any]]]) -> None:
    show(f"{counted(about['sentences'], 'sentence')}, {about['utility']}")
    several = len(about["systems"]) > 2
    for letter, path in zip(ascii_uppercase, about["systems"], strict=False):
        show(f"  {letter} = {path}")
    for rows in found:
        show(f"\n{rows[0]['measure']}")
        for letter, row in zip(ascii_uppercase[1:], rows, strict=False):
            holm = {name: f", Holm {row[f'{name}_holm']:.4f}" * several for name in ("p_bootstrap", "p_randomisation")}
            difference = f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
            show(f"  A {row['score_a']:.4f}   {letter} {row['score_b']:.4f}   A - {letter} {difference}")
            show(
                f"  paired bootstrap: A higher in {row['wins']:.1%} of {about['resamples']} resamples, "
                f"p = {row['p_bootstrap']:.4f}{holm['p_bootstrap']}"
            )
            show(
                f"  paired approximate randomisation: p = {row['p_randomisation']:.4f}{holm['p_randomisation']} "
                f"({counted(about['shuffles'], 'shuffle')})"
            )
            trusted = "; with so few, trust the randomisation" if row["few_differ"] else ""
            show(f"  {row['differ']:,} of {counted(about['sentences'], 'sentence')} differ{trusted}")
