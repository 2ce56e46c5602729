"""Which method is recommended in which situation, by a rule that was written before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mbrace.experiments.methods import ARITHMETIC, STANDARD, is_arithmetic, way_of
from mbrace.experiments.strings import MARGIN
from mbrace.wording import counted

LOST = "utility lost"
FEWEST = 30  # sentences that a table must have to recommend anything


class Situation(NamedTuple):
    """What is expensive. Of the methods that lose nothing, the one with the lowest `cost` is recommended."""

    name: str
    cost: str
    unit: str
    any_utility: bool = False  # only methods that work with a utility that can only score pairs


CHEAP = Situation("cheap utility", "seconds", "ms per sentence")
ENCODER = Situation("encoder", "seconds", "ms per sentence")
CROSS = Situation("cross-encoder or judge", "utility_calls", "calls", any_utility=True)
GENERATION = Situation("generating is dear", "drawn", "strings drawn")


def recommended(rows: Sequence[Mapping[str, Any]], situation: Situation) -> Mapping[str, Any] | None:
    """The rule: of the ways whose loss of utility is shown to be below the margin, and whose score against the human
    reference has not fallen by any metric, the one that costs the least in this situation."""
    able = [row for row in rows if way_of(row).any_utility or not situation.any_utility]
    safe = [row for row in able if row[f"{LOST} low"] >= -MARGIN and not _fallen(row)]
    return min(safe, key=lambda row: (_cost(rows, row, situation.cost), _cost(rows, row, "seconds"))) if safe else None


def _cost(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], cost: str) -> float:
    """What a way costs, to compare it with others. Arithmetic draws are timed in a separate run, perhaps on a busier
    machine, so time is compared as a share of standard MBR's in the same run."""
    return float(row[cost] / _standard_of_same_run(rows, row)[cost] if cost == "seconds" else row[cost])


def _standard_of_same_run(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of standard MBR from the run that a row is from."""
    name = STANDARD.name + (ARITHMETIC if row["way"].endswith(ARITHMETIC) else "")
    return next(other for other in rows if other["way"] == name)


def recommendation(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A recommendation for each situation that a table says something about."""
    standard = next(row for row in rows if row["way"] == STANDARD.name)
    if standard["sentences"] < FEWEST:
        return [f"no recommendation: {counted(standard['sentences'], 'sentence')}, and it takes {FEWEST} or more"]
    first = ENCODER if standard["embeds"] else CHEAP
    said = []
    for situation in (first, CROSS, GENERATION):
        best = recommended(rows, situation)
        if best is None:  # not even standard MBR: its own loss is 0, so it is always safe
            continue
        factor = 1000 if situation.cost == "seconds" else 1
        same_run = _standard_of_same_run(rows, best) if situation.cost == "seconds" else standard
        cost, full = best[situation.cost] * factor, same_run[situation.cost] * factor
        options = f"`{'--sampling arithmetic ' if is_arithmetic(best) else ''}{way_of(best).options}`"
        compared = f"{short(cost)} {situation.unit} instead of {short(full)}"
        if best["way"] == STANDARD.name:
            compared = "nothing cheaper was shown to lose nothing"
        said.append(f"{situation.name}: {best['way']} ({options}), {compared}")
    return said


def _fallen(row: Mapping[str, Any]) -> bool:
    ends = [value for name, value in row.items() if name.startswith("human ") and name.endswith(" change high")]
    return any(high < 0 for high in ends)


def short(value: float) -> str:
    """A number with three digits, or whole from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
