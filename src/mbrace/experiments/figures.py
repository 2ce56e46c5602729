"""The paper's figures: as data, which `page/charts.js` draws in report.html, and as SVG files of the same data, one per
utility with a panel per pair.

A chart has axes (`x`, `y`: title, and where needed `log`, `ticks`, `low`, `high`), `series` of points and horizontal
`lines`. A point has `x` and `y`, and where it has them `low` and `high` (its interval), `label` and `more` (shown with
it). A series has a `style`, a class of report.css that gives its colour; charts.js gives each style a marker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mbrace.errors import require
from mbrace.experiments.studies import Row, grouped
from mbrace.experiments.tables import slug

Chart: TypeAlias = dict[str, Any]
MEASURES = {"accuracy": "exact accuracy", "rr": "reciprocal rank", "score": "score by the decoding metric"}
SPLITS = {"valid": "validation", "test": "test", "all": "the only file"}
TITLES = {"false_pruning": "False pruning", "survivors": "Survivors", "tradeoff": "Speed against accuracy"}
CALLS = "utility calls per sentence (log scale)"
# The paper cuts its x axes for better visual comparison; ours end at this multiple of the most careful race's calls.
CUT = 1.6


def describe(utility: str) -> str:
    """The name of a utility, with an explanation where the name alone says little."""
    return f"{utility} (a small neural metric)" if utility.split(" ")[0] == "learned" else utility


def charts(rows: Mapping[str, Sequence[Row]]) -> dict[str, Chart]:
    """Every chart of the page, by name and what is chosen: `tradeoff|de-en|chrF++|accuracy`."""
    found: dict[str, Chart] = {}
    for study in TITLES:
        for (pair, utility), own in grouped(rows[study], "pair", "utility").items():
            if study == "tradeoff":
                found |= {f"{study}|{pair}|{utility}|{name}": chart_of(study, own, name) for name in measures_in(own)}
            else:
                found[f"{study}|{pair}|{utility}"] = chart_of(study, own)
    return found


def chart_of(study: str, rows: Sequence[Row], measure: str = "") -> Chart:
    """The chart of a study for one pair and utility; `measure`: of a trade-off."""
    if study == "tradeoff":
        return tradeoff(rows, measure)
    return {"false_pruning": false_pruning, "survivors": survivors}[study](rows)


def measures_in(rows: Sequence[Row]) -> list[str]:
    """The measures of a trade-off that all rows have: without human references there is no score."""
    return [measure for measure in MEASURES if all(measure in row for row in rows)]


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
    title = f"score by {rows[0]['utility']}" if measure == "score" else MEASURES[measure]
    return {
        "x": {"title": CALLS, "log": True, "high": end},
        "y": {"title": title, "digits": digits},
        "series": [one for one in series if one["points"]],
        "lines": [{"y": standard[measure], "name": f"standard MBR, {standard['utility_calls']:,.0f} calls"}],
        "describes": f"{title[0].upper()}{title[1:]} against utility calls for each alpha and beta; standard MBR "
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


# Colour and marker by the style of a series. Blue and orange can be told apart with any kind of colour vision; alphas
# are ordered, so they get shades of one hue.
SERIES = {
    "alpha": ("#0072b2", "o"),
    "beta": ("#d55e00", "s"),
    "alpha80": ("#4f9fd0", "o"),
    "alpha90": ("#2f83ba", "s"),
    "alpha95": ("#22689f", "^"),
    "alpha98": ("#184a7d", "D"),
    "alpha99": ("#0b2a55", "v"),
}
STYLE: dict[str, Any] = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "svg.hashsalt": "mbrace",
    "svg.fonttype": "none",
    "text.parse_math": False,  # names of files may have dollar signs
    "figure.constrained_layout.use": True,
}


def draw(rows: Mapping[str, Sequence[Row]], folder: Path) -> list[str]:
    """Draw every figure that there are rows for, per utility, as SVG; returns the names of the files."""
    require("matplotlib", extra="experiments").use("Agg")
    plt = require("matplotlib.pyplot", extra="experiments")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with plt.rc_context(STYLE):
        for study, title in TITLES.items():
            for (utility,), own in grouped(rows[study], "utility").items():
                figure = _figure(plt, study, f"{title}, {describe(utility)}", own)
                written.append(f"{study}.{slug(utility)}.svg")
                figure.savefig(folder / written[-1], metadata={"Date": None})
                plt.close(figure)
    return written


def _figure(plt: Any, study: str, title: str, rows: Sequence[Row]) -> Any:
    """Charts in a grid with a column for each pair; of a trade-off, a line for each measure."""
    pairs = grouped(rows, "pair")
    measures = measures_in(rows) if study == "tradeoff" else [""]
    size = max(5.4, 3.5 * len(pairs) + 0.6), 2.5 * len(measures) + 0.9
    figure, axes = plt.subplots(len(measures), len(pairs), figsize=size, squeeze=False)
    for line, measure in enumerate(measures):
        for column, ((pair,), own) in enumerate(pairs.items()):
            axis, chart = axes[line, column], chart_of(study, own, measure)
            _panel(axis, chart)
            axis.set_ylabel(chart["y"]["title"] if column == 0 else "")
            if line == 0:
                axis.set_title(pair)
            if line == len(measures) - 1:
                axis.set_xlabel(chart["x"]["title"])
    axes[-1, -1].legend()
    split = rows[0]["split"]
    text = f"{title}, {'all sentences' if split == 'all' else f'{SPLITS[split]} set'}"
    figure.suptitle(text, x=0.01, ha="left", fontsize=min(11.0, 130 * size[0] / len(text)))
    return figure


def _panel(axis: Any, chart: Chart) -> None:
    """One chart: series with their intervals as bands or bars, lines across, and labels at points."""
    for line in chart.get("lines", ()):
        axis.axhline(line["y"], color="#555555", linewidth=1, linestyle=(0, (4, 3)), label=line["name"].split(",")[0])
    for number, series in enumerate(chart["series"]):
        colour, marker = SERIES[series["style"]]
        points = series["points"]
        shift = 1.035 ** (number - 2) if series.get("dodge") else 1.0
        x, y = [shift * point["x"] for point in points], [point["y"] for point in points]
        low, high = ([point.get(end, point["y"]) for point in points] for end in ("low", "high"))
        if series.get("band"):
            axis.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
        else:
            axis.vlines(x, low, high, color=colour, linewidth=1.1, alpha=0.6)
        axis.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1.3, label=series["name"], zorder=3)
        above = series["style"] != "beta"  # where two series meet, each keeps to its side
        place = {"xytext": (0, 5 if above else -5), "va": "bottom" if above else "top", "ha": "center"}
        for point in (point for point in points if "label" in point):
            at = point["x"], point["y"]
            axis.annotate(point["label"], at, textcoords="offset points", fontsize=7, color=colour, **place)
    for name in ("x", "y"):
        _scale(axis, name, chart[name])


def _scale(axis: Any, name: str, wanted: Mapping[str, Any]) -> None:
    """Scale, limits and ticks of one direction; numbers of a log axis are plain, thousands as 2k."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter

    if wanted.get("log"):
        axis.set(**{f"{name}scale": "log"})
        ticks = getattr(axis, f"{name}axis")
        ticks.set_major_locator(
            FixedLocator(wanted["ticks"]) if "ticks" in wanted else LogLocator(subs=(1, 2, 3, 5, 7))
        )
        ticks.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
        ticks.set_minor_formatter(NullFormatter())
    axis.set(**{f"{name}lim": (wanted.get("low"), wanted.get("high"))})
