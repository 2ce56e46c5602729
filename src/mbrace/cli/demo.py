"""`mbrace demo`: bundled candidates decoded by standard MBR and by racing, side by side."""

from __future__ import annotations

import argparse
import time
from importlib import resources
from typing import Any

from mbrace.errors import UserError


def add(commands: Any) -> None:
    """The options of `mbrace demo`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo", help="race through bundled candidates and compare", description="Decode bundled candidates."
    )
    parser.add_argument("--sentences", type=int, default=48, metavar="N", help="sentences to decode (default: all 48)")
    parser.add_argument("--examples", type=int, default=3, metavar="N", help="decisions to show (default: 3)")
    parser.add_argument("--translate", action="store_true", help="translate with the bundled model instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode with standard MBR and three settings of the pruning functions, and show what changed."""
    if args.sentences < 1:
        raise UserError(f"--sentences {args.sentences}: must be 1 or more")
    if args.examples < 0:
        raise UserError(f"--examples {args.examples}: must be 0 or more")
    if args.translate:
        return _translate()
    from rich.console import Console
    from rich.table import Table

    from mbrace import Bottom, ChrF, Confidence, decode_corpus
    from mbrace.io.candidates import read_records

    console = Console()
    path = resources.files("mbrace") / "data" / "demo.jsonl.xz"
    with resources.as_file(path) as file:
        records = list(read_records(str(file)))[: args.sentences]
    utility = ChrF()
    list(decode_corpus(records[:1], utility=utility))  # warm up
    rules: list[tuple[str, Any]] = [
        ("standard MBR", None),
        ("beta 0.5", Bottom(0.5)),
        ("alpha 0.99", Confidence(0.99)),
        ("alpha 0.9", Confidence(0.9)),
    ]
    answers: dict[str, list[Any]] = {}
    table = Table(title=f"{len(records)} German captions, 256 hypotheses x 256 pseudo-references each, chrF++")
    for heading in ("pruning", "agrees", "chrF++", "utility calls", "saved", "refs", "seconds"):
        table.add_column(heading, justify="left" if heading == "pruning" else "right", no_wrap=True)
    for name, prune in rules:
        started = time.perf_counter()
        answers[name] = list(decode_corpus(records, utility=utility, prune=prune))
        seconds = time.perf_counter() - started
        found, standard = answers[name], answers["standard MBR"]
        calls = sum(answer.utility_calls for answer in found)
        full = sum(answer.utility_calls for answer in standard)
        same = sum(a.text == b.text for a, b in zip(found, standard, strict=True))
        human = utility.pairs([answer.text for answer in found], [record.reference or "" for record in records])
        table.add_row(
            name,
            f"{same}/{len(records)}",
            f"{human.mean():.2f}",
            f"{calls:,}",
            f"{full / calls:.1f}x",
            f"{sum(a.pseudo_references for a in found) / len(found):.0f}",
            f"{seconds:.3f}",
        )
    console.print(table)
    _examples(console, records, answers["alpha 0.99"], args.examples)
    return 0


def _translate() -> int:
    from rich.console import Console

    from mbrace.cli.demo_translate import missing, show

    reason = missing()
    if reason is None:
        show(Console())
    else:
        print(f"mbrace demo --translate: skipped ({reason})")
    return 0


def _examples(console: Any, records: list[Any], answers: list[Any], count: int) -> None:
    """A few decisions: the first of beam search, the choice of MBR, and the number of survivors after each step."""
    from mbrace.cli.labelled_texts import print_labelled

    changed = [pair for pair in zip(records, answers, strict=True) if pair[1].index != 0]
    for record, answer in changed[:count]:
        survivors = " > ".join([str(len(record.hypotheses)), *(str(step.survivors) for step in answer.steps)])
        print_labelled(
            console,
            ("source", "dim", record.source, ""),
            ("beam search", "dim", record.hypotheses[0], ""),
            ("MBR", "bold green", answer.text, "bold"),
            ("reference", "dim", record.reference, ""),
            ("survivors", "dim", f"{survivors}, expected utility {answer.utility:.2f}", "dim"),
        )
