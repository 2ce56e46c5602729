"""Figures of points with intervals, described once: drawn by matplotlib for files and by `charts.py` for the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mbrace.experiments.labels import Label, place_labels

# Okabe and Ito's colours, which readers with any kind of colour vision can tell apart; markers differ as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Point:
    """A point, with the ends of its interval in either direction where it has one."""

    x: float
    y: float
    series: str = ""  # points of one series share colour and marker, and a line if the figure joins them
    label: str = ""  # shown at the point
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None


@dataclass(frozen=True)
class Figure:
    """Panels of points with the same axes; `describes` is the text for readers who cannot see it."""

    x: str  # titles of the axes, with their unit
    y: str
    describes: str
    panels: Mapping[str, Sequence[Point]] = field(default_factory=dict)  # by title
    log_x: bool = False
    log_y: bool = False
    joined: bool = False  # points of a series are joined in the order given

    @property
    def series(self) -> list[str]:
        """Every series, in the order of first appearance."""
        return list(dict.fromkeys(point.series for points in self.panels.values() for point in points))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Figure:
        """What `dataclasses.asdict` made of one."""
        panels = {title: [Point(**point) for point in points] for title, points in value["panels"].items()}
        return cls(**{**value, "panels": panels})


def draw(plt: Any, figure: Figure) -> Any:
    """The figure by matplotlib, two panels in a row at most."""
    columns = min(2, len(figure.panels))
    lines = -(-len(figure.panels) // columns)
    size = (max(5.6, 4.6 * columns), 3.4 * lines + 0.5)
    drawn, axes = plt.subplots(lines, columns, figsize=size, squeeze=False)
    for axis in axes.flat[len(figure.panels) :]:
        axis.set_visible(False)
    for axis, (title, points) in zip(axes.flat, figure.panels.items(), strict=False):
        for number, series in enumerate(figure.series):
            own = [point for point in points if point.series == series]
            if own:
                _draw_series(axis, own, number, joined=figure.joined)
        for log, which in ((figure.log_x, "x"), (figure.log_y, "y")):
            if log:
                getattr(axis, f"set_{which}scale")("log")
                _plain_ticks(getattr(axis, f"{which}axis"))
        axis.margins(x=0.08)
        axis.set_title(title)
        axis.set_xlabel(figure.x)
        axis.set_ylabel(figure.y)
    if len(figure.series) > 1:
        pairs = [pair for axis in axes.flat for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
        known = {label: handle for handle, label in pairs}
        drawn.legend(known.values(), known.keys(), loc="outside lower center", ncols=columns_of(size[0], known))
    drawn.draw_without_rendering()  # lays out everything else
    colour_of = {series: COLOURS[number % len(COLOURS)] for number, series in enumerate(figure.series)}
    for axis, points in zip(axes.flat, figure.panels.values(), strict=False):
        labelled = [point for point in points if point.label]
        place_labels(
            axis, [Label(point.x, point.y, point.label, colour_of[point.series]) for point in labelled], size=7.5
        )
    return drawn


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10, 20 ... on a logarithmic axis, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def columns_of(inches: float, names: Iterable[str]) -> int:
    """How many columns of a legend fit into a width."""
    return max(1, min(4, int(14 * inches / (8 + max(map(len, names))))))


def _draw_series(axis: Any, points: Sequence[Point], number: int, *, joined: bool) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    for point in points:
        style = {"color": colour, "alpha": 0.45, "linewidth": 1.2, "zorder": 2}
        if point.x_low is not None:
            axis.hlines(point.y, point.x_low, point.x_high, **style)
        if point.y_low is not None:
            axis.vlines(point.x, point.y_low, point.y_high, **style)
    axis.plot(
        [point.x for point in points],
        [point.y for point in points],
        color=colour,
        marker=marker,
        markersize=5.5,
        linewidth=1.3 if joined else 0,
        label=points[0].series,
        zorder=3,
    )
