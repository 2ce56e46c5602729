"""One race of `mbrace demo`: a picture per time step on a terminal, a line per time step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mbrace.cli.explain import cut, printable
from mbrace.errors import counted
from mbrace.prune import Confidence
from mbrace.records import Record
from mbrace.result import Decoded, RaceRecorder, RecordedStep

SECONDS_PER_STEP = 1.2  # long enough to read the leader
DOTS_PER_LINE = 64
SHOWN = 4  # hypotheses under the dots
UNICODE, ASCII = ("●", "○", "·"), ("#", "x", ".")  # racing, dropped now, dropped before


@dataclass(frozen=True)
class Frame:
    """The hypotheses at a time step, numbered among the `total` distinct ones; step 0 is the start."""

    step: int
    total: int
    pseudo_references: int  # drawn so far
    alive: frozenset[int]  # before the decision of the step
    kept: frozenset[int]  # after it
    best: tuple[tuple[float, str], ...]  # expected utilities and texts of the first few that are left, best first
    utility_calls: int  # so far


def race_frames(record: Record, answer: Decoded, steps: Sequence[RecordedStep]) -> list[Frame]:
    """A frame for the start and one for every time step."""
    total = len(set(record.hypotheses))
    everyone = frozenset(range(total))
    frames, calls = [Frame(0, total, 0, everyone, everyone, (), 0)], 0
    for number, (step, cost) in enumerate(zip(steps, answer.steps, strict=True), 1):
        calls += cost.utility_calls
        ranking = [place for place in np.argsort(-step.means, kind="stable").tolist() if step.kept[place]]
        best = tuple((float(step.means[place]), step.texts[place]) for place in ranking[:SHOWN])
        alive, kept = frozenset(step.alive.tolist()), frozenset(step.alive[step.kept].tolist())
        frames.append(Frame(number, total, step.pseudo_references, alive, kept, best, calls))
    return frames


def show_race(console: Any, record: Record, utility: Any, *, plain: bool) -> None:
    """Race one record with confidence pruning and show how it went."""
    from mbrace.api import decode_corpus

    prune = Confidence(0.99)
    recorder = RaceRecorder(prune)
    [answer] = decode_corpus([record], utility=utility, prune=prune, watch=recorder)
    frames = race_frames(record, answer, recorder.steps)
    texts = {"markup": False, "highlight": False}
    console.print(
        f"One race: {len(record.hypotheses)} hypotheses of beam search, alpha 0.99, chrF++", style="bold", **texts
    )
    console.print(f"source: {record.source}", **texts)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        for line in plain_lines(frames):
            console.print(line, **texts, soft_wrap=True)
    else:
        _animate(console, frames)
    console.print(f"answer: {answer.text}", style="bold green", **texts)
    standard = len(record.hypotheses) * len(record.listed() or ())  # type: ignore[arg-type]
    console.print(
        f"{counted(answer.utility_calls, 'utility call')}; standard MBR: {standard:,}", style="dim", highlight=False
    )


def plain_lines(frames: Sequence[Frame]) -> Iterator[str]:
    """A line per time step."""
    for frame in frames[1:]:
        leader = f"leader {frame.best[0][0]:.1f}: {printable(frame.best[0][1])}"
        yield f"{_heading(frame)}, {leader}"


def picture(frame: Frame, *, width: int, dots: tuple[str, str, str] = UNICODE) -> Any:
    """A frame as rich text of `width` columns and a fixed number of lines: a dot per hypothesis, then the leaders."""
    from rich.text import Text

    racing, dropped, gone = dots
    calls = "" if frame.step == 0 else f", {counted(frame.utility_calls, 'utility call')}"
    shown = Text().append(f"{_heading(frame)}{calls}\n", "bold")
    for place in range(frame.total):
        if place in frame.kept:
            shown.append(racing, "green")
        elif place in frame.alive:
            shown.append(dropped, "red")
        else:
            shown.append(gone, "dim")
        if (place + 1) % min(DOTS_PER_LINE, width) == 0:
            shown.append("\n")
    shown.append("\n")
    for rank in range(SHOWN):
        if rank < len(frame.best):
            mean, text = frame.best[rank]
            shown.append(f"{mean:6.1f}  {cut(text, width - 9)}", "bold green" if rank == 0 else "")
        shown.append("\n")
    return shown


def _heading(frame: Frame) -> str:
    if frame.step == 0:
        return f"start: {counted(frame.total, 'different hypothesis', 'different hypotheses')}, a dot for each"
    left = f"{len(frame.alive)} -> {counted(len(frame.kept), 'hypothesis', 'hypotheses')}"
    return f"step {frame.step}: {counted(frame.pseudo_references, 'pseudo-reference')}, {left}"


def _animate(console: Any, frames: Sequence[Frame]) -> None:
    """Show the frames one after another, each in place of the one before; the last one stays."""
    from rich.live import Live

    dots = UNICODE if console.encoding.lower().startswith("utf") else ASCII
    pictures = [picture(frame, width=min(console.width, 100), dots=dots) for frame in frames]
    with Live(pictures[0], console=console, auto_refresh=False) as live:
        for shown in pictures[1:]:
            live.refresh()
            time.sleep(SECONDS_PER_STEP)
            live.update(shown)
        live.refresh()
