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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import UserError, warn
from mbrace.neural.device import halve_on_oom, triton_kernels
from mbrace.neural.tokens import repeats_for_cpu

# Bytes of the pairs scored at a time: a CPU is fastest with what fits its cache; a GPU needs large products.
_BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 5 << 28}
_FEWEST_PAIRS = 64


@dataclass(frozen=True)
class PairBlock:
    """One ask as vectors: hypotheses x references of one sentence, and its source where the head reads it."""

    hypotheses: Tensor  # (hypotheses, units)
    references: Tensor  # (references, units)
    source: Tensor | None = None  # (1, units)


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


class Cosine:
    """The cosine of two vectors of length 1."""

    def score(self, blocks: Sequence[PairBlock]) -> list[Tensor]:
        """A table (hypotheses, references) per block, each by one matrix product."""
        return [linear(block.hypotheses, block.references) for block in blocks]

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Scores (pairs,) of hypothesis i against reference i."""
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
    prepared: Tensor  # (hypotheses, first hidden size): the first layer's part for each hypothesis
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
        numbers = 2 * units + sum(len(bias) for _, bias in layers) + len(self._bias)  # held in memory per pair
        size = _BLOCK_BYTES["cpu" if first.device.type == "cpu" else "cuda"]
        self._most_pairs = max(_FEWEST_PAIRS, size // (first.element_size() * numbers))  # scored at a time
        self._warned_of_memory = False

    @property
    def reads_source(self) -> bool:
        """Whether it has the two features with the source."""
        return self.features == 6

    def score(self, blocks: Sequence[PairBlock]) -> list[Tensor]:
        """A table (hypotheses, references) per block, float32. On a GPU as many blocks as fill it share matrix
        products. On a CPU each block has its own, so that a sentence's scores have the same bits whatever else is in
        the window."""
        groups: list[list[PairBlock]] = []
        room = 0
        for block in blocks:
            pairs = len(block.hypotheses) * len(block.references)
            if not groups or pairs > room:
                groups.append([])
                room = 0 if block.hypotheses.device.type == "cpu" else self._most_pairs
            groups[-1].append(block)
            room -= pairs
        return [table for group in groups for table in self.score_together(group)]

    def score_together(self, blocks: Sequence[PairBlock]) -> list[Tensor]:
        """The same for blocks that share matrix products, in pieces that fit memory."""
        shapes = [(len(block.hypotheses), len(block.references)) for block in blocks]
        hypotheses = torch.cat([block.hypotheses for block in blocks])
        references = torch.cat([block.references for block in blocks])
        sources = [each.source.expand_as(each.hypotheses) for each in blocks if each.source is not None]
        prepared = self._prepare(hypotheses, torch.cat(sources) if sources else None)
        vectors = PairVectors(hypotheses, references, prepared, linear(references, self._reference))
        scores = self._score(vectors, *all_pairs(blocks))
        tables = torch.split(scores, [rows * columns for rows, columns in shapes])
        return [table.view(shape) for table, shape in zip(tables, shapes, strict=True)]

    def _prepare(self, hypotheses: Tensor, sources: Tensor | None) -> Tensor:
        """The first layer's part for each hypothesis, bias included: (hypotheses, first hidden size)."""
        part = linear(hypotheses, self._hypothesis) + self._bias
        if self._source is not None:
            assert sources is not None
            part += linear(torch.cat([hypotheses * sources, (hypotheses - sources).abs()], dim=1), self._source)
        return part

    def _score(self, vectors: PairVectors, rows: Tensor, columns: Tensor) -> Tensor:
        """Scores (pairs,) of these rows and columns, in pieces of about the same size that fit memory: a small last one
        would cost as much as a large one. In halves if the GPU is out of memory."""

        def score(part: range) -> Tensor:
            return self.pairs(vectors, rows[part.start : part.stop], columns[part.start : part.stop])

        def smaller(half: range) -> None:
            self._most_pairs = max(_FEWEST_PAIRS, len(half))
            if not self._warned_of_memory:
                self._warned_of_memory = True
                warn("the GPU is out of memory: continuing with fewer pairs at a time")

        pieces = max(1, -(-len(rows) // self._most_pairs))
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
        kernels = triton_kernels(self.pair_weight.device)
        return kernels.TritonKernels(self) if kernels is not None and kernels.has_activation(self) else None

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Scores (pairs,) of aligned rows, over all features concatenated, as in the original's `estimate`."""
        h, r = hypotheses, references
        features = [h, r, h * r, (h - r).abs()]
        if self.reads_source:
            assert sources is not None
            features += [h * sources, (h - sources).abs()]
        return self(torch.cat(features, dim=1))


Head: TypeAlias = Cosine | Estimator


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
