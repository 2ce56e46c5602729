"""The paper's figures as PNG and SVG, one file per utility with a panel per pair. The report uses the same colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mbrace.errors import require
from mbrace.experiments import points
from mbrace.experiments.sections import Section
from mbrace.experiments.studies import Row

# Alphas are ordered, so they get shades of one hue; beta and standard MBR get hues of their own.
ALPHA_COLOURS = {0.8: "#8cc5e3", 0.9: "#4f9fd0", 0.95: "#2a78b5", 0.98: "#1c5493", 0.99: "#0d2f66"}
ALPHA, BETA, STANDARD, ACCENT = "#1c5493", "#d9772b", "#555555", "#2a9d6f"
GROWTH_COLOURS = {1.5: "#7b4ea3", 2.0: "#1c5493", 4.0: "#d9772b"}
LABELS_AT = {1.5: (-4, 6), 2.0: (4, -10), 4.0: (6, 2)}
PHASE_COLOURS = {
    "generate H": "#b9c2cc",
    "generate R": "#7f8fa3",
    "embed": "#4f9fd0",
    "utilities": "#1c5493",
    "pruning": "#d9772b",
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


def draw(rows: Mapping[str, Sequence[Row]], folder: Path, added: Sequence[Section] = ()) -> list[Path]:
    """Draw every figure that there are rows for, per utility, and those of other studies; returns the files written."""
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
            for utility in dict.fromkeys(row["utility"] for row in rows.get(kind, [])):
                figure = function(plt, [row for row in rows[kind] if row["utility"] == utility])
                written += _save(plt, figure, folder, f"{kind}.{utility.lower().replace(' ', '-')}")
        for section in added:
            if section.figure:
                written += _save(plt, points.draw(plt, section.figure), folder, section.name)
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
            axis.plot(sizes, [r["rate"] for r in line], color=colour, marker="o", markersize=3, label=f"α = {alpha:g}")
        axis.set_xscale("log", base=2)
        axis.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
        axis.set_ylim(0, top * 1.03)
        axis.set_title(pair)
        axis.set_xlabel("pseudo-references |R|")
    return _finish(figure, axes[0], rows, "False pruning", "false pruning rate", "upper right")


def tradeoff(plt: Any, rows: Sequence[Row]) -> Any:
    """Figure 2: score, accuracy and reciprocal rank against utility calls, both pruning functions."""
    measures = [name for name in TITLES if all(name in row for row in rows)]
    figure, axes, pairs = _panels(plt, rows, 2.5 * len(measures) + 0.5, len(measures))
    for column, pair in enumerate(pairs):
        own = [row for row in rows if row["pair"] == pair]
        standard = next(row for row in own if row["rule"] == "beta" and row["value"] == 0)
        for axis, measure in zip(axes[:, column], measures, strict=True):
            axis.axhline(standard[measure], color=STANDARD, linewidth=1, linestyle=(0, (4, 3)), label="standard MBR")
            for rule, colour, marker in (("beta", BETA, "s"), ("alpha", ALPHA, "o")):
                line = sorted(
                    (r for r in own if r["rule"] == rule and r["value"] > 0), key=lambda row: row["utility_calls"]
                )
                calls, values = [r["utility_calls"] for r in line], [r[measure] for r in line]
                axis.plot(
                    calls,
                    values,
                    color=colour,
                    marker=marker,
                    markersize=4,
                    label="prune β" if rule == "beta" else "prune α",
                    zorder=3,
                )
            for row in (r for r in own if r["rule"] == "alpha" and measure != "score"):
                axis.annotate(
                    f"{row['value']:g}",
                    (row["utility_calls"], row[measure]),
                    textcoords="offset points",
                    xytext=(-3, 5) if row["value"] < 0.98 else (3, -10),  # the last two points are close to each other
                    fontsize=7,
                    color=ALPHA,
                    ha="right" if row["value"] < 0.98 else "left",
                )
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
            axis.xaxis.set_minor_formatter(lambda value, _: f"{value / 1000:g}k" if value in (5e3, 2e4, 5e4) else "")
            if column == 0:
                axis.set_ylabel(TITLES[measure])
        axes[0][column].set_title(pair)
        axes[-1][column].set_xlabel("utility calls per sentence (log scale)")
    axes[-1][-1].legend(loc="lower right")
    figure.suptitle(_title("Speed against accuracy", rows), x=0.01, ha="left", fontsize=11)
    return figure


def survivors(plt: Any, rows: Sequence[Row]) -> Any:
    """Appendix figure: hypotheses left after each time step; bars are means, whiskers span the middle half."""
    figure, axes, pairs = _panels(plt, rows, 3.5)
    for axis, pair in zip(axes[0], pairs, strict=True):
        own = [row for row in rows if row["pair"] == pair]
        sizes = sorted({row["pseudo_references"] for row in own})
        for index, (alpha, colour) in enumerate(ALPHA_COLOURS.items()):
            bars = [row for row in own if row["alpha"] == alpha]
            at = [sizes.index(row["pseudo_references"]) + (index - 2) * 0.16 for row in bars]
            means = [row["mean"] for row in bars]
            axis.bar(at, [mean - 0.8 for mean in means], 0.15, bottom=0.8, color=colour, label=f"α = {alpha:g}")
            for colour, width in (("white", 1.8), ("#222222", 0.9)):  # a light edge makes it visible on dark bars
                axis.vlines(at, [r["q25"] for r in bars], [r["q75"] for r in bars], color=colour, linewidth=width)
        axis.set_yscale("log", base=2)
        axis.set_ylim(0.8, 256)
        axis.set_yticks([1, 2, 4, 8, 16, 32, 64, 128, 256], ["1", "2", "4", "8", "16", "32", "64", "128", "256"])
        axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axis.grid(visible=False, axis="x")
        axis.set_title(pair)
        axis.set_xlabel("pseudo-references at the time step")
    return _finish(figure, axes[0], rows, "Survivors", "hypotheses left (log scale)", "upper right")


def schedules(plt: Any, rows: Sequence[Row]) -> Any:
    """First size and growth factor: reciprocal rank against utility calls; the numbers at the points are r_1."""
    alphas = sorted({row["alpha"] for row in rows}, reverse=True)
    figure, axes = plt.subplots(1, len(alphas), figsize=(4.6 * len(alphas), 3.9), squeeze=False)
    for axis, alpha in zip(axes[0], alphas, strict=True):
        own = [row for row in rows if row["alpha"] == alpha]
        for growth, colour in GROWTH_COLOURS.items():
            line = [row for row in own if row["growth"] == growth]
            calls, values = [row["utility_calls"] for row in line], [row["rr"] for row in line]
            axis.plot(
                calls, values, color=colour, marker="o", markersize=4.5, linewidth=1.2, label=f"growth ×{growth:g}"
            )
            for row in line:
                axis.annotate(
                    str(row["first"]),
                    (row["utility_calls"], row["rr"]),
                    textcoords="offset points",
                    xytext=LABELS_AT[growth],
                    fontsize=7,
                    color=colour,
                )
        for mark, style in (("own", {"marker": "s", "s": 90}), ("recommended", {"marker": "o", "s": 170})):
            chosen = [row for row in own if row[mark]]
            colour = STANDARD if mark == "own" else ACCENT
            text = "the paper's schedule" if mark == "own" else "recommended"
            points = [row["utility_calls"] for row in chosen], [row["rr"] for row in chosen]
            axis.scatter(*points, facecolors="none", edgecolors=colour, linewidths=1.6, label=text, zorder=4, **style)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
        axis.xaxis.set_minor_formatter(lambda value, _: f"{value / 1000:g}k" if value in (2e3, 5e3, 2e4) else "")
        axis.set_title(f"α = {alpha:g}")
        axis.set_xlabel("utility calls per sentence (log scale)")
    title = f"Schedules on {rows[0]['pair'].replace('+', ', ')}"
    return _finish(figure, axes[0], rows, title, "reciprocal rank", "lower right")


def runtimes(plt: Any, rows: Sequence[Row]) -> Any:
    """Table 2 as bars: seconds by phase for racing, standard MBR and beam search."""
    figure, axes, pairs = _panels(plt, rows, 2.6)
    for axis, pair in zip(axes[0], pairs, strict=True):
        own = [row for row in rows if row["pair"] == pair]
        methods = list(dict.fromkeys(row["method"] for row in own))[::-1]
        left = dict.fromkeys(methods, 0.0)
        for phase, colour in PHASE_COLOURS.items():
            found = {row["method"]: row["seconds"] for row in own if row["phase"] == phase}
            widths = [found.get(method, 0.0) for method in methods]
            axis.barh(methods, widths, 0.6, left=[left[m] for m in methods], color=colour, label=phase)
            for method, width in zip(methods, widths, strict=True):
                left[method] += width
        totals = {row["method"]: row["seconds"] for row in own if row["phase"] == "total"}
        for method in methods:
            axis.annotate(
                f"{totals[method]:.2f} s",
                (left[method], method),
                textcoords="offset points",
                xytext=(4, -3),
                fontsize=8,
            )
        axis.set_xlim(0, max(left.values()) * 1.15)
        axis.grid(visible=False, axis="y")
        axis.set_title(f"{pair}: {own[0]['sentences']} sentences, {own[0]['device']}")
        axis.set_xlabel("seconds")
    axes[0][-1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=5, fontsize=7.5)
    return figure


def _finish(figure: Any, axes: Any, rows: Sequence[Row], what: str, y_label: str, legend: str) -> Any:
    """Add the label of the first panel's y axis, the legend in the last panel and the title."""
    axes[0].set_ylabel(y_label)
    axes[-1].legend(loc=legend)
    figure.suptitle(_title(what, rows), x=0.01, ha="left", fontsize=11)
    return figure


def _title(what: str, rows: Sequence[Row]) -> str:
    split = {"valid": "validation set", "test": "test set"}.get(rows[0]["split"], "all sentences")
    return f"{what}, {rows[0]['utility']}, {split}"
