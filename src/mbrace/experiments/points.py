"""Figures of points with intervals, described once: drawn by matplotlib for files and by Vega-Lite for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# Okabe and Ito's colours, which readers of every kind of colour vision tell apart; markers differ as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STAR = "M0,-1L0.3,-0.3L1,-0.3L0.45,0.15L0.65,0.9L0,0.45L-0.65,0.9L-0.45,0.15L-1,-0.3L-0.3,-0.3Z"
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "M-1,-1L1,1M-1,1L1,-1", STAR)
FONT = 7.5  # points
PAGE = (350.0, 190.0)  # points of a panel on the page
# Where a label may go, from the point to its nearest corner or edge, in points: right or left, up or down; the nearest
# first. One that is further away than NEAR gets a line to its point.
NEAR = 14
PLACES = [
    place
    for far in (4, 10, 17, 25, 34, 44)
    for place in ((far, 3), (-far, 3), (far, -9), (-far, -9), (0, far), (0, -far - 6), (far, far), (-far, far),
                  (far, -far - 6), (-far, -far - 6))
]  # fmt: skip


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
        axis.margins(x=0.08, y=0.12)
        axis.set_title(title)
        axis.set_xlabel(figure.x)
        axis.set_ylabel(figure.y)
    if len(figure.series) > 1:
        pairs = [pair for axis in axes.flat for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
        known = {label: handle for handle, label in pairs}
        drawn.legend(known.values(), known.keys(), loc="outside lower center", ncols=min(2 * columns, len(known)))
    drawn.draw_without_rendering()  # says where things are
    for axis, points in zip(axes.flat, figure.panels.values(), strict=False):
        _label(axis, figure, points)
    return drawn


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10, 20 ... on a logarithmic axis, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


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


def _label(axis: Any, figure: Figure, points: Sequence[Point]) -> None:
    """The labels of a panel, each where it hides no point and no other label."""
    scale = 72 / axis.figure.dpi  # from pixels to points
    at = [tuple(value * scale for value in axis.transData.transform((point.x, point.y))) for point in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    frame = axis.get_window_extent()
    panel = frame.x0 * scale, frame.y0 * scale, frame.x1 * scale, frame.y1 * scale
    for point, (x, y) in zip(points, at, strict=True):
        if not point.label:
            continue
        offset, box = place(x, y, point.label, taken, panel)
        taken.append(box)
        colour = COLOURS[figure.series.index(point.series) % len(COLOURS)]
        side = "left" if offset[0] > 0 else "right" if offset[0] < 0 else "center"
        style: dict[str, Any] = {"textcoords": "offset points", "xytext": offset, "fontsize": FONT, "ha": side}
        if max(abs(offset[0]), abs(offset[1])) > NEAR:
            style["arrowprops"] = {"arrowstyle": "-", "linewidth": 0.5, "color": colour, "shrinkA": 0, "shrinkB": 3}
        axis.annotate(point.label, (point.x, point.y), color=colour, **style)


Box: TypeAlias = tuple[float, float, float, float]


def place(x: float, y: float, label: str, taken: Sequence[Box], panel: Box) -> tuple[tuple[float, float], Box]:
    """Where the label of a point goes, as an offset from it in points, and the box that it fills: the first of `PLACES`
    where least of it lies on what is taken or outside the panel."""
    width = 0.62 * FONT * len(label)
    found = []
    for number, (dx, dy) in enumerate(PLACES):
        left = x + dx if dx > 0 else x + dx - width if dx < 0 else x - width / 2
        box = left, y + dy, left + width, y + dy + FONT
        outside = width * FONT - _overlap(box, panel)
        hidden = outside + sum(_overlap(box, other) for other in taken)
        found.append((round(hidden, 6), number, (float(dx), float(dy)), box))
    _, _, offset, box = min(found)
    return offset, box


def _overlap(one: Box, other: Box) -> float:
    """The area that two boxes share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)


def specs(alt: Any, figure: Figure) -> list[Any]:
    """One chart per panel for the page."""
    scale = {
        "color": alt.Scale(domain=figure.series, range=_cycled(COLOURS, figure.series)),
        "shape": alt.Scale(domain=figure.series, range=_cycled(SHAPES, figure.series)),
    }
    legend = alt.Legend(title=None, orient="top", columns=2, labelLimit=320) if len(figure.series) > 1 else None
    charts = []
    for title, points in figure.panels.items():
        offsets = _offsets(figure, points)
        values = [vars(point) | {"order": n, "dx": dx, "dy": dy} for n, (point, (dx, dy)) in enumerate(offsets)]
        base = alt.Chart(alt.Data(values=values), title=title)
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
        for side, test in (("left", "datum.dx > 0"), ("right", "datum.dx < 0"), ("center", "datum.dx == 0")):
            text = base.transform_filter(test).mark_text(
                dx=alt.expr("datum.dx"), dy=alt.expr("-datum.dy"), align=side, baseline="bottom", fontSize=11
            )
            layers.append(text.encode(x=x, y=y, text="label:N", color=colour))
        charts.append(alt.layer(*layers))
    return charts


def _offsets(figure: Figure, points: Sequence[Point]) -> list[tuple[Point, tuple[float, float]]]:
    """Each point with the offset of its label, in pixels, on a page where a panel is as large as `PAGE`."""
    at = []
    for which, log, pixels in (("x", figure.log_x, PAGE[0]), ("y", figure.log_y, PAGE[1])):
        names = (which, f"{which}_low", f"{which}_high")
        known = [value for point in points for name in names if (value := getattr(point, name)) is not None]
        low, high = _scaled(min(known), log), _scaled(max(known), log)
        at.append([(_scaled(getattr(p, which), log) - low) / ((high - low) or 1) * pixels for p in points])
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in zip(*at, strict=True)]
    found = []
    for point, x, y in zip(points, *at, strict=True):
        offset = 0.0, 0.0
        if point.label:
            offset, box = place(x, y, point.label, taken, (0.0, 0.0, *PAGE))
            taken.append(box)
        found.append((point, (1.4 * offset[0], 1.4 * offset[1])))
    return found


def _scaled(value: float, log: bool) -> float:
    return math.log10(value) if log and value > 0 else value


def _cycled(values: Sequence[str], series: Sequence[str]) -> list[str]:
    return [values[number % len(values)] for number in range(len(series))]


def _scale(alt: Any, log: bool) -> Any:
    return alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
