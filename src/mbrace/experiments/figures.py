"""The paper's figures as PNG and SVG, one file per utility with a panel per pair, from the data that the page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mbrace.errors import require
from mbrace.experiments import charts
from mbrace.experiments.charts import Chart
from mbrace.experiments.formatting import SPLITS, describe_timing, short_description
from mbrace.experiments.studies import Row, grouped
from mbrace.experiments.tables import slug

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
PHASES = {  # colour and hatch
    "generate H": ("#d9dee4", ""),
    "generate R": ("#9aa8b8", ".."),
    "embed": ("#56b4e9", ""),
    "utilities": ("#0072b2", "//"),
    "pruning": ("#d55e00", ""),
}
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": "#333333",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "mbrace",
    "svg.fonttype": "none",
    "text.parse_math": False,  # names of files may have dollar signs
    "figure.constrained_layout.use": True,
}


def draw(rows: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """Draw every figure that there are rows for, per utility; returns the files written."""
    matplotlib = require("matplotlib", extra="experiments")
    matplotlib.use("Agg")
    plt = require("matplotlib.pyplot", extra="experiments")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with plt.rc_context(STYLE):
        for kind, title in (("false_pruning", "False pruning"), ("survivors", "Survivors")):
            for (utility,), own in grouped(rows[kind], "utility").items():
                panels = [getattr(charts, kind)(of_pair) for of_pair in grouped(own, "pair").values()]
                written += _save(plt, _figure(plt, title, own, [panels]), folder, f"{kind}.{slug(utility)}")
        for (utility,), own in grouped(rows["tradeoff"], "utility").items():
            written += _save(plt, _tradeoff(plt, own, tuple(charts.MEASURES)), folder, f"tradeoff.{slug(utility)}")
            for (pair,), of_pair in grouped(own, "pair").items():  # for a README: one panel, readable at its width
                figure = _tradeoff(plt, of_pair, ("accuracy",))
                written += _save(plt, figure, folder, f"tradeoff.{slug(utility)}.{slug(pair)}")
        for (utility,), own in grouped(rows["runtimes"], "utility").items():
            written += _save(plt, _runtimes(plt, own), folder, f"runtimes.{slug(utility)}")
    return written


def _save(plt: Any, figure: Any, folder: Path, name: str) -> list[Path]:
    """Write the figure as PNG and SVG."""
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return paths


def _tradeoff(plt: Any, rows: Sequence[Row], measures: Sequence[str]) -> Any:
    """Figure 2: a line of panels for each measure. Bars are 95% intervals of the difference from standard MBR."""
    known = [measure for measure in measures if all(measure in row for row in rows)]
    pairs = grouped(rows, "pair").values()
    lines = [[charts.tradeoff(own, measure) for own in pairs] for measure in known]
    return _figure(plt, "Speed against accuracy", rows, lines)


def _figure(plt: Any, title: str, rows: Sequence[Row], lines: Sequence[Sequence[Chart]]) -> Any:
    """Charts in a grid with a column for each pair, under a title that names the utility and the set."""
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    size = max(5.4, 3.5 * len(pairs) + 0.6), 2.5 * len(lines) + 0.9
    figure, axes = plt.subplots(len(lines), len(pairs), figsize=size, squeeze=False)
    for line, of_line in zip(lines, axes, strict=True):
        for column, (chart, axis) in enumerate(zip(line, of_line, strict=True)):
            _panel(axis, chart)
            axis.set_ylabel(chart["y"]["title"] if column == 0 else "")
    for pair, axis in zip(pairs, axes[0], strict=True):
        axis.set_title(pair)
    for chart, axis in zip(lines[-1], axes[-1], strict=True):
        axis.set_xlabel(chart["x"]["title"])
    axes[-1][-1].legend()
    sets = {"all": "all sentences"} | {name: f"{words} set" for name, words in SPLITS.items() if name != "all"}
    text = f"{title}, {short_description(rows[0]['utility'])}, {sets[rows[0]['split']]}"
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
        for point in (point for point in points if "label" in point):
            place: dict[str, Any] = {"xytext": (0, 5 if above else -5), "va": "bottom" if above else "top"}
            at = point["x"], point["y"]
            axis.annotate(
                point["label"], at, textcoords="offset points", ha="center", fontsize=7, color=colour, **place
            )
    for name in ("x", "y"):
        _scale(axis, name, chart[name])


def _scale(axis: Any, name: str, wanted: Mapping[str, Any]) -> None:
    """Scale, limits and ticks of one direction; numbers of a log axis are plain, thousands as 2k."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    if wanted.get("log"):
        getattr(axis, f"set_{name}scale")("log")
        ticks = getattr(axis, f"{name}axis")
        ticks.set_major_locator(
            FixedLocator(wanted["ticks"]) if "ticks" in wanted else LogLocator(subs=(1, 2, 3, 5, 7))
        )
        ticks.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
        )
        ticks.set_minor_formatter(NullFormatter())
    limits = {"low": {"x": "left", "y": "bottom"}, "high": {"x": "right", "y": "top"}}
    getattr(axis, f"set_{name}lim")(**{side[name]: wanted[end] for end, side in limits.items() if end in wanted})


def _runtimes(plt: Any, rows: Sequence[Row]) -> Any:
    """Table 2 as bars: seconds by phase for racing, standard MBR and beam search."""
    pairs = grouped(rows, "pair")
    figure, axes = plt.subplots(len(pairs), 1, figsize=(7.6, 1.2 + 1.6 * len(pairs)), squeeze=False)
    for axis, ((pair,), own) in zip(axes[:, 0], pairs.items(), strict=True):
        methods = list(dict.fromkeys(row["method"] for row in own))[::-1]
        left = dict.fromkeys(methods, 0.0)
        for phase, (colour, hatch) in PHASES.items():
            found = {row["method"]: row["seconds"] for row in own if row["phase"] == phase}
            widths = [found.get(method, 0.0) for method in methods]
            style = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4, "label": phase}
            axis.barh(methods, widths, 0.6, left=[left[m] for m in methods], **style)
            for method, width in zip(methods, widths, strict=True):
                left[method] += width
        for row in (row for row in own if row["phase"] == "total"):
            at = left[row["method"]], row["method"]
            axis.annotate(f"{row['seconds']:.2f} s", at, textcoords="offset points", xytext=(4, -3), fontsize=8)
        axis.set_xlim(0, max(left.values()) * 1.15)
        axis.grid(visible=False, axis="y")
        how = f"{own[0]['sentences']} sentences, {own[0]['device']}, {describe_timing(own[0])}"
        axis.set_title(f"{pair}: {how}", fontsize=8.5)
        axis.set_xlabel("seconds, whole run")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    figure.suptitle(f"Run times, {short_description(rows[0]['utility'])}", x=0.01, ha="left", fontsize=11)
    return figure
