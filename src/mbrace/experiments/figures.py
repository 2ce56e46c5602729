"""The paper's figures as PNG and SVG, one file per utility with a panel per pair. The report uses the same colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mbrace.errors import require
from mbrace.experiments.charts import cut_at
from mbrace.experiments.formatting import describe_timing, short_description
from mbrace.experiments.labels import Label, place_labels
from mbrace.experiments.studies import GROWTH, Row, grouped
from mbrace.experiments.tables import slug

# Okabe and Ito's colours, which readers with any kind of colour vision can tell apart; markers and hatches differ as
# well. Alphas are ordered, so they get shades of one hue.
COLOURS = ("#0072b2", "#d55e00", "#009e73")
ALPHA_COLOURS = {0.8: "#4f9fd0", 0.9: "#2f83ba", 0.95: "#22689f", 0.98: "#184a7d", 0.99: "#0b2a55"}
ALPHA_MARKERS = dict(zip(ALPHA_COLOURS, "os^Dv", strict=True))
ALPHA, BETA, ACCENT = COLOURS
STANDARD = "#555555"
GROWTH_COLOURS = dict(zip(GROWTH, COLOURS, strict=True))
GROWTH_MARKERS = dict(zip(GROWTH, "os^", strict=True))
PHASES = {  # colour and hatch
    "generate H": ("#d9dee4", ""),
    "generate R": ("#9aa8b8", ".."),
    "embed": ("#56b4e9", ""),
    "utilities": ("#0072b2", "//"),
    "pruning": ("#d55e00", ""),
}
TITLES = {"score": "Score", "accuracy": "Exact accuracy", "rr": "Reciprocal rank"}
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
    "xtick.minor.size": 3.5,
    "xtick.minor.pad": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "mbrace",
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}


def draw(rows: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """Draw every figure that there are rows for, per utility; returns the files written."""
    matplotlib = require("matplotlib", extra="experiments")
    matplotlib.use("Agg")
    plt = require("matplotlib.pyplot", extra="experiments")
    folder.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, Callable[[Any, Sequence[Row]], Any]] = {
        "false_pruning": false_pruning,
        "tradeoff": tradeoff,
        "survivors": survivors,
        "schedules": schedules,
        "runtimes": runtimes,
    }
    written = []
    with plt.rc_context(STYLE):
        for kind, function in kinds.items():
            for (utility,), own in grouped(rows.get(kind, []), "utility").items():
                written += _save(plt, function(plt, own), folder, f"{kind}.{slug(utility)}")
                if kind == "tradeoff":
                    written += _single_panels(plt, own, folder, f"{kind}.{slug(utility)}")
    return written


def _single_panels(plt: Any, rows: Sequence[Row], folder: Path, name: str) -> list[Path]:
    """Accuracy against calls, in a separate picture for each pair that is readable at the width of a README."""
    written = []
    for (pair,), own in grouped(rows, "pair").items():
        figure = tradeoff(plt, own, measures=("accuracy",))
        written += _save(plt, figure, folder, f"{name}.{slug(pair)}")
    return written


def _save(plt: Any, figure: Any, folder: Path, name: str) -> list[Path]:
    """Write the figure as PNG and SVG."""
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return paths


def _panels(plt: Any, rows: Sequence[Row], height: float, lines: int = 1) -> tuple[Any, Any, list[str]]:
    """A grid with a column for each pair."""
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    width = max(5.4, 3.5 * len(pairs) + 0.6)
    figure, axes = plt.subplots(lines, len(pairs), figsize=(width, height), squeeze=False)
    return figure, axes, pairs


def false_pruning(plt: Any, rows: Sequence[Row]) -> Any:
    """Figure 1: how often the winner under R* would be pruned, against |R|."""
    figure, axes, pairs = _panels(plt, rows, 3.4)
    top = max(row["high"] for row in rows) or 1.0  # 1.0 if nothing was pruned falsely
    for axis, pair in zip(axes[0], pairs, strict=True):
        for alpha, colour in ALPHA_COLOURS.items():
            line = [row for row in rows if row["pair"] == pair and row["alpha"] == alpha]
            sizes = [row["pseudo_references"] for row in line]
            axis.fill_between(
                sizes, [r["low"] for r in line], [r["high"] for r in line], color=colour, alpha=0.13, linewidth=0
            )
            style = {"color": colour, "marker": ALPHA_MARKERS[alpha], "markersize": 3.6}
            axis.plot(sizes, [r["rate"] for r in line], label=f"α = {alpha:g}", **style)
        axis.set_xscale("log", base=2)
        axis.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
        axis.set_ylim(0, top * 1.03)
        axis.set_title(pair)
        axis.set_xlabel("pseudo-references |R|")
    return _finish(figure, axes[0], rows, "False pruning", "false pruning rate", "upper right")


def tradeoff(plt: Any, rows: Sequence[Row], measures: Sequence[str] = tuple(TITLES)) -> Any:
    """Figure 2: score, accuracy and reciprocal rank against utility calls, both pruning functions.

    Vertical lines are 95% intervals of the paired difference from standard MBR; x is cut as in the paper.
    """
    measures = [name for name in measures if all(name in row for row in rows)]
    figure, axes, pairs = _panels(plt, rows, 2.5 * len(measures) + 0.9, len(measures))
    named = []
    for column, pair in enumerate(pairs):
        own = [row for row in rows if row["pair"] == pair]
        end = cut_at(own)
        shown = [row for row in own if row["value"] > 0 and row["utility_calls"] <= end]
        shown.sort(key=lambda row: float(row["utility_calls"]))
        standard = next(row for row in own if row["rule"] == "beta" and row["value"] == 0)
        for axis, measure in zip(axes[:, column], measures, strict=True):
            name = "standard MBR" if len(pairs) > 1 else f"standard MBR, {standard['utility_calls'] / 1000:.0f}k calls"
            axis.axhline(standard[measure], color=STANDARD, linewidth=1, linestyle=(0, (4, 3)), label=name)
            for rule, colour, marker in (("beta", BETA, "s"), ("alpha", ALPHA, "o")):
                line = [row for row in shown if row["rule"] == rule]
                calls = [row["utility_calls"] for row in line]
                ends = [
                    [standard[measure] + row[f"{measure}_minus_standard_{side}"] for row in line]
                    for side in ("low", "high")
                ]
                axis.vlines(calls, *ends, color=colour, linewidth=1.1, alpha=0.6)
                label = "prune β" if rule == "beta" else "prune α"
                style = {"color": colour, "marker": marker, "markersize": 4.2, "zorder": 3, "label": label}
                axis.plot(calls, [row[measure] for row in line], **style)
            texts = sorted(shown, key=lambda row: str(row["rule"]))  # alphas have the first choice of room
            colours = {"alpha": ALPHA, "beta": BETA}
            named.append(
                (axis, [Label(r["utility_calls"], r[measure], f"{r['value']:g}", colours[r["rule"]]) for r in texts])
            )
            axis.set_xscale("log")
            axis.set_xlim(0.93 * min((row["utility_calls"] for row in shown), default=1) or 1, end or 2)
            _thousands(axis)
            if column == 0:
                axis.set_ylabel(TITLES[measure])
        axes[0][column].set_title(pair)
        axes[-1][column].set_xlabel("utility calls per sentence (log scale)")
    axes[-1][-1].plot(
        [], [], color=STANDARD, linewidth=1.1, alpha=0.6, label="95% interval of the\ndifference from standard"
    )
    axes[-1][-1].legend(loc="lower right")
    _suptitle(figure, "Speed against accuracy", rows)
    _label(figure, named)
    return figure


def survivors(plt: Any, rows: Sequence[Row]) -> Any:
    """Appendix figure: hypotheses left after each time step; points are means, lines span the middle half."""
    figure, axes, pairs = _panels(plt, rows, 3.5)
    for axis, pair in zip(axes[0], pairs, strict=True):
        own = [row for row in rows if row["pair"] == pair]
        sizes = sorted({row["pseudo_references"] for row in own})
        for index, (alpha, colour) in enumerate(ALPHA_COLOURS.items()):
            line = [row for row in own if row["alpha"] == alpha]
            at = [sizes.index(row["pseudo_references"]) + (index - 2) * 0.11 for row in line]
            axis.vlines(at, [r["q25"] for r in line], [r["q75"] for r in line], color=colour, linewidth=1.2, alpha=0.6)
            style = {"color": colour, "marker": ALPHA_MARKERS[alpha], "markersize": 4, "linewidth": 0.9}
            axis.plot(at, [row["mean"] for row in line], label=f"α = {alpha:g}", **style)
        axis.set_yscale("log", base=2)
        axis.set_ylim(0.8, 256)
        axis.set_yticks([1, 2, 4, 8, 16, 32, 64, 128, 256], ["1", "2", "4", "8", "16", "32", "64", "128", "256"])
        axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axis.set_title(pair)
        axis.set_xlabel("pseudo-references at the time step")
    return _finish(figure, axes[0], rows, "Survivors", "hypotheses left (log scale)", "upper right")


def schedules(plt: Any, rows: Sequence[Row]) -> Any:
    """First size and growth factor: reciprocal rank against utility calls; the numbers at the points are r_1."""
    alphas = sorted({row["alpha"] for row in rows}, reverse=True)
    figure, axes = plt.subplots(1, len(alphas), figsize=(4.6 * len(alphas), 3.9), squeeze=False)
    named = []
    for axis, alpha in zip(axes[0], alphas, strict=True):
        own = [row for row in rows if row["alpha"] == alpha]
        for growth, colour in GROWTH_COLOURS.items():
            line = [row for row in own if row["growth"] == growth]
            style = {"color": colour, "marker": GROWTH_MARKERS[growth], "markersize": 4.5, "linewidth": 1.2}
            points = [row["utility_calls"] for row in line], [row["rr"] for row in line]
            axis.plot(*points, label=f"growth ×{growth:g}", **style)
        for mark, style in (("own", {"marker": "s", "s": 90}), ("recommended", {"marker": "o", "s": 170})):
            chosen = [row for row in own if row[mark]]
            colour = STANDARD if mark == "own" else ACCENT
            text = "the paper's schedule" if mark == "own" else "recommended"
            points = [row["utility_calls"] for row in chosen], [row["rr"] for row in chosen]
            axis.scatter(*points, facecolors="none", edgecolors=colour, linewidths=1.6, label=text, zorder=4, **style)
        axis.set_xscale("log")
        _thousands(axis)
        axis.set_title(f"α = {alpha:g}")
        axis.set_xlabel("utility calls per sentence (log scale)")
        named.append(
            (axis, [Label(r["utility_calls"], r["rr"], str(r["first"]), GROWTH_COLOURS[r["growth"]]) for r in own])
        )
    title = f"Schedules on {rows[0]['pair'].replace('+', ', ')}"
    _finish(figure, axes[0], rows, title, "reciprocal rank", "lower right")
    _label(figure, named)
    return figure


def _thousands(axis: Any) -> None:
    """Ticks of a log axis of calls: 2k, 3k, 5k, 10k; each label once."""
    low, high = axis.get_xlim()
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        found = [step * 10.0**power for power in range(7) for step in steps if low <= step * 10.0**power <= high]
        if len(found) > 3:
            break
    axis.set_xticks(found, [f"{value / 1000:g}k" if value >= 1000 else f"{value:g}" for value in found])
    axis.set_xticks([], minor=True)


def _label(figure: Any, named: Sequence[tuple[Any, Sequence[Label]]]) -> None:
    """Write labels at points, once everything else is laid out."""
    figure.draw_without_rendering()
    for axis, labels in named:
        place_labels(axis, labels)


def runtimes(plt: Any, rows: Sequence[Row]) -> Any:
    """Table 2 as bars: seconds by phase for racing, standard MBR and beam search."""
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    figure, axes = plt.subplots(len(pairs), 1, figsize=(7.6, 1.2 + 1.6 * len(pairs)), squeeze=False)
    for axis, pair in zip(axes[:, 0], pairs, strict=True):
        own = [row for row in rows if row["pair"] == pair]
        methods = list(dict.fromkeys(row["method"] for row in own))[::-1]
        left = dict.fromkeys(methods, 0.0)
        for phase, (colour, hatch) in PHASES.items():
            found = {row["method"]: row["seconds"] for row in own if row["phase"] == phase}
            widths = [found.get(method, 0.0) for method in methods]
            style = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4, "label": phase}
            axis.barh(methods, widths, 0.6, left=[left[m] for m in methods], **style)
            for method, width in zip(methods, widths, strict=True):
                left[method] += width
        totals = {row["method"]: row["seconds"] for row in own if row["phase"] == "total"}
        for method in methods:
            text = f"{totals[method]:.2f} s"
            axis.annotate(text, (left[method], method), textcoords="offset points", xytext=(4, -3), fontsize=8)
        axis.set_xlim(0, max(left.values()) * 1.15)
        axis.grid(visible=False, axis="y")
        axis.set_title(
            f"{pair}: {own[0]['sentences']} sentences, {own[0]['device']}, {describe_timing(own[0])}", fontsize=8.5
        )
        axis.set_xlabel("seconds, whole run")
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, fontsize=8)
    title = f"Run times, {short_description(rows[0]['utility'])}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _finish(figure: Any, axes: Any, rows: Sequence[Row], what: str, y_label: str, legend: str) -> Any:
    """Add the label of the first panel's y axis, the legend in the last panel and the title."""
    axes[0].set_ylabel(y_label)
    axes[-1].legend(loc=legend)
    _suptitle(figure, what, rows)
    return figure


def _suptitle(figure: Any, what: str, rows: Sequence[Row]) -> None:
    """The title: what is shown, for which utility, on which set; in a smaller font if it would not fit."""
    split = {"valid": "validation set", "test": "test set"}.get(rows[0]["split"], "all sentences")
    text = f"{what}, {short_description(rows[0]['utility'])}, {split}"
    inches = figure.get_size_inches()[0]
    figure.suptitle(text, x=0.01, ha="left", fontsize=min(11.0, 130 * inches / len(text)))
