"""`mbrace demo --translate`: German to English with the bundled translator, by beam search and two presets of MBR."""

from __future__ import annotations

import argparse
import time
from typing import Any

SENTENCES = (
    "Der alte Mann liest am Morgen gerne die Zeitung in seinem Garten.",
    "Wir müssen die Debatte über den Haushalt auf die nächste Woche verschieben.",
    "Als ich nach Hause kam, war die Tür offen und niemand da.",
    "Die Kommission wird dem Parlament noch in diesem Jahr einen Vorschlag vorlegen.",
    "Der Zug nach Hamburg hat heute wegen des Sturms zwei Stunden Verspätung.",
)
BEAM = 64
PRESETS = ("paper", "fast")


def missing() -> str | None:
    """Why the demo cannot run, or None if it can."""
    from importlib.util import find_spec

    needed = ("torch", "transformers", "sentencepiece", "safetensors", "mbrace_de_en")
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed; pip install 'mbrace[models]' installs what is needed"
    return None


def show(console: Any) -> None:
    """Translate by beam search and as `mbrace translate --preset` does, each timed end to end."""
    from rich.table import Table

    from mbrace import Seq2Seq
    from mbrace.cli.labelled_texts import print_labelled

    model = Seq2Seq()
    sources = list(SENTENCES)
    model.beam(sources[:1], k=2)  # warm up
    started = time.perf_counter()
    beams = [found.texts[0] for found in model.beam(sources, k=5)]
    methods = [("beam search, 5", beams, "", "", time.perf_counter() - started)]
    for preset in PRESETS:
        texts, calls, drawn, seconds = _translate(model, sources, preset)
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
        print_labelled(console, ("source", "dim", source, ""), *lines)
    console.print("\nTry next:", style="bold")
    for command in (
        'echo "Guten Morgen." | mbrace translate --preset fast',
        "mbrace generate GERMAN.txt -o candidates.jsonl",
        "mbrace doctor",
    ):
        console.print(f"  {command}", markup=False, highlight=False)


def _translate(model: Any, sources: list[str], preset: str) -> tuple[list[str], int, int, float]:
    """What the command with this preset does: (texts, utility calls, pseudo-references drawn, seconds)."""
    from dataclasses import replace

    from mbrace.cli.presets import apply_preset
    from mbrace.cli.translate import add, job_from

    parser = argparse.ArgumentParser(allow_abbrev=False)
    add(parser.add_subparsers())
    args = parser.parse_args(["translate", "--preset", preset, "--beam", str(BEAM)])
    apply_preset(args, "translate")
    job = replace(job_from(args), model=model)  # loaded once
    started = time.perf_counter()
    worker = job.start(0)
    answers = list(worker.races.answers(worker.hypotheses.records(sources, name="demo")))
    seconds = time.perf_counter() - started
    calls = sum(answer.utility_calls for answer in answers)
    return [answer.text for answer in answers], calls, worker.sampler.drawn, seconds
