"""COMET's estimator over all pairs, factored; and the cosine, which is a head without weights.

The features of a pair are [h, r, h*r, |h-r|, h*s, |h-s|] for hypothesis h, reference r and source s (without the last
two in a head that reads no source). The first linear layer is a sum over features, so it splits into a part for each
hypothesis, one for each reference, and one for each pair that only h*r and |h-r| enter: a third of the products. Those
two are symmetric, so where hypotheses are their own references, (a, b) and (b, a) share that part too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, require
from mbrace.neural.encoder import FEWEST_ROWS

if TYPE_CHECKING:
    from torch import Tensor

# Bytes of one block of pairs: what fits a CPU's cache is fastest there, a GPU wants large products.
_BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}

# An order of pairs, and where each group of pairs that share their part starts in it (and the end).
Groups: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64]]"


@dataclass(frozen=True)
class Block:
    """One ask as vectors: hypotheses x references of one sentence."""

    hypotheses: Tensor  # (hypotheses, units)
    prepared: Tensor  # (hypotheses, ...): what `Head.prepare` made of them
    references: Tensor  # (references, units)
    names: tuple[NDArray[np.int64], NDArray[np.int64]]  # numbers of the strings: equal number, equal string


class Head(Protocol):
    """Scores of pairs from vectors."""

    def prepare(self, hypotheses: Tensor, source: Tensor | None) -> Tensor:
        """What does not depend on the reference, once for each hypothesis."""
        ...

    def score(self, blocks: Sequence[Block]) -> list[Tensor]:
        """For each block (hypotheses, references) float32."""
        ...

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Scores (pairs,) of hypothesis i against reference i."""
        ...


class Cosine:
    """The cosine of two vectors; vectors are normalised by `normalise` when they are made."""

    def prepare(self, hypotheses: Tensor, source: Tensor | None) -> Tensor:
        """Nothing."""
        return hypotheses[:, :0]

    def score(self, blocks: Sequence[Block]) -> list[Tensor]:
        """One matrix product a block."""
        return [linear(block.hypotheses, block.references) for block in blocks]

    def aligned(self, hypotheses: Tensor, references: Tensor, sources: Tensor | None) -> Tensor:
        """Dot products of rows."""
        return (hypotheses * references).sum(dim=1)


class Estimator:
    """COMET's feed-forward head. `layers` are (weight, bias) pairs, the first over 6 or 4 features of `units`."""

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        units: int,
        activation: Callable[[Tensor], Tensor],
        final: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        (first, self._bias), *self._rest = layers
        self.layers = list(layers)
        self.units = units
        self.features = first.shape[1] // units
        self.activation, self.final = activation, final
        self._hypothesis, self._reference = first[:, :units], first[:, units : 2 * units]
        self._pair = first[:, 2 * units : 4 * units].contiguous()
        self._source = first[:, 4 * units :].contiguous() if self.reads_source else None

    @property
    def reads_source(self) -> bool:
        """Whether it has the two features with the source."""
        return self.features == 6

    def prepare(self, hypotheses: Tensor, source: Tensor | None) -> Tensor:
        """The first layer's part for each hypothesis, bias included: (hypotheses, first hidden size)."""
        torch = require("torch", extra="neural")
        part = linear(hypotheses, self._hypothesis) + self._bias
        if self._source is not None:
            assert source is not None
            part += linear(torch.cat([hypotheses * source, (hypotheses - source).abs()], dim=1), self._source)
        return part

    def score(self, blocks: Sequence[Block]) -> list[Tensor]:
        """All pairs of all blocks. On a GPU the blocks share products; on a CPU each is its own, so that a
        sentence's scores are the same bits whatever else the window holds."""
        if not blocks:
            return []
        if blocks[0].hypotheses.device.type == "cpu":
            return [self.score_together([block])[0] for block in blocks]
        alone = {place: self.score_together([block])[0] for place, block in enumerate(blocks) if _mirrors(block)}
        rest = iter(self.score_together([block for place, block in enumerate(blocks) if place not in alone]))
        return [alone[place] if place in alone else next(rest) for place in range(len(blocks))]

    def score_together(self, blocks: Sequence[Block]) -> list[Tensor]:
        """All pairs of all blocks in products over the pairs of several, in pieces that fit memory."""
        torch = require("torch", extra="neural")
        if not blocks:
            return []
        shapes = [(len(block.hypotheses), len(block.references)) for block in blocks]
        starts = np.cumsum([(0, 0), *shapes], axis=0)[:-1]
        pairs = np.concatenate(
            [np.indices(shape).reshape(2, -1) + start[:, None] for shape, start in zip(shapes, starts, strict=True)],
            axis=1,
        )
        groups = _mirrored(blocks[0], pairs) if len(blocks) == 1 and _mirrors(blocks[0]) else None
        scores = self._pairs(
            torch.cat([block.hypotheses for block in blocks]),
            torch.cat([block.prepared for block in blocks]),
            torch.cat([block.references for block in blocks]),
            pairs,
            groups,
        )
        tables = torch.split(scores, [rows * columns for rows, columns in shapes])
        return [table.view(shape) for table, shape in zip(tables, shapes, strict=True)]

    def _pairs(
        self, hypotheses: Tensor, prepared: Tensor, references: Tensor, pairs: NDArray[np.int64], groups: Groups | None
    ) -> Tensor:
        """Scores (pairs,) of (row, column) `pairs` (2, pairs); pairs in one of `groups` share their part."""
        torch = require("torch", extra="neural")
        device, count = references.device, pairs.shape[1]
        order, starts = (np.arange(count), np.arange(count + 1)) if groups is None else groups
        rows, columns = (torch.from_numpy(side if groups is None else side[order]).to(device) for side in pairs)
        reference_part = linear(references, self._reference)
        scores = torch.empty(count, device=device, dtype=references.dtype)
        width = 2 * self.units + sum(weight.shape[0] for weight, _ in self.layers) + len(self._bias)
        size = max(64, _BLOCK_BYTES["cpu" if device.type == "cpu" else "cuda"] // (4 * width))
        for begin in range(0, len(starts) - 1, size):
            chosen = starts[begin : begin + size + 1]
            here = slice(int(chosen[0]), int(chosen[-1]))
            once = here if groups is None else torch.from_numpy(chosen[:-1]).to(device)
            h, r = hypotheses[rows[once]], references[columns[once]]
            shared = linear(torch.cat([h * r, (h - r).abs_()], dim=1), self._pair)
            if groups is not None:
                copies = torch.from_numpy(np.diff(chosen)).to(device)
                shared = shared.repeat_interleave(copies, dim=0, output_size=here.stop - here.start)
            shared += prepared[rows[here]]
            shared += reference_part[columns[here]]
            scores[here] = self._finish(shared)
        if groups is None:
            return scores  # type: ignore[no-any-return]
        back = torch.empty_like(scores)
        back[torch.from_numpy(order).to(device)] = scores
        return back  # type: ignore[no-any-return]

    def _finish(self, hidden: Tensor) -> Tensor:
        """From the first layer's sums (pairs, hidden) to scores (pairs,)."""
        for weight, bias in self._rest:
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
        return self._finish(linear(torch.cat(features, dim=1), weight) + bias)


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


def _mirrors(block: Block) -> bool:
    """Whether a tenth of the pairs or more have their mirror image among them: k strings on both sides, k(k-1)/2."""
    both = np.intersect1d(*block.names).size
    return bool(both * (both - 1) / 2 >= 0.1 * len(block.names[0]) * len(block.names[1]))


def _mirrored(block: Block, pairs: NDArray[np.int64]) -> Groups:
    """Groups of (a, b) with (b, a), whose h*r and |h-r| are the same."""
    left, right = block.names[0][pairs[0]], block.names[1][pairs[1]]
    low, high = np.minimum(left, right), np.maximum(left, right)
    order = np.lexsort((high, low))
    low, high = low[order], high[order]
    new = np.flatnonzero((low[1:] != low[:-1]) | (high[1:] != high[:-1])) + 1
    return order, np.concatenate([[0], new, [len(left)]])


def activation_named(name: str, path: Path) -> Any:
    """torch's activation as the original finds it (`tanh` is Tanh), or by its exact name (ReLU, GELU)."""
    nn = require("torch.nn", extra="neural")
    for spelled in (name.title(), name):
        if hasattr(nn, spelled):
            return getattr(nn, spelled)()
    raise UserError(f"{path}: activation {name}: torch.nn has none of that name")
