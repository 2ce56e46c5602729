"""`mbrace demo --translate`: German to English with the bundled translator, three decoding methods side by side."""

from __future__ import annotations

import time
from typing import Any

SENTENCES = (
    "Der alte Mann liest am Morgen gerne die Zeitung in seinem Garten.",
    "Wir müssen die Debatte über den Haushalt auf die nächste Woche verschieben.",
    "Als ich nach Hause kam, war die Tür offen und niemand da.",
    "Die Kommission wird dem Parlament noch in diesem Jahr einen Vorschlag vorlegen.",
    "Der Zug nach Hamburg hat heute wegen des Sturms zwei Stunden Verspätung.",
)
BEAM, REFERENCES = 64, 256


def missing() -> str | None:
    """Why the demo cannot run, or None if it can."""
    from importlib.util import find_spec

    needed = ("torch", "transformers", "sentencepiece", "safetensors", "mbrace_de_en")
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed; pip install 'mbrace[models]' installs what is needed"
    return None


def show(console: Any) -> None:
    """Translate by beam search, standard MBR and racing MBR, each timed end to end."""
    from rich.table import Table

    from mbrace import Confidence, Seq2Seq
    from mbrace.cli.labelled_texts import print_labelled

    model = Seq2Seq()
    sources = list(SENTENCES)
    model.beam(sources[:1], k=2)  # warm up
    started = time.perf_counter()
    beams = [found.texts[0] for found in model.beam(sources, k=5)]
    rows: list[tuple[str, list[str], str, str, float]] = [("beam 5", beams, "", "", time.perf_counter() - started)]
    for name, prune, ahead in (("standard MBR", None, REFERENCES), ("racing MBR", Confidence(0.99), 0)):
        texts, calls, drawn, seconds = _decode(model, sources, prune, ahead)
        rows.append((name, texts, f"{calls:,}", f"{drawn:,}", seconds))
    table = Table(title=f"Bundled de-en translator, {BEAM} hypotheses, up to {REFERENCES} pseudo-references, chrF++")
    for heading in ("decoding", "utility calls", "refs drawn", "seconds", "seconds per sentence"):
        table.add_column(heading, justify="left" if heading == "decoding" else "right", no_wrap=True)
    for name, _, calls_, drawn_, seconds in rows:
        table.add_row(name, calls_, drawn_, f"{seconds:.2f}", f"{seconds / len(sources):.2f}")
    console.print(table)
    for index, source in enumerate(sources):
        lines = [(name, "bold green" if name == "racing MBR" else "dim", texts[index], "") for name, texts, *_ in rows]
        print_labelled(console, ("source", "dim", source, ""), *lines)


def _decode(model: Any, sources: list[str], prune: Any, ahead: int) -> tuple[list[str], int, int, float]:
    """Generate and race: (texts, utility calls, pseudo-references drawn, seconds)."""
    from mbrace import decode_corpus
    from mbrace.models.hypotheses import Hypothesiser, beam_hypotheses

    started = time.perf_counter()
    sampler = model.sampler(ahead=ahead)
    records = Hypothesiser(beam_hypotheses(model, BEAM)).records(sources, name="demo")
    answers = list(decode_corpus(records, prune=prune, sampler=sampler))
    calls = sum(answer.utility_calls for answer in answers)
    return [answer.text for answer in answers], calls, sampler.drawn, time.perf_counter() - started
