"""`mbrace demo`: bundled newstest candidates by beam search, standard MBR and racing, and one race to watch; with
--translate, German to English with the bundled translator."""

from __future__ import annotations

import argparse
import time
from importlib import resources
from typing import Any

from mbrace.cli.messages import show
from mbrace.errors import UserError

BUNDLED = "newstest.jsonl.xz"
WATCHED = "de-en.test.14"  # the race that is shown: it ends early, and MBR says more than beam search
SENTENCES = (
    "Der alte Mann liest am Morgen gerne die Zeitung in seinem Garten.",
    "Wir müssen die Debatte über den Haushalt auf die nächste Woche verschieben.",
    "Als ich nach Hause kam, war die Tür offen und niemand da.",
    "Die Kommission wird dem Parlament noch in diesem Jahr einen Vorschlag vorlegen.",
    "Der Zug nach Hamburg hat heute wegen des Sturms zwei Stunden Verspätung.",
)
BEAM = 64
PRESETS = ("paper", "fast")


def add(commands: Any) -> None:
    """The options of `mbrace demo`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="watch a race and compare racing with standard MBR, on bundled candidates",
        description="Decode bundled candidates: news translated from German, 256 hypotheses and 256 pseudo-references "
        "per sentence.",
    )
    parser.add_argument("--sentences", type=int, default=48, metavar="N", help="sentences to decode (default: all 48)")
    parser.add_argument("--examples", type=int, default=3, metavar="N", help="decisions to show (default: 3)")
    parser.add_argument("--plain", action="store_true", help="lines instead of an animation, even on a terminal")
    parser.add_argument("--translate", action="store_true", help="translate with the bundled model instead")
    parser.add_argument("--answer", action="store_true", help="race answers of a small language model (mbrace[llm])")
    parser.add_argument("--save", metavar="FILE", help="only write the bundled candidates to FILE.jsonl.xz")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show a race, decisions, and what racing saves."""
    if args.sentences < 1:
        raise UserError(f"--sentences {args.sentences}: must be 1 or more")
    if args.examples < 0:
        raise UserError(f"--examples {args.examples}: must be 0 or more")
    if args.translate and args.save is not None:
        raise UserError("--translate and --save: give one of them")
    if args.answer:
        from rich.console import Console

        from mbrace.cli.demo_answer import show_answers

        if args.translate or args.save is not None:
            raise UserError("--answer, --translate and --save: give one of them")
        show_answers(Console())
        return 0
    if args.save is not None:
        return _save(args.save)
    if args.translate:
        return _translate()
    from rich.console import Console

    from mbrace import ChrF
    from mbrace.cli.race_picture import show_race
    from mbrace.io.candidates import read_records

    console = Console()
    with resources.as_file(_bundled()) as file:
        records = list(read_records(str(file)))
    utility = ChrF()
    watched = next(record for record in records if record.id == WATCHED)
    show_race(console, watched, utility, plain=args.plain)
    records = records[: args.sentences]
    answers = _compare(console, records, utility)
    _examples(console, records, answers, utility, args.examples)
    _explain(console)
    return 0


def _compare(console: Any, records: list[Any], utility: Any) -> list[Any]:
    """Print a table of beam search, standard MBR and three pruning functions; returns the answers of alpha 0.99."""
    from rich.table import Table

    from mbrace import Bottom, Confidence, decode_corpus

    rules: list[tuple[str, Any]] = [
        ("standard MBR", None),
        ("beta 0.5", Bottom(0.5)),
        ("alpha 0.99", Confidence(0.99)),
        ("alpha 0.9", Confidence(0.9)),
    ]
    references = [record.reference or "" for record in records]
    table = Table(title=f"{len(records)} sentences of newstest2018, German to English, chrF++")
    for heading in ("decoding", "agrees", "chrF++", "utility calls", "saved", "refs", "seconds"):
        table.add_column(heading, justify="left" if heading == "decoding" else "right", no_wrap=True)
    first = utility.pairs([record.hypotheses[0] for record in records], references)
    table.add_row("beam search", "", f"{first.mean():.2f}", "", "", "", "")
    list(decode_corpus(records[:1], utility=utility))  # warm up
    answers: dict[str, list[Any]] = {}
    for name, prune in rules:
        started = time.perf_counter()
        answers[name] = list(decode_corpus(records, utility=utility, prune=prune))
        seconds = time.perf_counter() - started
        found, standard = answers[name], answers["standard MBR"]
        calls = sum(answer.utility_calls for answer in found)
        full = sum(answer.utility_calls for answer in standard)
        same = sum(a.text == b.text for a, b in zip(found, standard, strict=True))
        table.add_row(
            name,
            f"{same}/{len(records)}",
            f"{utility.pairs([answer.text for answer in found], references).mean():.2f}",
            f"{calls:,}",
            f"{full / calls:.1f}x",
            f"{sum(a.pseudo_references for a in found) / len(found):.0f}",
            f"{seconds:.3f}",
        )
    console.print()
    console.print(table)
    console.print("agrees: with standard MBR; chrF++: mean against the human references, the metric that also decoded")
    return answers["alpha 0.99"]


def _examples(console: Any, records: list[Any], answers: list[Any], utility: Any, count: int) -> None:
    """Show the answers that gained most by the human reference, and how many gained and lost."""
    references = [record.reference or "" for record in records]
    before = utility.pairs([record.hypotheses[0] for record in records], references)
    after = utility.pairs([answer.text for answer in answers], references)
    gains = after - before
    console.print(
        f"\nMBR's answer is closer to the human reference than beam search's in {int((gains > 0).sum())} of "
        f"{len(records)} sentences, further from it in {int((gains < 0).sum())}."
    )
    shown = [place for place in gains.argsort(kind="stable")[::-1].tolist() if gains[place] > 0][:count]
    if shown:
        console.print("The largest gains:")
    for place in shown:
        record, answer = records[place], answers[place]
        survivors = " > ".join([str(len(record.hypotheses)), *(str(step.survivors) for step in answer.steps)])
        _print_labelled(
            console,
            ("source", "dim", record.source, ""),
            ("beam search", "dim", f"{record.hypotheses[0]}  ({before[place]:.0f})", ""),
            ("MBR", "bold green", f"{answer.text}  ({after[place]:.0f})", "bold"),
            ("reference", "dim", record.reference, ""),
            ("survivors", "dim", f"{survivors}, expected utility {answer.utility:.2f}", "dim"),
        )


def _explain(console: Any) -> None:
    """Why the seconds did not fall with the calls, and what to try next."""
    console.print(
        "\nFewer calls, but not fewer seconds? A call of chrF++ is a few bit operations here; most of the time goes "
        "into preparing the strings, which standard MBR must do as well. Calls are the seconds where each is a pass of "
        "a large network (XCOMET, MetricX) or a question to a judge: there racing can be many times as fast.",
        highlight=False,
    )
    console.print("\nTry next:", style="bold")
    for command, what in (
        ("mbrace demo --translate", "the bundled translator"),
        ("mbrace demo --save news.jsonl.xz", "these candidates"),
        (f"mbrace decode news.jsonl.xz --explain {WATCHED}", "that race, step by step"),
    ):
        console.print(f"  {command:<53}{what}", markup=False, highlight=False, soft_wrap=True)


def _bundled() -> Any:
    return resources.files("mbrace") / "data" / BUNDLED


def _save(path: str) -> int:
    """Write the bundled candidates to a new file."""
    from pathlib import Path

    from mbrace.io.atomic import write_file

    if not path.endswith(".jsonl.xz"):
        raise UserError(f"--save {path}: the file is compressed with xz; give a name that ends with .jsonl.xz")
    if Path(path).exists():
        raise UserError(f"--save {path}: exists; give another name")
    write_file(path, _bundled().read_bytes())
    show(f"{path}: 48 sentences, each with 256 hypotheses and 256 pseudo-references")
    return 0


def _translate() -> int:
    from rich.console import Console

    reason = _missing()
    if reason is None:
        _show_translating(Console())
    else:
        show(f"mbrace demo --translate: skipped ({reason})")
    return 0


def _missing() -> str | None:
    """Why the demo cannot run, or None if it can."""
    from importlib.util import find_spec

    needed = ("torch", "transformers", "sentencepiece", "safetensors", "mbrace_de_en")
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed; pip install 'mbrace[models]' installs what is needed"
    return None


def _show_translating(console: Any) -> None:
    """Translate by beam search and as `mbrace translate --preset` does, each timed end to end."""
    from rich.table import Table

    from mbrace import Seq2Seq

    model = Seq2Seq()
    sources = list(SENTENCES)
    model.beam(sources[:1], k=2)  # warm up
    started = time.perf_counter()
    beams = [found.texts[0] for found in model.beam(sources, k=5)]
    methods = [("beam search, 5", beams, "", "", time.perf_counter() - started)]
    for preset in PRESETS:
        texts, calls, drawn, seconds = _translate_by(model, sources, preset)
        methods.append((f"--preset {preset}", texts, f"{calls:,}", f"{drawn:,}", seconds))
    table = Table(title=f"mbrace translate with the bundled translator, --beam {BEAM}, chrF++")
    for heading in ("decoding", "utility calls", "refs drawn", "seconds", "seconds per sentence"):
        table.add_column(heading, justify="left" if heading == "decoding" else "right", no_wrap=True)
    for name, _, calls_, drawn_, seconds in methods:
        table.add_row(name, calls_, drawn_, f"{seconds:.2f}", f"{seconds / len(sources):.2f}")
    console.print(table)
    console.print("paper: the paper's settings; fast: draws spread evenly, and a race ends when little is at stake")
    for index, source in enumerate(sources):
        lines = [(name, "bold green" if "preset" in name else "dim", texts[index], "") for name, texts, *_ in methods]
        _print_labelled(console, ("source", "dim", source, ""), *lines)
    console.print("\nTry next:", style="bold")
    for command in (
        'echo "Guten Morgen." | mbrace translate --preset fast',
        "mbrace generate GERMAN.txt -o candidates.jsonl",
        "mbrace doctor",
    ):
        console.print(f"  {command}", markup=False, highlight=False)


def _translate_by(model: Any, sources: list[str], preset: str) -> tuple[list[str], int, int, float]:
    """What `mbrace translate` with this preset does: (texts, utility calls, pseudo-references drawn, seconds)."""
    from mbrace.jobs.decode import DecodeJob
    from mbrace.jobs.translate import TranslateJob
    from mbrace.settings import Race, Sampling, with_preset

    race, sampling = with_preset(preset, "translate", "string", {}, {"beam": BEAM})
    job = TranslateJob(model, Sampling(**sampling), DecodeJob("chrf++", Race(**race)))
    started = time.perf_counter()
    worker = job.start(0)
    answers = list(worker.races.answers(worker.hypotheses.records(sources, name="demo")))
    seconds = time.perf_counter() - started
    calls = sum(answer.utility_calls for answer in answers)
    return [answer.text for answer in answers], calls, worker.sampler.drawn, seconds


def _print_labelled(console: Any, *lines: tuple[str, str, str | None, str]) -> None:
    """Print lines of (label, style, text, style). Texts are printed word for word, and wrap next to their labels."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, label_style, text, style in lines:
        grid.add_row(Text(label, label_style), Text(text or "", style))
    console.print()
    console.print(grid)
