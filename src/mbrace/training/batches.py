"""Batches for training: sentences of similar length, padded ahead of time by a thread."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mbrace.neural.device import prefetched

Ids = NDArray[np.uint16]


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs as ids: per side, one flat array and the offsets of its sentences."""

    sides: tuple[tuple[Ids, NDArray[np.int64]], tuple[Ids, NDArray[np.int64]]]

    @staticmethod
    def of(sources: Sequence[Ids], targets: Sequence[Ids], *, longest: int | None = None) -> Corpus:
        """Drop pairs with a side of more than `longest` ids (the model has no positions for them)."""
        kept = [
            (source, target)
            for source, target in zip(sources, targets, strict=True)
            if longest is None or max(len(source), len(target)) <= longest
        ]
        return Corpus((_flat([source for source, _ in kept]), _flat([target for _, target in kept])))

    def __len__(self) -> int:
        return len(self.sides[0][1]) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Ids per side, (pairs, 2)."""
        return np.stack([np.diff(offsets) for _, offsets in self.sides], axis=1)

    def plan(self, tokens: int, rng: np.random.Generator | None) -> list[NDArray[np.int64]]:
        """One epoch in batches (indices) of at most `tokens` padded ids per side; without `rng`, in order of length."""
        lengths = self.lengths()
        widths = -(-lengths // 8) * 8  # padded to multiples of 8, for which the GPU's matrix units are made
        widest = widths.max(axis=1)
        noise = rng.random(len(self)) if rng is not None else np.zeros(len(self))
        order = np.lexsort((noise, widths[:, 1], widths[:, 0], widest))
        batches, first = [], 0
        while first < len(order):
            # pairs are in order of width, so a batch is as wide as its last pair
            count = max(1, tokens // int(widest[order[first]]))
            last = min(first + count, len(order)) - 1
            count = max(1, tokens // int(widest[order[last]]))
            batches.append(order[first : first + count])
            first += count
        if rng is not None:
            batches = [batches[number] for number in rng.permutation(len(batches))]
        return batches

    def padded(self, batch: NDArray[np.int64], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Source and target ids, each (sentences, width), and the number of real target ids."""
        source, _ = _pad(*self.sides[0], batch, pad)
        target, count = _pad(*self.sides[1], batch, pad)
        return source, target, count


def prefetch(
    corpus: Corpus, *, tokens: int, pad: int, seed: int, first: int, device: Any
) -> Generator[tuple[Any, Any, int], None, None]:
    """Padded batches without end, from number `first` of a sequence that depends on `seed` only.

    A thread pads (and pins) up to 16 batches ahead, so that the training loop never waits for them.
    """
    pin = device.type == "cuda"

    def padded() -> Iterator[tuple[Any, Any, int]]:
        number = 0
        for epoch in itertools.count():
            plan = corpus.plan(tokens, np.random.default_rng([seed, epoch]))
            for batch in plan[max(0, first - number) :]:
                source, target, count = corpus.padded(batch, pad)
                ids = torch.from_numpy(source), torch.from_numpy(target)
                yield (ids[0].pin_memory(), ids[1].pin_memory(), count) if pin else (*ids, count)
            number += len(plan)

    with contextlib.closing(prefetched(padded(), most=16)) as batches:
        for source, target, count in batches:
            yield source.to(device, non_blocking=True), target.to(device, non_blocking=True), count


def _flat(rows: Sequence[Ids]) -> tuple[Ids, NDArray[np.int64]]:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return (np.concatenate(rows) if rows else np.zeros(0, np.uint16)), offsets


def _pad(flat: Ids, offsets: NDArray[np.int64], batch: NDArray[np.int64], pad: int) -> tuple[NDArray[np.int64], int]:
    starts = offsets[batch]
    lengths = offsets[batch + 1] - starts
    columns = np.arange(-(-int(lengths.max()) // 8) * 8)
    real = columns[None, :] < lengths[:, None]
    out = np.full(real.shape, pad, dtype=np.int64)
    out[real] = flat[(starts[:, None] + columns[None, :])[real]]
    return out, int(lengths.sum())
