"""Draw a recorded race: `python docs/race_pictures.py` writes docs/pictures/race.svg, which moves, and one_race.svg.

The race is one of those that `mbrace experiment` recorded for its report: real candidates, the learned metric, alpha
0.99. Both pictures follow the reader's light or dark setting; the moving one stands still, at its end, for readers who
ask for less motion.
"""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RACES = ROOT / "docs" / "pictures" / "race.json.gz"
SENTENCE, ALPHA = "de-en.valid.72", "0.99"
SECONDS_PER_STEP, SECONDS_AT_END = 1.6, 3.2
COLOURS = """
  :root { --ink: #1d2733; --quiet: #5d6b7a; --faint: #d9dfe5; --alive: #0b7a75; --winner: #c2410c; --paper: #ffffff; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e8edf2; --quiet: #9fb0c0; --faint: #38434f; --alive: #2fb8ae; --winner: #fb923c; --paper: #12181f; }
  }
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
  .quiet { fill: var(--quiet); } .winner { fill: var(--winner); } .number { font-variant-numeric: tabular-nums; }
"""


@dataclass(frozen=True)
class Step:
    """A time step: pseudo-references so far, expected utility of everyone scored in it, who is left, calls so far."""

    pseudo_references: int
    utilities: dict[int, float]
    survivors: list[int]
    utility_calls: int


@dataclass(frozen=True)
class Race:
    """A recorded race."""

    source: str
    hypotheses: list[str]
    steps: list[Step]
    answer: int


def main() -> None:
    """Write both pictures."""
    race = recorded()
    pictures = ROOT / "docs" / "pictures"
    pictures.mkdir(exist_ok=True)
    (pictures / "race.svg").write_text(moving(race), encoding="utf-8")
    (pictures / "one_race.svg").write_text(lines(race), encoding="utf-8")


def recorded(path: Path = RACES) -> Race:
    """The race that is drawn."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        sentences: list[dict[str, Any]] = json.load(file)["sentences"]
    [sentence] = [sentence for sentence in sentences if sentence["id"] == SENTENCE]
    steps, calls, drawn = [], 0, 0
    for step in sentence["races"][ALPHA]["steps"]:
        calls += len(step["alive"]) * (step["pseudo_references"] - drawn)
        drawn = step["pseudo_references"]
        utilities = dict(zip(step["alive"], step["means"], strict=True))
        steps.append(Step(drawn, utilities, [step["alive"][row] for row in step["kept"]], calls))
    return Race(sentence["source"], sentence["hypotheses"], steps, sentence["races"][ALPHA]["answer"])


def moving(race: Race) -> str:
    """A dot for every hypothesis, which goes out when it is pruned, and the leaders after each step."""
    count = len(race.steps)
    total = SECONDS_PER_STEP * (count + 1) + SECONDS_AT_END
    starts = [100 * SECONDS_PER_STEP * index / total for index in range(count + 2)]
    style = [COLOURS, f"  .frame, .dot {{ animation-duration: {total:g}s; animation-iteration-count: infinite; }}"]
    style += ["  .frame { visibility: hidden; }", "  .dot { fill: var(--alive); }"]
    for index in range(count + 1):
        begin, end = starts[index], 100.0 if index == count else starts[index + 1]
        style.append(f"  .f{index} {{ animation-name: f{index}; animation-timing-function: step-end; }}")
        before = "" if index == 0 else "0% { visibility: hidden } "
        after = "" if index == count else f" {end:.3f}% {{ visibility: hidden }}"
        style.append(f"  @keyframes f{index} {{ {before}{begin:.3f}% {{ visibility: visible }}{after} }}")
        if index:
            fade = min(begin + 3, 100)
            style.append(f"  .d{index} {{ animation-name: d{index}; }}")
            style.append(
                f"  @keyframes d{index} {{ 0%, {begin:.3f}% {{ fill: var(--alive) }} "
                f"{begin + 0.5:.3f}% {{ fill: var(--winner) }} {fade:.3f}%, 100% {{ fill: var(--faint) }} }}"
            )
    style.append(f"  .best {{ animation: best {total:g}s infinite; }}")
    style.append(
        f"  @keyframes best {{ 0%, {starts[count]:.3f}% {{ fill: var(--alive) }} "
        f"{starts[count] + 0.5:.3f}%, 100% {{ fill: var(--winner) }} }}"
    )
    style.append("  @media (prefers-reduced-motion: reduce) { * { animation: none !important; }")
    style.append(f"    .f{count} {{ visibility: visible; }} [class*=' d'] {{ fill: var(--faint); }}")
    style.append("    .best { fill: var(--winner); } }")
    width, height = 880, 380
    parts = [
        _open(width, height, "A race of 256 hypotheses", style),
        _text(32, 44, race.source, size=19, weight=600),
        _text(32, 68, f"{len(race.hypotheses)} hypotheses; a dot goes out when its hypothesis is pruned", "quiet", 14),
    ]
    dropped = {
        row: index for index, step in enumerate(race.steps, 1) for row in set(step.utilities) - set(step.survivors)
    }
    for row in range(len(race.hypotheses)):
        x, y = 40 + 16 * (row % 16), 100 + 16 * (row // 16)
        kind = "best" if row == race.answer else f"dot d{dropped[row]}" if row in dropped else "dot"
        radius = 6.5 if row == race.answer else 5
        parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="{radius}"/>')
    full = len(race.hypotheses) * race.steps[-1].pseudo_references
    for index in range(count + 1):
        parts.append(f'<g class="frame f{index}">')
        parts += _frame(race, index, full)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _frame(race: Race, index: int, full: int) -> list[str]:
    """What is next to the dots after so many steps."""
    left, step = 318, race.steps[index - 1] if index else None
    drawn, alive, calls = (
        (step.pseudo_references, len(step.survivors), step.utility_calls) if step else (0, len(race.hypotheses), 0)
    )
    parts = []
    for x, value, what in (
        (left, drawn, "pseudo-references"),
        (left + 180, alive, "in the race"),
        (left + 320, calls, "utility calls"),
    ):
        parts.append(_text(x, 128, f"{value:,}", "number", 30, 600))
        parts.append(_text(x, 150, what, "quiet", 14))
    bar = 530
    for length, colour in ((bar, "faint"), (max(2, bar * calls / full), "alive")):
        shape = f'x="{left}" y="168" width="{length:.1f}" height="8" rx="4"'
        parts.append(f'<rect {shape} style="fill: var(--{colour})"/>')
    parts.append(_text(left, 194, f"of {full:,} calls of standard MBR", "quiet", 13))
    if step is None:
        return [*parts, _text(left, 236, "The race begins ...", "quiet", 15)]
    last = index == len(race.steps)
    leaders = sorted(step.survivors, key=lambda row: -step.utilities[row])[: 1 if last else 4]
    if last:
        parts.append(_text(left, 244, "The answer:", "quiet", 15))
        parts.append(_text(left, 272, race.hypotheses[leaders[0]], "winner", 14, 600))
        parts.append(_text(left, 300, f"{full / calls:.0f} times fewer calls than scoring every pair", "quiet", 14))
        return parts
    parts.append(_text(left, 228, "Ahead now (expected utility):", "quiet", 14))
    for place, row in enumerate(leaders):
        y = 254 + 28 * place
        parts.append(_text(left, y, f"{step.utilities[row]:.3f}", "number quiet", 13))
        parts.append(_text(left + 50, y, _short(race.hypotheses[row], 62), "", 13))
    return parts


def lines(race: Race) -> str:
    """A line for every hypothesis, up to the step at which it was pruned."""
    width, height, left, right, top, bottom = 880, 470, 76, 852, 64, 404
    first, last = race.steps[0].pseudo_references, race.steps[-1].pseudo_references
    values = sorted(value for step in race.steps for value in step.utilities.values())
    low, high = values[len(values) // 50], values[-1]  # the worst are cut off, to see the others

    def place(pseudo_references: int, utility: float) -> str:
        x = left + (right - left) * math.log2(pseudo_references / first) / math.log2(last / first)
        return f"{x:.1f},{bottom - (bottom - top) * (max(utility, low) - low) / (high - low):.1f}"

    style = [COLOURS, "  .line { fill: none; stroke: var(--alive); stroke-opacity: .45; stroke-width: 1.2; }"]
    style += [
        "  .dropped { stroke: var(--quiet); stroke-opacity: .35; }",
        "  .end { fill: var(--quiet); fill-opacity: .5; }",
    ]
    style += ["  .best { fill: none; stroke: var(--winner); stroke-width: 3; }", "  .grid { stroke: var(--faint); }"]
    parts = [_open(width, height, "Expected utility of every hypothesis of one race", style)]
    parts.append(_text(left, 28, race.source, size=16, weight=600))
    parts.append(_text(left, 49, "expected utility", "quiet", 13))
    for step in race.steps:
        x = place(step.pseudo_references, low).split(",")[0]
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        parts.append(_text(x, 424, step.pseudo_references, "number", 13, anchor="middle"))
        parts.append(_text(x, 444, f"{len(step.survivors)} left", "quiet number", 13, anchor="middle"))
    parts.append(
        _text(
            (left + right) / 2,
            463,
            "pseudo-references drawn, and hypotheses left after pruning",
            "quiet",
            13,
            anchor="middle",
        )
    )
    for share in (0, 0.5, 1):
        value = low + share * (high - low)
        parts.append(
            _text(
                left - 12,
                float(place(first, value).split(",")[1]) + 4,
                f"{value:.2f}",
                "quiet number",
                12,
                anchor="end",
            )
        )
    paths = {
        row: [(s.pseudo_references, s.utilities[row]) for s in race.steps if row in s.utilities]
        for row in range(len(race.hypotheses))
    }
    for row, path in sorted(paths.items(), key=lambda item: len(item[1])):
        points = [place(*point) for point in path]
        if len(points) == 1:  # dropped at the first step: a point
            x, y = points[0].split(",")
            parts.append(f'<circle class="end" cx="{x}" cy="{y}" r="2"/>')
        elif row != race.answer:
            kind = "line" if row in race.steps[-1].utilities else "line dropped"
            parts.append(f'<polyline class="{kind}" points="{" ".join(points)}"/>')
    best = [place(*point) for point in paths[race.answer]]
    parts.append(f'<polyline class="best" points="{" ".join(best)}"/>')
    y = float(best[-1].split(",")[1])
    parts.append(_text(right, y + 84, race.hypotheses[race.answer], "winner", 14, 600, anchor="end"))
    return "\n".join([*parts, "</svg>", ""])


def _open(width: int, height: int, title: str, style: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n'
        f"<style>\n{chr(10).join(style)}\n</style>\n"
        f'<rect width="{width}" height="{height}" rx="10" style="fill: var(--paper)"/>'
    )


def _text(
    x: Any, y: float, text: object, kind: str = "", size: int = 14, weight: int = 400, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x}" y="{y:g}" class="{kind}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(str(text))}</text>"
    )


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


if __name__ == "__main__":
    main()
