"""The pairs of hypotheses and references that a head scores, as indices on the device.

The features h*r and |h-r| are symmetric, so where strings are hypotheses and references at once, the pairs (a, b) and
(b, a) share them: (b, a) is the *twin* of (a, b).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TWINS_FROM = 1 << 20  # pairs at a time on a GPU: finding the twins of fewer takes longer than scoring them


@dataclass(frozen=True)
class PairBlock:
    """One ask as vectors: hypotheses x references of one sentence."""

    hypotheses: Tensor  # (hypotheses, units)
    prepared: Tensor  # (hypotheses, ...): what `Head.prepare` made of them
    references: Tensor  # (references, units)
    names: tuple[NDArray[np.int64], NDArray[np.int64]]  # numbers of the strings on both sides: equal for equal strings


@dataclass(frozen=True)
class PairIndices:
    """Pairs to score: `rows` of hypotheses and `columns` of references, (pairs,). The first of these pairs have twins,
    which are `twin_rows` and `twin_columns` in the same order."""

    rows: Tensor
    columns: Tensor
    twin_rows: Tensor
    twin_columns: Tensor
    positions: Tensor | None = None  # in the table of scores, of all pairs, then of the twins; None: 0, 1, ...


def to_device(indices: NDArray[np.int64], device: torch.device) -> Tensor:
    """Indices on the device, without waiting for what it is doing."""
    return torch.from_numpy(indices).to(device, non_blocking=True)


def all_pairs(blocks: Sequence[PairBlock]) -> PairIndices:
    """All pairs of all blocks; rows and columns are numbered through all blocks. Only a few indices per block are
    copied to the device, where the pairs are made."""
    device = blocks[0].references.device
    shapes = np.array([(len(block.hypotheses), len(block.references)) for block in blocks])
    sizes, starts = shapes.prod(axis=1), np.cumsum([(0, 0), *shapes], axis=0)[:-1]
    firsts = np.cumsum(sizes) - sizes
    both = [_on_both_sides(block) for block in blocks] if device.type == "cpu" or sizes.sum() >= _TWINS_FROM else []
    positions, twins = None, 0
    if any(len(rows) for rows, _ in both):
        parts = [_twins_first(*each, device) for each in zip(both, shapes, firsts, strict=True)]
        positions = torch.cat([part for kind in zip(*parts, strict=True) for part in kind])
        twins = sum(len(twin) for _, _, twin in parts)
    block_of = torch.repeat_interleave(to_device(sizes, device), output_size=int(sizes.sum()))
    at = torch.arange(len(block_of), device=device) if positions is None else positions
    first, width, row, column = to_device(np.stack([firsts, shapes[:, 1], *starts.T]), device)[:, block_of[at]]
    rows, columns = row + (at - first) // width, column + (at - first) % width
    end = len(at) - twins
    return PairIndices(rows[:end], columns[:end], rows[end:], columns[end:], positions)


def _on_both_sides(block: PairBlock) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the strings that are on both sides, among hypotheses and among references. Empty if fewer than a tenth
    of the pairs would have a twin: k strings on both sides make k(k-1)/2 twins."""
    _, rows, columns = np.intersect1d(*block.names, return_indices=True)
    kept = len(rows) if len(rows) * (len(rows) - 1) / 2 >= 0.1 * len(block.names[0]) * len(block.names[1]) else 0
    return rows[:kept], columns[:kept]


def _twins_first(
    both: tuple[NDArray[np.int64], NDArray[np.int64]], shape: NDArray[np.int64], first: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions in the table of a block's pairs that have a twin, of those that have none, and of the twins."""
    height, width = shape.tolist()
    ordered = [np.r_[side, np.delete(np.arange(size), side)] for side, size in zip(both, (height, width), strict=True)]
    order, count = to_device(np.concatenate(ordered), device), len(both[0])
    grid = order[:height, None] * width + (order[height:] + int(first))
    low, high = torch.triu_indices(count, count, 1, device=device)
    lone = grid.diagonal()[:count], grid[:count, count:].flatten(), grid[count:].flatten()
    return grid[low, high], torch.cat(lone), grid[high, low]
