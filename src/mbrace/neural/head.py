"""Heads: from vectors to the scores of pairs. COMET's estimator, factored; and the cosine, which has no weights.

The features of a pair are [h, r, h*r, |h-r|, h*s, |h-s|] for hypothesis h, reference r and source s (without the last
two in a head that reads no source). The first linear layer is a sum over features, so it splits into a part per
hypothesis, a part per reference, and a part per pair that needs h*r and |h-r| only: a third of the products.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import UserError, warn
from mbrace.neural.device import first_line, halve_on_oom
from mbrace.neural.encoder import repeats_for_cpu

# Bytes of the pairs scored at a time: a CPU is fastest with what fits its cache; a GPU needs large products.
_BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 5 << 28}
_FEWEST_PAIRS = 64


@dataclass(frozen=True)
class PairBlock:
    """One ask as vectors: hypotheses x references of one sentence."""

    hypotheses: Tensor  # (hypotheses, units)
    prepared: Tensor  # (hypotheses, ...): what `Head.prepare` made of them
    references: Tensor  # (references, units)


def to_device(indices: NDArray[np.int64], device: torch.device) -> Tensor:
    """Indices on the device, without waiting for what it is doing."""
    return torch.from_numpy(indices).to(device, non_blocking=True)


def all_pairs(blocks: Sequence[PairBlock]) -> tuple[Tensor, Tensor]:
    """The rows and columns, each (pairs,), of all pairs of all blocks, numbered through all blocks. Only a few indices
    per block are copied to the device, where the pairs are made."""
    device = blocks[0].references.device
    shapes = np.array([(len(block.hypotheses), len(block.references)) for block in blocks])
    sizes, starts = shapes.prod(axis=1), np.cumsum([(0, 0), *shapes], axis=0)[:-1]
    firsts = np.cumsum(sizes) - sizes
    block_of = torch.repeat_interleave(to_device(sizes, device), output_size=int(sizes.sum()))
    at = torch.arange(len(block_of), device=device)
    first, width, row, column = to_device(np.stack([firsts, shapes[:, 1], *starts.T]), device)[:, block_of]
    return row + (at - first) // width, column + (at - first) % width


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


class PairVectors(NamedTuple):
    """What the scores of some blocks' pairs are computed from."""

    hypotheses: Tensor  # (hypotheses, units)
    references: Tensor  # (references, units)
    prepared: Tensor  # (hypotheses, first hidden size)
    reference_part: Tensor  # (references, first hidden size)


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
        hypotheses, prepared, references = (
            torch.cat([getattr(block, side) for block in blocks]) for side in ("hypotheses", "prepared", "references")
        )
        vectors = PairVectors(hypotheses, references, prepared, linear(references, self._reference))
        scores = self._score(vectors, *all_pairs(blocks))
        tables = torch.split(scores, [rows * columns for rows, columns in shapes])
        return [table.view(shape) for table, shape in zip(tables, shapes, strict=True)]

    def _score(self, vectors: PairVectors, rows: Tensor, columns: Tensor) -> Tensor:
        """Scores (pairs,) of these rows and columns, in pieces of about the same size that fit memory: a small last one
        would cost as much as a large one. In halves if the GPU is out of memory."""

        def score(part: range) -> Tensor:
            return self.pairs(vectors, rows[part.start : part.stop], columns[part.start : part.stop])

        def smaller(half: range) -> None:
            if not self._bytes:
                warn("the GPU is out of memory: the head goes on with fewer pairs at a time")
            self._bytes = max(_FEWEST_PAIRS, len(half)) * self._width * vectors.references.element_size()

        pieces = max(1, -(-len(rows) // self._piece(vectors.references)))
        ends = [len(rows) * piece // pieces for piece in range(pieces + 1)]
        parts = [halve_on_oom(score, range(*both), "one pair", smaller) for both in itertools.pairwise(ends)]
        return torch.cat([scores for part in parts for scores in part])

    def pairs(self, vectors: PairVectors, rows: Tensor, columns: Tensor) -> Tensor:
        """Scores (pairs,) of these rows and columns."""
        if self._kernels is not None:
            return self._kernels(vectors, rows, columns)  # type: ignore[no-any-return]
        h, r = vectors.hypotheses[rows], vectors.references[columns]
        sums = linear(torch.cat([h * r, (h - r).abs_()], dim=1), self.pair_weight)
        sums += vectors.prepared[rows]
        sums += vectors.reference_part[columns]
        return self.finish(sums)

    @cached_property
    def _kernels(self) -> Any:
        """Triton's, or None for torch's operations."""
        return choose_kernels(self, self.pair_weight.device)

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


def choose_kernels(head: Estimator, device: torch.device) -> Any:
    """Triton kernels on a GPU, if Triton is installed and scores a pair without an error; None for torch's."""
    try:
        from mbrace.neural.kernels import TritonKernels, usable
    except ImportError:
        return None
    if not usable(head, device):
        return None
    kernels = TritonKernels(head)
    try:
        one = head.layers[0][0].new_zeros((1, head.units))
        part, first = torch.zeros_like(head.layers[0][1])[None], torch.zeros(1, dtype=torch.int64, device=device)
        kernels(PairVectors(one, one, part, part), first, first)
    except Exception as error:
        warn(f"the head runs without Triton's kernels, slower ({first_line(error)})")
        return None
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
