"""`mbrace demo`: bundled newstest candidates by beam search, standard MBR and racing; or answers of a small model."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mbrace.cli.messages import show
from mbrace.errors import UserError, counted
from mbrace.prune import Bottom, Confidence
from mbrace.result import RaceRecorder

if TYPE_CHECKING:
    from mbrace.prune import PruningFunction
    from mbrace.records import Record
    from mbrace.result import Decoded
    from mbrace.utility import Utility

BUNDLED = "newstest.jsonl.xz"
WATCHED = "de-en.test.14"  # the race that is shown: it ends early, and MBR says more than beam search
QUESTION = "What is the capital of France? Answer in one sentence."


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="watch a race and compare racing with standard MBR, on bundled candidates",
        description="Decode bundled candidates: news translated from German, 256 hypotheses and 256 pseudo-references "
        "per sentence.",
    )
    parser.add_argument("--sentences", type=int, default=48, metavar="N", help="sentences to decode (default: all 48)")
    parser.add_argument("--answer", action="store_true", help="race answers of a small language model (mbrace[llm])")
    parser.add_argument("--save", metavar="FILE", help="only write the bundled candidates to FILE.jsonl.xz")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show a race and what racing saves, or the answers of a model."""
    if args.sentences < 1:
        raise UserError(f"--sentences {args.sentences}: must be 1 or more")
    if args.answer and args.save is not None:
        raise UserError("--answer and --save: give one of them")
    if args.save is not None:
        _save(args.save)
    elif args.answer:
        _show_answers()
    else:
        _show_translations(args.sentences)
    return 0


def _bundled() -> Any:
    return resources.files("mbrace") / "data" / BUNDLED


def _save(path: str) -> None:
    """Write the bundled candidates to a new file."""
    from mbrace.io.atomic import write_file

    if not path.endswith(".jsonl.xz"):
        raise UserError(f"--save {path}: the file is compressed with xz; give a name that ends with .jsonl.xz")
    if Path(path).exists():
        raise UserError(f"--save {path}: exists; give another name")
    write_file(path, _bundled().read_bytes())
    show(f"{path}: 48 sentences, each with 256 hypotheses and 256 pseudo-references")


def _show_translations(sentences: int) -> None:
    """A race, what racing saves and gains, and commands to try."""
    from mbrace.io.candidates import read_records
    from mbrace.metrics.chrf import ChrF

    with resources.as_file(_bundled()) as file:
        records = list(read_records(str(file)))
    utility = ChrF()
    show_race(next(record for record in records if record.id == WATCHED), utility)
    _compare(records[:sentences], utility)
    note = (
        "Fewer calls, but hardly fewer seconds: a chrF++ call takes nanoseconds, and most of the time goes into "
        "preparing the strings, which standard MBR does too. Racing saves time where each call is a forward pass of a "
        "large network (XCOMET, MetricX) or a request to a judge."
    )
    show("\n" + textwrap.fill(note, 80))
    show("\nTry next:")
    for command, what in (
        ("mbrace demo --answer", "race a model's answers"),
        ("mbrace demo --save news.jsonl.xz", "save these candidates"),
        (f"mbrace decode news.jsonl.xz --explain {WATCHED}", "this race, step by step"),
    ):
        show(f"  {command:<53}{what}")


def show_race(record: Record, utility: Utility) -> None:
    """Race one record with confidence pruning and print a line per time step."""
    from mbrace.api import decode_corpus
    from mbrace.cli.explain import printable

    recorder = RaceRecorder(Confidence(0.99))
    [answer] = decode_corpus([record], utility=utility, prune=Confidence(0.99), watch=recorder)
    show(f"One race: {len(record.hypotheses)} hypotheses of beam search, alpha 0.99, chrF++")
    show(textwrap.fill(f"source: {record.source}", 80))
    for number, step in enumerate(recorder.steps, 1):
        leader = int(step.means.argmax())
        show(
            f"step {number}: {counted(step.pseudo_references, 'pseudo-reference')}, {len(step.alive)} -> "
            f"{counted(int(step.kept.sum()), 'hypothesis', 'hypotheses')}, "
            f"leader {step.means[leader]:.1f}: {printable(step.texts[leader])}"
        )
    show(textwrap.fill(f"answer: {answer.text}", 80))
    standard = len(record.hypotheses) * len(record.listed() or ())  # type: ignore[arg-type]
    show(f"{counted(answer.utility_calls, 'utility call')}; standard MBR: {standard:,}")


def _compare(records: Sequence[Record], utility: Utility) -> None:
    """Print a table of beam search, standard MBR and three pruning functions."""
    from mbrace.api import decode_corpus

    rules: dict[str, PruningFunction | None] = {
        "standard MBR": None, "beta 0.5": Bottom(0.5), "alpha 0.99": Confidence(0.99), "alpha 0.9": Confidence(0.9)
    }  # fmt: skip
    references = [record.reference or "" for record in records]
    first = utility.pairs([record.hypotheses[0] for record in records], references)
    rows = [
        ("decoding", "agrees", "chrF++", "calls", "saved", "refs", "seconds"),
        ("beam search", "", f"{first.mean():.2f}", "", "", "", ""),
    ]
    list(decode_corpus(records[:1], utility=utility))  # warm up
    standard: list[Decoded] = []
    for name, prune in rules.items():
        started = time.perf_counter()
        found = list(decode_corpus(records, utility=utility, prune=prune))
        seconds, standard = time.perf_counter() - started, standard or found
        calls, full = (sum(answer.utility_calls for answer in each) for each in (found, standard))
        agrees = sum(a.text == b.text for a, b in zip(found, standard, strict=True))
        score = utility.pairs([answer.text for answer in found], references).mean()
        refs = sum(answer.pseudo_references for answer in found) / len(found)
        rows.append(
            (name, f"{agrees}/{len(records)}", f"{score:.2f}", f"{calls:,}", f"{full / calls:.1f}x", f"{refs:.0f}",
             f"{seconds:.3f}")
        )  # fmt: skip
    show(f"\n{len(records)} sentences of newstest2018, German to English, chrF++")
    for decoding, *cells in rows:
        show(f"{decoding:<13}" + "".join(f"{cell:>11}" for cell in cells).rstrip())
    show("agrees: with standard MBR; chrF++: mean against the human references")


def _show_answers() -> None:
    """Draw answers to a question and show after each step who is ahead, and at the end what it cost."""
    from mbrace.answers import answers, prompt_of
    from mbrace.metrics.chrf import ChrF
    from mbrace.servers.local import local_server
    from mbrace.servers.server import Server
    from mbrace.settings import LOCAL_MODEL

    show(f"{LOCAL_MODEL} by llama.cpp, in this process: {QUESTION}")
    server = Server(local_server(), LOCAL_MODEL, max_tokens=40, temperature=0.8)

    def show_step(record: object, alive: Any, standings: Any, keep: Any) -> None:
        show(f"\n{standings.counts.sum()} whole draws, the best by expected chrF++ among them:")
        for row in sorted(range(len(keep)), key=lambda row: (not keep[row], -standings.means[row]))[:5]:
            copies = standings.counts[alive[row]]
            times = f" x{copies}" if copies > 1 else ""
            text = " ".join(standings.texts[row].split())
            show(f"  {standings.means[row]:6.2f}  {text}{times}{'' if keep[row] else ' (out)'}")

    answer = next(answers([prompt_of(QUESTION, 0)], server, utility=ChrF(), watch=show_step))
    show(f"\nAnswer: {answer.text}")
    cost = answer.receipt
    show(
        f"{answer.draws} of at most 16 draws ({cost.cut} cut), stopped by: {answer.stopped}; {cost.tokens_in} + "
        f"{cost.tokens_out} tokens, {cost.seconds:.1f} s. The same with your server: mbrace answer --server URL"
    )
    server.close()
