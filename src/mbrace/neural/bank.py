"""A bank of vectors for a window: each distinct string goes through the encoder once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.neural.pairs import to_device


class TextEncoder(Protocol):
    """Strings to vectors: a transformer here, or a server."""

    @property
    def device(self) -> torch.device:
        """The device that holds the vectors."""

    @property
    def truncated(self) -> int:
        """How many strings so far were longer than the limit and cut."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), float32."""
        ...


class GrowingRows:
    """Rows of numbers on a device, to which more can be added."""

    def __init__(self) -> None:
        self._stored: Tensor | None = None  # with room for more
        self._count = 0

    def add(self, *parts: Tensor) -> int:
        """Append the rows of all parts; returns the index of the first new row."""
        first, needed = self._count, self._count + sum(len(part) for part in parts)
        if self._stored is None or needed > len(self._stored):
            # grow by half at least, so that steps do not copy everything each time
            room = parts[0].new_empty((max(needed, first * 3 // 2), *parts[0].shape[1:]))
            if self._stored is not None:
                room[:first] = self._stored[:first]
            self._stored = room
        torch.cat(parts, out=self._stored[first:needed])
        self._count = needed
        return first

    def __getitem__(self, rows: NDArray[np.int64] | Tensor) -> Tensor:
        assert self._stored is not None
        on_device = rows if isinstance(rows, torch.Tensor) else to_device(rows, self._stored.device)
        return self._stored[on_device]


class Bank:
    """Vectors of distinct strings. Each string goes through the encoder once."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._numbers: dict[str, int] = {}
        self._vectors = GrowingRows()

    def add(self, texts: Iterable[str]) -> None:
        """Embed the strings not known yet, in one stream."""
        new = [text for text in dict.fromkeys(texts) if text not in self._numbers]
        if new:
            first = self._vectors.add(self._encoder.embed(new))
            self._numbers.update(zip(new, range(first, first + len(new)), strict=True))

    def add_vectors(self, vectors: Tensor) -> NDArray[np.int64]:
        """Add vectors that belong to no string; returns their rows."""
        first = self._vectors.add(vectors)
        return np.arange(first, first + len(vectors))

    def numbers(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The rows of these strings."""
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def __getitem__(self, numbers: NDArray[np.int64]) -> Tensor:
        return self._vectors[numbers]
