"""The paper's figures as data: drawn by `page/charts.js` in report.html and by `figures.py` as files.

A chart has axes (`x`, `y`: title, and where needed `log`, `ticks`, `low`, `high`), `series` of points and horizontal
`lines`. A point has `x` and `y`, and where it has them `low` and `high` (its interval), `label` and `more` (shown with
it). A series has a `style`, a class of report.css that gives its colour; charts.js gives each style a marker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mbrace.experiments.studies import Row, grouped

Chart: TypeAlias = dict[str, Any]
MEASURES = {"accuracy": "exact accuracy", "rr": "reciprocal rank", "score": "score against the reference"}
CALLS = "utility calls per sentence (log scale)"
# The paper cuts its x axes for better visual comparison; we cut them so far beyond the most careful race.
CUT = 1.6


def charts(rows: Mapping[str, Sequence[Row]]) -> dict[str, Chart]:
    """Every chart of the page, by name and what is chosen: `tradeoff|de-en|chrF++|accuracy`."""
    found: dict[str, Chart] = {}
    for (pair, utility), own in grouped(rows["false_pruning"], "pair", "utility").items():
        found[f"false_pruning|{pair}|{utility}"] = false_pruning(own)
    for (pair, utility), own in grouped(rows["tradeoff"], "pair", "utility").items():
        for measure in (name for name in MEASURES if all(name in row for row in own)):
            found[f"tradeoff|{pair}|{utility}|{measure}"] = tradeoff(own, measure)
    for (pair, utility), own in grouped(rows["survivors"], "pair", "utility").items():
        found[f"survivors|{pair}|{utility}"] = survivors(own)
    return found


def _point(x: float, y: float, low: float | None = None, high: float | None = None, **words: str) -> dict[str, Any]:
    numbers = {"x": x, "y": y, "low": low, "high": high}
    return {name: float(f"{value:.5g}") for name, value in numbers.items() if value is not None} | words


def _alpha_series(rows: Sequence[Row], points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of `rows` as a series for each alpha."""
    alphas = sorted({row["alpha"] for row in rows})
    return [
        {
            "name": f"alpha {alpha:g}",
            "style": f"alpha{round(100 * alpha)}",
            "joined": True,
            "points": [point for row, point in zip(rows, points, strict=True) if row["alpha"] == alpha],
        }
        for alpha in alphas
    ]


def false_pruning(rows: Sequence[Row]) -> Chart:
    """Figure 1: how often one application of the rule loses the winner, for one pair and utility."""
    points = [_point(row["pseudo_references"], row["rate"], row["low"], row["high"]) for row in rows]
    series = [one | {"band": True} for one in _alpha_series(rows, points)]
    worst = max(rows, key=lambda row: row["rate"])
    return {
        "x": {"title": "pseudo-references |R| (log scale)", "log": True, "ticks": [4, 8, 16, 32, 64]},
        "y": {"title": "false pruning rate", "low": 0},
        "series": series,
        "describes": f"False pruning rate against the number of pseudo-references, a line per alpha; at most "
        f"{worst['rate']:.3f}, at {worst['pseudo_references']} pseudo-references and alpha {worst['alpha']:g}.",
    }


def cut_at(rows: Sequence[Row]) -> float:
    """Where the x axis of a trade-off ends: betas further right only approach standard MBR."""
    return CUT * max(float(row["utility_calls"]) for row in rows if row["rule"] == "alpha")


def tradeoff(rows: Sequence[Row], measure: str) -> Chart:
    """Figure 2, one measure of one pair and utility; intervals are of the paired difference from standard MBR."""
    standard = next(row for row in rows if row["rule"] == "beta" and row["value"] == 0)
    end = cut_at(rows)
    series = []
    for rule in ("alpha", "beta"):
        own = [row for row in rows if row["rule"] == rule and row["value"] > 0 and row["utility_calls"] <= end]
        points = [
            _point(
                row["utility_calls"],
                row[measure],
                *(standard[measure] + row[f"{measure}_minus_standard_{side}"] for side in ("low", "high")),
                label=f"{row['value']:g}",
                more=f"{row['pseudo_references']:.0f} pseudo-references",
            )
            for row in sorted(own, key=lambda row: float(row["utility_calls"]))
        ]
        series.append({"name": f"prune {rule}", "style": rule, "joined": True, "points": points})
    digits = 2 if measure == "score" else 3
    return {
        "x": {"title": CALLS, "log": True, "high": end},
        "y": {"title": MEASURES[measure], "digits": digits},
        "series": [one for one in series if one["points"]],
        "lines": [{"y": standard[measure], "name": f"standard MBR, {standard['utility_calls']:,.0f} calls"}],
        "describes": f"{MEASURES[measure].capitalize()} against utility calls for each alpha and beta; standard MBR "
        f"has {standard[measure]:.{digits}f} at {standard['utility_calls']:,.0f} calls.",
    }


def survivors(rows: Sequence[Row]) -> Chart:
    """Hypotheses left after each time step: points are means, intervals span the middle half."""
    points = [
        _point(row["pseudo_references"], row["mean"], row["q25"], row["q75"], more=f"median {row['median']:g}")
        for row in rows
    ]
    sizes = sorted({row["pseudo_references"] for row in rows})
    top = max(max(row["mean"], row["q75"]) for row in rows)
    ticks = [2**power for power in range(math.ceil(math.log2(max(top, 1))) + 1)]
    return {
        "x": {"title": "pseudo-references at the time step (log scale)", "log": True, "ticks": sizes},
        "y": {"title": "hypotheses left (log scale)", "log": True, "ticks": ticks, "low": 0.9, "digits": 1},
        "series": [one | {"dodge": True} for one in _alpha_series(rows, points)],
        "interval": "middle half",
        "describes": "Hypotheses left after each time step, a line per alpha: "
        + "; ".join(
            f"alpha {row['alpha']:g}: {row['mean']:.1f} after {row['pseudo_references']} pseudo-references"
            for row in rows
            if row["pseudo_references"] == sizes[0]
        )
        + ".",
    }
