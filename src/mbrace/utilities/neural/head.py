"""COMET's estimator over all pairs, factored; and the cosine, which is a head without weights.

The features of a pair are [h, r, h*r, |h-r|, h*s, |h-s|] for hypothesis h, reference r and source s (without the last
two in a head that reads no source). The first linear layer is a sum over features, so it splits into a part for each
hypothesis, one for each reference, and one for each pair that only h*r and |h-r| enter: a third of the products. Those
two are symmetric, so where hypotheses are their own references, (a, b) and (b, a) share that part too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, require
from mbrace.utilities.neural.encoder import FEWEST_ROWS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Bytes of one block of pairs: what fits a CPU's cache is fastest there, a GPU wants large products.
_BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 5 << 28}
_FEWEST_PAIRS = 64


@dataclass(frozen=True)
class Block:
    """One ask as vectors: hypotheses x references of one sentence."""

    hypotheses: Tensor  # (hypotheses, units)
    prepared: Tensor  # (hypotheses, ...): what `Head.prepare` made of them
    references: Tensor  # (references, units)
    names: tuple[NDArray[np.int64], NDArray[np.int64]]  # numbers of the strings: equal number, equal string


@dataclass(frozen=True)
class Pairs:
    """(row, column) pairs of hypotheses and references. Each of the first ones also stands for a *twin*: (b, a) for
    (a, b), which has the same h*r and |h-r|."""

    rows: Tensor
    columns: Tensor
    twin_rows: Tensor
    twin_columns: Tensor
    places: Tensor | None = None  # in the table, of the pairs and then of the twins; None: in their order


class Head(Protocol):
    """Scores of pairs from vectors."""

    def prepare(self, hypotheses: Tensor, sources: Tensor | None) -> Tensor:
        """What does not depend on the reference, once for each hypothesis, given its source (or one for all)."""
        ...

    def score(self, blocks: Sequence[Block]) -> list[Tensor]:
        """For each block (hypotheses, references) float32."""
        ...

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Scores (pairs,) of hypothesis i against reference i."""
        ...


class Cosine:
    """The cosine of two vectors; vectors are normalised by `normalise` when they are made."""

    def prepare(self, hypotheses: Tensor, sources: Tensor | None) -> Tensor:
        """Nothing."""
        return hypotheses[:, :0]

    def score(self, blocks: Sequence[Block]) -> list[Tensor]:
        """One matrix product a block."""
        return [linear(block.hypotheses, block.references) for block in blocks]

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Dot products of rows."""
        return (hypotheses * references).sum(dim=1)


class Steps(Protocol):
    """What a head does with pairs, up to the part that twins share and from there on."""

    def shared(self, hypotheses: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The first layer over h*r and |h-r|: (pairs, first hidden size)."""
        ...

    def finish(self, sums: Tensor, prepared: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """From `shared` and the parts of each side to scores (pairs,)."""
        ...


class Plain:
    """The steps in torch's own operations."""

    def __init__(self, head: Estimator) -> None:
        self._head = head

    def shared(self, hypotheses: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Features, and one product."""
        torch = require("torch", extra="neural")
        h, r = hypotheses[rows], references[columns]
        return linear(torch.cat([h * r, (h - r).abs_()], dim=1), self._head.pair_weight)

    def finish(self, sums: Tensor, prepared: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The parts added, and the other layers."""
        sums = sums + prepared[rows]
        sums += references[columns]
        return self._head.finish(sums)


class Estimator:
    """COMET's feed-forward head. `layers` are (weight, bias) pairs, the first over 6 or 4 features of `units`."""

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        units: int,
        activation: Callable[[Tensor], Tensor],
        final: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        (first, self._bias), *self.rest = layers
        self.layers = list(layers)
        self.units = units
        self.features = first.shape[1] // units
        self.activation, self.final = activation, final
        self._hypothesis, self._reference = first[:, :units], first[:, units : 2 * units]
        self.pair_weight = first[:, 2 * units : 4 * units].contiguous()  # over h*r and |h-r|
        self._source = first[:, 4 * units :].contiguous() if self.reads_source else None
        self._width = 2 * units + sum(len(bias) for _, bias in layers) + len(self._bias)  # numbers held for a pair
        self._bytes = 0  # for one piece of pairs, once there was too little memory for as many as we take
        self._chosen: Steps | None = None

    @property
    def reads_source(self) -> bool:
        """Whether it has the two features with the source."""
        return self.features == 6

    def prepare(self, hypotheses: Tensor, sources: Tensor | None) -> Tensor:
        """The first layer's part for each hypothesis, bias included: (hypotheses, first hidden size)."""
        torch = require("torch", extra="neural")
        part = linear(hypotheses, self._hypothesis) + self._bias
        if self._source is not None:
            assert sources is not None
            part += linear(torch.cat([hypotheses * sources, (hypotheses - sources).abs()], dim=1), self._source)
        return part

    def score(self, blocks: Sequence[Block]) -> list[Tensor]:
        """All pairs of all blocks. On a GPU blocks share products, as many at a time as fill it; on a CPU each is its
        own, so that a sentence's scores are the same bits whatever else the window holds."""
        groups: list[list[Block]] = []
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
        """How many pairs at a time fit the memory that we take."""
        size = self._bytes or _BLOCK_BYTES["cpu" if of.device.type == "cpu" else "cuda"]
        return max(_FEWEST_PAIRS, size // (of.element_size() * self._width))

    def score_together(self, blocks: Sequence[Block]) -> list[Tensor]:
        """All pairs of all blocks in products over the pairs of several, in pieces that fit memory."""
        torch = require("torch", extra="neural")
        if not blocks:
            return []
        shapes = [(len(block.hypotheses), len(block.references)) for block in blocks]
        scores = self._score(
            torch.cat([block.hypotheses for block in blocks]),
            torch.cat([block.prepared for block in blocks]),
            torch.cat([block.references for block in blocks]),
            _pairs(blocks),
        )
        tables = torch.split(scores, [rows * columns for rows, columns in shapes])
        return [table.view(shape) for table, shape in zip(tables, shapes, strict=True)]

    def _score(self, hypotheses: Tensor, prepared: Tensor, references: Tensor, pairs: Pairs) -> Tensor:
        """Scores (rows x columns of all blocks,) of `pairs`."""
        torch = require("torch", extra="neural")
        vectors = hypotheses, references, prepared, linear(references, self._reference)
        scores = torch.empty(len(pairs.rows) + len(pairs.twin_rows), device=references.device, dtype=torch.float32)
        pieces = -(-len(pairs.rows) // self._piece(references))
        for piece in range(pieces):  # of about the same size: a small last one would cost as much as a large one
            begin, end = (len(pairs.rows) * part // pieces for part in (piece, piece + 1))
            self._score_piece(vectors, pairs, begin, end, scores)
        if pairs.places is None:
            return scores  # type: ignore[no-any-return]
        ordered = torch.empty_like(scores)
        ordered[pairs.places] = scores
        return ordered  # type: ignore[no-any-return]

    def _score_piece(
        self, vectors: tuple[Tensor, Tensor, Tensor, Tensor], pairs: Pairs, begin: int, end: int, scores: Tensor
    ) -> None:
        """Scores of some pairs and their twins, put into `scores`; a GPU that is out of memory gets them in halves."""
        torch = require("torch", extra="neural")
        try:
            hypotheses, references, prepared, reference_part = vectors
            steps, rows, columns = self._steps(references.device), pairs.rows[begin:end], pairs.columns[begin:end]
            shared = steps.shared(hypotheses, references, rows, columns)
            twins = pairs.twin_rows[begin:end], pairs.twin_columns[begin:end]
            if len(twins[0]):
                again = steps.finish(shared[: len(twins[0])], prepared, reference_part, *twins)
                scores[len(pairs.rows) + begin : len(pairs.rows) + begin + len(again)] = again
            scores[begin:end] = steps.finish(shared, prepared, reference_part, rows, columns)
            return
        except torch.cuda.OutOfMemoryError:
            if end - begin <= _FEWEST_PAIRS:
                raise UserError(f"the GPU is out of memory for {end - begin} pairs; use the CPU") from None
        torch.cuda.empty_cache()
        if not self._bytes:
            warnings.warn("the GPU is out of memory: the head goes on with fewer pairs at a time", stacklevel=2)
        half, width = (begin + end) // 2, self._width * vectors[0].element_size()
        self._bytes = max(_FEWEST_PAIRS, (end - begin) // 2) * width
        self._score_piece(vectors, pairs, begin, half, scores)
        self._score_piece(vectors, pairs, half, end, scores)

    def _steps(self, device: torch.device) -> Steps:
        """The kernels for a GPU where Triton is at hand and works, else torch's operations."""
        if self._chosen is None:
            self._chosen = choose_steps(self, device)
        return self._chosen

    def finish(self, hidden: Tensor) -> Tensor:
        """From the first layer's sums (pairs, hidden) to scores (pairs,)."""
        for weight, bias in self.rest:
            hidden = linear(self.activation(hidden), weight) + bias
        score = hidden.squeeze(1)
        return score if self.final is None else self.final(score)

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """The plain concatenation of the original's `estimate`, for aligned rows: (pairs,)."""
        torch = require("torch", extra="neural")
        h, r = hypotheses, references
        features = [h, r, h * r, (h - r).abs()]
        if self.reads_source:
            assert sources is not None
            features += [h * sources, (h - sources).abs()]
        weight, bias = self.layers[0]
        return self.finish(linear(torch.cat(features, dim=1), weight) + bias)


def linear(rows: Tensor, weight: Tensor) -> Tensor:
    """`rows @ weight.T`, each row the same bits on a CPU whatever the number of rows and threads.

    A CPU's product takes other paths for a few rows (repeated here to make them more) and for a single column.
    """
    torch = require("torch", extra="neural")
    if rows.device.type != "cpu":
        return rows @ weight.T
    if len(weight) == 1:
        return (rows * weight).sum(dim=1, keepdim=True)
    fewest = FEWEST_ROWS * torch.get_num_threads()
    if not 0 < len(rows) < fewest:
        return rows @ weight.T
    return (rows.repeat(-(-fewest // len(rows)), 1) @ weight.T)[: len(rows)]


def moved(indices: NDArray[np.int64], device: torch.device) -> Tensor:
    """Indices on the device, without waiting for what it is doing."""
    torch = require("torch", extra="neural")
    return torch.from_numpy(indices).to(device, non_blocking=True)  # type: ignore[no-any-return]


def _pairs(blocks: Sequence[Block]) -> Pairs:
    """All pairs of all blocks, their hypotheses and references numbered through. What goes to the device is a few
    indices of each block; the pairs are made there."""
    torch = require("torch", extra="neural")
    device = blocks[0].references.device
    shapes = np.array([(len(block.hypotheses), len(block.references)) for block in blocks])
    sizes, starts = shapes.prod(axis=1), np.cumsum([(0, 0), *shapes], axis=0)[:-1]
    firsts = np.cumsum(sizes) - sizes
    both = [_on_both_sides(block) for block in blocks]
    places, twins = None, 0
    if any(len(rows) for rows, _ in both):
        parts = [_twins_first(*each, device) for each in zip(both, shapes, firsts, strict=True)]
        places = torch.cat([place for kind in zip(*parts, strict=True) for place in kind])
        twins = sum(len(twin) for _, _, twin in parts)
    block_of = torch.repeat_interleave(moved(sizes, device), output_size=int(sizes.sum()))
    at = torch.arange(len(block_of), device=device) if places is None else places
    first, width, row, column = moved(np.stack([firsts, shapes[:, 1], *starts.T]), device)[:, block_of[at]]
    rows, columns = row + (at - first) // width, column + (at - first) % width
    end = len(at) - twins
    return Pairs(rows[:end], columns[:end], rows[end:], columns[end:], places)


def _on_both_sides(block: Block) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the strings of both sides are, among hypotheses and among references; none if fewer than a tenth of the
    pairs have their mirror image among them: k strings on both sides, k(k-1)/2."""
    _, rows, columns = np.intersect1d(*block.names, return_indices=True)
    kept = len(rows) if len(rows) * (len(rows) - 1) / 2 >= 0.1 * len(block.names[0]) * len(block.names[1]) else 0
    return rows[:kept], columns[:kept]


def _twins_first(
    both: tuple[NDArray[np.int64], NDArray[np.int64]], shape: NDArray[np.int64], first: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Places of a block in the table: of pairs that have a twin, of pairs that have none, and of the twins."""
    torch = require("torch", extra="neural")
    height, width = shape.tolist()
    ordered = [np.r_[side, np.delete(np.arange(size), side)] for side, size in zip(both, (height, width), strict=True)]
    order, count = moved(np.concatenate(ordered), device), len(both[0])
    grid = order[:height, None] * width + (order[height:] + int(first))
    low, high = torch.triu_indices(count, count, 1, device=device)
    lone = grid.diagonal()[:count], grid[:count, count:].flatten(), grid[count:].flatten()
    return grid[low, high], torch.cat(lone), grid[high, low]


def choose_steps(head: Estimator, device: torch.device) -> Steps:
    """Triton's kernels on a GPU that has Triton and a compiler for it, after they scored one pair."""
    torch = require("torch", extra="neural")
    try:
        from mbrace.utilities.neural.fused import Fused, usable
    except ImportError:
        return Plain(head)
    if not usable(head, device):
        return Plain(head)
    steps = Fused(head)
    try:
        one = head.layers[0][0].new_zeros((1, head.units))
        part, first = torch.zeros_like(head.layers[0][1])[None], torch.zeros(1, dtype=torch.int64, device=device)
        steps.finish(steps.shared(one, one, first, first), part, part, first, first)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"the head runs without Triton's kernels, slower ({reason})", stacklevel=2)
        return Plain(head)
    return steps


def activation_named(name: str, path: Path) -> Any:
    """torch's activation as the original finds it (`tanh` is Tanh), or by its exact name (ReLU, GELU)."""
    nn = require("torch.nn", extra="neural")
    for spelled in (name.title(), name):
        kind: Any = getattr(nn, spelled, None)
        if kind is nn.Identity or getattr(kind, "__module__", None) == nn.modules.activation.__name__:
            try:
                return kind()
            except TypeError:  # one that needs settings, such as MultiheadAttention
                continue
    raise UserError(f"{path}: activation {name}: torch.nn has none of that name that needs no settings; try Tanh")
