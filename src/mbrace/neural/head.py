"""Heads: from vectors to the scores of pairs. COMET's estimator, factored; and the cosine, which has no weights.

The features of a pair are [h, r, h*r, |h-r|, h*s, |h-s|] for hypothesis h, reference r and source s (without the last
two in a head that reads no source). The first linear layer is a sum over features, so it splits into a part per
hypothesis, a part per reference, and a part per pair that needs h*r and |h-r| only: a third of the products. h*r and
|h-r| are symmetric, so where strings are hypotheses and references at once, (b, a), the *twin* of (a, b), shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import UserError, warn
from mbrace.neural.device import first_line
from mbrace.neural.encoder import repeats_for_cpu

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


# Bytes of the pairs scored at a time: a CPU is fastest with what fits its cache; a GPU needs large products.
_BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 5 << 28}
_FEWEST_PAIRS = 64


class Head(Protocol):
    """Scores of pairs from vectors."""

    def prepare(self, hypotheses: Tensor, sources: Tensor | None) -> Tensor:
        """The part of the score that does not depend on the reference, a row per hypothesis. `sources` has as many
        rows, or one."""
        ...

    def score(self, blocks: Sequence[PairBlock]) -> list[Tensor]:
        """A table (hypotheses, references) per block, float32."""
        ...

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Scores (pairs,) of hypothesis i against reference i."""
        ...


class Cosine:
    """The cosine of two vectors; `UnitEncoder` has normalised them."""

    def prepare(self, hypotheses: Tensor, sources: Tensor | None) -> Tensor:
        """Nothing to prepare: (hypotheses, 0)."""
        return hypotheses[:, :0]

    def score(self, blocks: Sequence[PairBlock]) -> list[Tensor]:
        """One matrix product per block."""
        return [linear(block.hypotheses, block.references) for block in blocks]

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Dot products of rows."""
        return (hypotheses * references).sum(dim=1)


class PairKernels(Protocol):
    """How a head scores pairs, in two steps: the part that twins share, and the rest."""

    def shared(self, hypotheses: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The first layer over h*r and |h-r|: (pairs, first hidden size)."""
        ...

    def finish(self, sums: Tensor, prepared: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """From `shared` and the parts of each side to scores (pairs,)."""
        ...


class TorchKernels:
    """Both steps by torch's own operations."""

    def __init__(self, head: Estimator) -> None:
        self._head = head

    def shared(self, hypotheses: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The features, then one matrix product."""
        h, r = hypotheses[rows], references[columns]
        return linear(torch.cat([h * r, (h - r).abs_()], dim=1), self._head.pair_weight)

    def finish(self, sums: Tensor, prepared: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Adds the parts of each side, then applies the other layers."""
        sums = sums + prepared[rows]
        sums += references[columns]
        return self._head.finish(sums)


class FeedForward:
    """A feed-forward head: `layers` are (weight, bias) pairs, with `activation` between them and `final` at the end."""

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        activation: Callable[[Tensor], Tensor],
        final: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.layers, self.rest = list(layers), list(layers[1:])
        self.activation, self.final = activation, final

    def __call__(self, rows: Tensor) -> Tensor:
        """From features (rows, features) to scores (rows,)."""
        weight, bias = self.layers[0]
        return self.finish(linear(rows, weight) + bias)

    def finish(self, hidden: Tensor) -> Tensor:
        """From the first layer's sums (rows, hidden) to scores (rows,)."""
        for weight, bias in self.rest:
            hidden = linear(self.activation(hidden), weight) + bias
        score = hidden.squeeze(1)
        return score if self.final is None else self.final(score)


class Estimator(FeedForward):
    """COMET's feed-forward head over 6 or 4 features of `units` numbers each."""

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        units: int,
        activation: Callable[[Tensor], Tensor],
        final: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(layers, activation, final)
        first, self._bias = layers[0]
        self.units = units
        self.features = first.shape[1] // units
        self._hypothesis, self._reference = first[:, :units], first[:, units : 2 * units]
        self.pair_weight = first[:, 2 * units : 4 * units].contiguous()  # over h*r and |h-r|
        self._source = first[:, 4 * units :].contiguous() if self.reads_source else None
        # numbers held in memory per pair
        self._width = 2 * units + sum(len(bias) for _, bias in layers) + len(self._bias)
        self._bytes = 0  # of pairs at a time, once the GPU has run out of memory with _BLOCK_BYTES; 0: it has not
        self._chosen: PairKernels | None = None

    @property
    def reads_source(self) -> bool:
        """Whether it has the two features with the source."""
        return self.features == 6

    def prepare(self, hypotheses: Tensor, sources: Tensor | None) -> Tensor:
        """The first layer's part for each hypothesis, bias included: (hypotheses, first hidden size)."""
        part = linear(hypotheses, self._hypothesis) + self._bias
        if self._source is not None:
            assert sources is not None
            part += linear(torch.cat([hypotheses * sources, (hypotheses - sources).abs()], dim=1), self._source)
        return part

    def score(self, blocks: Sequence[PairBlock]) -> list[Tensor]:
        """All pairs of all blocks. On a GPU as many blocks as fill it share matrix products. On a CPU each block has
        its own, so that a sentence's scores have the same bits whatever else is in the window."""
        groups: list[list[PairBlock]] = []
        room = 0
        for block in blocks:
            pairs = len(block.hypotheses) * len(block.references)
            if not groups or pairs > room:
                groups.append([])
                room = 0 if block.hypotheses.device.type == "cpu" else self._piece(block.references)
            groups[-1].append(block)
            room -= pairs
        return [table for group in groups for table in self.score_together(group)]

    def _piece(self, of: Tensor) -> int:
        """How many pairs are scored at a time."""
        size = self._bytes or _BLOCK_BYTES["cpu" if of.device.type == "cpu" else "cuda"]
        return max(_FEWEST_PAIRS, size // (of.element_size() * self._width))

    def score_together(self, blocks: Sequence[PairBlock]) -> list[Tensor]:
        """All pairs of all blocks in shared matrix products, in pieces that fit memory."""
        if not blocks:
            return []
        shapes = [(len(block.hypotheses), len(block.references)) for block in blocks]
        scores = self._score(
            torch.cat([block.hypotheses for block in blocks]),
            torch.cat([block.prepared for block in blocks]),
            torch.cat([block.references for block in blocks]),
            all_pairs(blocks),
        )
        tables = torch.split(scores, [rows * columns for rows, columns in shapes])
        return [table.view(shape) for table, shape in zip(tables, shapes, strict=True)]

    def _score(self, hypotheses: Tensor, prepared: Tensor, references: Tensor, pairs: PairIndices) -> Tensor:
        """Scores (rows x columns of all blocks,) of `pairs`."""
        vectors = hypotheses, references, prepared, linear(references, self._reference)
        scores = torch.empty(len(pairs.rows) + len(pairs.twin_rows), device=references.device, dtype=torch.float32)
        pieces = -(-len(pairs.rows) // self._piece(references))
        for piece in range(pieces):  # of about the same size: a small last one would cost as much as a large one
            begin, end = (len(pairs.rows) * part // pieces for part in (piece, piece + 1))
            self._score_piece(vectors, pairs, begin, end, scores)
        if pairs.positions is None:
            return scores
        ordered = torch.empty_like(scores)
        ordered[pairs.positions] = scores
        return ordered

    def _score_piece(
        self, vectors: tuple[Tensor, Tensor, Tensor, Tensor], pairs: PairIndices, begin: int, end: int, scores: Tensor
    ) -> None:
        """Scores of some pairs and their twins, put into `scores`; in halves if the GPU is out of memory."""
        try:
            hypotheses, references, prepared, reference_part = vectors
            kernels, rows, columns = self._kernels(references.device), pairs.rows[begin:end], pairs.columns[begin:end]
            shared = kernels.shared(hypotheses, references, rows, columns)
            twins = pairs.twin_rows[begin:end], pairs.twin_columns[begin:end]
            if len(twins[0]):
                again = kernels.finish(shared[: len(twins[0])], prepared, reference_part, *twins)
                scores[len(pairs.rows) + begin : len(pairs.rows) + begin + len(again)] = again
            scores[begin:end] = kernels.finish(shared, prepared, reference_part, rows, columns)
            return
        except torch.cuda.OutOfMemoryError:
            if end - begin <= _FEWEST_PAIRS:
                raise UserError(f"the GPU is out of memory for {end - begin} pairs; use the CPU") from None
        torch.cuda.empty_cache()
        if not self._bytes:
            warn("the GPU is out of memory: the head goes on with fewer pairs at a time")
        half, width = (begin + end) // 2, self._width * vectors[0].element_size()
        self._bytes = max(_FEWEST_PAIRS, (end - begin) // 2) * width
        self._score_piece(vectors, pairs, begin, half, scores)
        self._score_piece(vectors, pairs, half, end, scores)

    def _kernels(self, device: torch.device) -> PairKernels:
        if self._chosen is None:
            self._chosen = choose_kernels(self, device)
        return self._chosen

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Scores (pairs,) of aligned rows, over all features concatenated, as in the original's `estimate`."""
        h, r = hypotheses, references
        features = [h, r, h * r, (h - r).abs()]
        if self.reads_source:
            assert sources is not None
            features += [h * sources, (h - sources).abs()]
        return self(torch.cat(features, dim=1))


def linear(rows: Tensor, weight: Tensor) -> Tensor:
    """`rows @ weight.T`. On a CPU a row of the result has the same bits whatever the number of rows and threads.

    A CPU's matrix product rounds differently for few rows (so they are repeated) and for a single column.
    """
    if rows.device.type != "cpu":
        return rows @ weight.T
    if len(weight) == 1:
        return (rows * weight).sum(dim=1, keepdim=True)
    times = repeats_for_cpu(len(rows))
    return rows @ weight.T if times == 1 else (rows.repeat(times, 1) @ weight.T)[: len(rows)]


def choose_kernels(head: Estimator, device: torch.device) -> PairKernels:
    """Triton kernels on a GPU, if Triton is installed and scores a pair without an error; else torch's operations."""
    try:
        from mbrace.neural.kernels import TritonKernels, usable
    except ImportError:
        return TorchKernels(head)
    if not usable(head, device):
        return TorchKernels(head)
    kernels = TritonKernels(head)
    try:
        one = head.layers[0][0].new_zeros((1, head.units))
        part, first = torch.zeros_like(head.layers[0][1])[None], torch.zeros(1, dtype=torch.int64, device=device)
        kernels.finish(kernels.shared(one, one, first, first), part, part, first, first)
    except Exception as error:
        warn(f"the head runs without Triton's kernels, slower ({first_line(error)})")
        return TorchKernels(head)
    return kernels


def activation_named(name: str, path: Path) -> Any:
    """torch's activation by its name as the original looks it up (`tanh` is Tanh), or by its exact name (ReLU)."""
    nn: Any = torch.nn
    for spelled in (name.title(), name):
        kind: Any = getattr(nn, spelled, None)
        if kind is nn.Identity or getattr(kind, "__module__", None) == nn.modules.activation.__name__:
            try:
                return kind()
            except TypeError:  # one that needs settings, such as MultiheadAttention
                continue
    raise UserError(f"{path}: activation {name}: torch.nn has none of that name that needs no settings; try Tanh")
