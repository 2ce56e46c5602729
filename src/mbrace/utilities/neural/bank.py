"""A bank of vectors for a window: each distinct string goes through the encoder once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mbrace.utilities.neural.pairs import to_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class TextEncoder(Protocol):
    """Strings to vectors: a transformer here, or a server."""

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""

    @property
    def truncated(self) -> int:
        """How many strings so far were over the length limit and cut."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), float32."""
        ...


class GrowingRows:
    """Rows of numbers on a device, added step by step."""

    def __init__(self) -> None:
        self._stored: Tensor | None = None  # with room for more
        self._count = 0

    def add(self, rows: Tensor) -> int:
        """Where the first of the new rows is."""
        first, needed = self._count, self._count + len(rows)
        if self._stored is None or needed > len(self._stored):
            # grow by half at least, so that steps do not copy everything each time
            room = rows.new_empty((max(needed, first * 3 // 2), *rows.shape[1:]))
            if self._stored is not None:
                room[:first] = self._stored[:first]
            self._stored = room
        self._stored[first:needed] = rows
        self._count = needed
        return first

    def __getitem__(self, numbers: NDArray[np.int64]) -> Tensor:
        assert self._stored is not None
        return self._stored[to_device(numbers, self._stored.device)]


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
        """Vectors of no string; returns their rows."""
        first = self._vectors.add(vectors)
        return np.arange(first, first + len(vectors))

    def numbers(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Which rows hold these strings."""
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def __getitem__(self, numbers: NDArray[np.int64]) -> Tensor:
        return self._vectors[numbers]
