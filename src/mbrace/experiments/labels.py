"""Labels at the points of a figure that cover neither each other nor anything drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Where a label may be, in points from its point to its nearest corner or edge, best first: (x, y, which side of x).
SPOTS = (
    (0, 5, "middle"), (0, -5, "middle"), (6, 0, "right"), (-6, 0, "left"), (4, 4, "right"), (-4, 4, "left"),
    (4, -4, "right"), (-4, -4, "left"), (0, 11, "middle"), (0, -11, "middle"), (9, 9, "right"), (-9, 9, "left"),
    (9, -9, "right"), (-9, -9, "left"),
)  # fmt: skip
STEP = 3.0  # pixels between the small boxes that stand for what is drawn
MARKER = 3.2  # half of a marker's size in points


@dataclass(frozen=True)
class Label:
    """A text for the point (x, y)."""

    x: float
    y: float
    text: str
    colour: str


def place_labels(axis: Any, labels: Sequence[Label], *, size: float = 7.0) -> int:
    """Write the labels that there is room for, the first ones first; returns how many. The layout must be final."""
    points = axis.figure.dpi / 72
    obstacles = list(_drawn(axis, points))
    inside = axis.get_window_extent()
    placed = 0
    for label in labels:
        at = axis.transData.transform((label.x, label.y))
        for box in _boxes(at, len(label.text), size, points):
            if box[0] < inside.x0 or box[2] > inside.x1 + 8 or box[1] < inside.y0 or box[3] > inside.y1 + 8:
                continue
            if any(_overlap(box, other) for other in obstacles):
                continue
            obstacles.append(box)
            axis.annotate(
                label.text, (label.x, label.y), xytext=(box[:2] - at) / points, textcoords="offset points",
                fontsize=size, color=label.colour, ha="left", va="bottom", zorder=5,
            ).set_in_layout(False)  # fmt: skip
            placed += 1
            break
    return placed


def _boxes(at: NDArray[np.float64], letters: int, size: float, points: float) -> Iterator[NDArray[np.float64]]:
    """Where a label may be, as boxes in pixels (left, low, right, high), best first."""
    width, height = 0.62 * size * letters * points, 0.95 * size * points
    for right, up, side in SPOTS:
        left = at[0] + right * points - {"middle": width / 2, "right": 0.0, "left": width}[side]
        low = at[1] + up * points - (height / 2 if up == 0 else height if up < 0 else 0.0)
        yield np.array([left, low, left + width, low + height])


def _overlap(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return bool(one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3])


def _drawn(axis: Any, points: float) -> Iterator[NDArray[np.float64]]:
    """Boxes in pixels around markers, lines, intervals and the legend."""
    lines = [(line.get_transform().transform(line.get_xydata()), line.get_marker()) for line in axis.get_lines()]
    for collection in axis.collections:
        if hasattr(collection, "get_segments"):
            lines += [(collection.get_transform().transform(part), "None") for part in collection.get_segments()]
        offsets = collection.get_offset_transform().transform(collection.get_offsets())
        sizes = collection.get_sizes() if hasattr(collection, "get_sizes") else []
        for at in offsets if len(sizes) else []:  # rings
            half = np.sqrt(sizes[0]) / 2 * points
            yield np.array([*(at - half), *(at + half)])
    for path, marker in lines:
        if marker not in ("None", "", None):
            half = MARKER * points
            yield from (np.array([*(at - half), *(at + half)]) for at in path)
        for start, end in pairwise(path):
            count = max(2, int(np.hypot(*(end - start)) / STEP))
            yield from (np.array([*(at - 1), *(at + 1)]) for at in np.linspace(start, end, count))
    if legend := axis.get_legend():
        yield np.array(legend.get_window_extent().extents)
