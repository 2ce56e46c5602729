"""Figures of points with intervals, described once: drawn by matplotlib for files and by Vega-Lite for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Okabe and Ito's colours, which readers of every kind of colour vision tell apart; markers differ as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "M-1,-1L1,1M-1,1L1,-1")


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
        axis.set_title(title)
        axis.set_xlabel(figure.x)
        axis.set_ylabel(figure.y)
    if len(figure.series) > 1:
        pairs = [pair for axis in axes.flat for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
        known = {label: handle for handle, label in pairs}
        drawn.legend(known.values(), known.keys(), loc="outside lower center", ncols=min(4, len(known)))
    return drawn


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
    for point in points:
        if point.label:
            axis.annotate(
                point.label, (point.x, point.y), textcoords="offset points", xytext=(5, 5), fontsize=7.5, color=colour
            )


def specs(alt: Any, figure: Figure) -> list[Any]:
    """One chart per panel for the page."""
    scale = {
        "color": alt.Scale(domain=figure.series, range=_cycled(COLOURS, figure.series)),
        "shape": alt.Scale(domain=figure.series, range=_cycled(SHAPES, figure.series)),
    }
    legend = alt.Legend(title=None, orient="top", columns=2, labelLimit=320) if len(figure.series) > 1 else None
    charts = []
    for title, points in figure.panels.items():
        base = alt.Chart(alt.Data(values=[vars(point) | {"order": n} for n, point in enumerate(points)]), title=title)
        x = alt.X("x:Q", title=figure.x, scale=_scale(alt, figure.log_x), axis=alt.Axis(format="~s", tickCount=5))
        y = alt.Y("y:Q", title=figure.y, scale=_scale(alt, figure.log_y))
        colour = alt.Color("series:N", scale=scale["color"], legend=legend)
        shape = alt.Shape("series:N", scale=scale["shape"], legend=legend)
        layers = []
        for which, other in (("x", "y"), ("y", "x")):
            ends = base.transform_filter(f"isValid(datum.{which}_low)").mark_rule(strokeWidth=1.6, opacity=0.5)
            span = {which: {"x": alt.X, "y": alt.Y}[which](f"{which}_low:Q"), f"{which}2": f"{which}_high:Q"}
            layers.append(ends.encode(**span, **{other: {"x": x, "y": y}[other]}, color=colour))
        if figure.joined:
            layers.append(base.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour, order="order:Q"))
        tooltip = [alt.Tooltip("series:N"), alt.Tooltip("label:N", title="setting")]
        tooltip += [alt.Tooltip("x:Q", title=figure.x), alt.Tooltip("y:Q", title=figure.y)]
        dots = base.mark_point(filled=True, size=70, opacity=1)
        layers.append(dots.encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip))
        layers.append(base.mark_text(dy=-11, fontSize=11).encode(x=x, y=y, text="label:N", color=colour))
        charts.append(alt.layer(*layers))
    return charts


def _cycled(values: Sequence[str], series: Sequence[str]) -> list[str]:
    return [values[number % len(values)] for number in range(len(series))]


def _scale(alt: Any, log: bool) -> Any:
    return alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
