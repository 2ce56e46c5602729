"""The token ids of a window's strings: each distinct string is tokenised once, and rows are joined from arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

EMPTY = 0  # the number of the piece without tokens

# Token ids of (role, string) entries; None for a string that cannot be tokenised separately from its row.
Tokenize = Callable[[Sequence[tuple[str, str]]], Sequence[Sequence[int] | None]]


class Pieces:
    """Numbered pieces, of which rows consist. A piece is a string in a role ("source", ...) or given token ids.

    Strings are numbered immediately (`number`) but tokenised only when a row first needs them (`ensure`), so that the
    thread that prepares batches can do it.
    """

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._numbers: dict[tuple[str, str], int] = {}
        self._keys: list[tuple[str, str] | None] = []
        self._ids = np.empty(0, dtype=np.int32)  # of all pieces, end to end
        self._used = 0
        self._starts = np.empty(0, dtype=np.int64)
        self.lengths = np.empty(0, dtype=np.int64)  # (pieces,); -1: not tokenised yet, -2: cannot be on its own
        self.fixed([])

    def fixed(self, ids: Sequence[int]) -> int:
        """Add a piece with these token ids; returns its number."""
        self._keys.append(None)
        self._grow()
        self._store(np.array([len(self._keys) - 1]), [ids])
        return len(self._keys) - 1

    def number(self, texts: Iterable[str], role: str = "") -> NDArray[np.int64]:
        """The numbers of strings in a role; the same string has the same number."""
        numbers = []
        for text in texts:
            key = (role, text)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._keys)
                self._keys.append(key)
            numbers.append(number)
        self._grow()
        return np.array(numbers, dtype=np.int64)

    def text(self, number: int) -> str:
        """The string of a piece; empty for a piece of given ids."""
        key = self._keys[number]
        return key[1] if key else ""

    def ids(self, number: int) -> list[int]:
        """The token ids of a piece that has been tokenised."""
        start = int(self._starts[number])
        ids: list[int] = self._ids[start : start + int(self.lengths[number])].tolist()
        return ids

    def ensure(self, numbers: NDArray[np.int64]) -> None:
        """Tokenise those of these pieces that are not tokenised yet."""
        distinct = np.unique(numbers)
        missing = distinct[self.lengths[distinct] == -1]
        if len(missing):
            keys = [key for key in (self._keys[number] for number in missing.tolist()) if key is not None]
            self._store(missing, self._tokenize(keys))

    def join(self, rows: NDArray[np.int64], width: int, pad: int) -> NDArray[np.int64]:
        """Token ids (rows, width) of rows (rows, parts) of pieces: end to end, cut at `width` and padded to it."""
        lengths = self.lengths[rows]
        before = np.cumsum(lengths, axis=1) - lengths
        kept = np.clip(width - before, 0, lengths).ravel()
        inside = index_in_row(kept)
        targets = np.repeat((np.arange(len(rows))[:, None] * width + before).ravel(), kept) + inside
        joined = np.full(len(rows) * width, pad, dtype=np.int64)
        joined[targets] = self._ids[np.repeat(self._starts[rows].ravel(), kept) + inside]
        return joined.reshape(len(rows), width)

    def _grow(self) -> None:
        more = len(self._keys) - len(self.lengths)
        if more > 0:
            self.lengths = np.concatenate([self.lengths, np.full(more, -1, dtype=np.int64)])
            self._starts = np.concatenate([self._starts, np.zeros(more, dtype=np.int64)])

    def _store(self, numbers: NDArray[np.int64], pieces: Sequence[Sequence[int] | None]) -> None:
        lengths = np.array([-2 if ids is None else len(ids) for ids in pieces], dtype=np.int64)
        flat = np.array([one for ids in pieces if ids is not None for one in ids], dtype=np.int32)
        if self._used + len(flat) > len(self._ids):
            room = np.empty(max(self._used + len(flat), 2 * len(self._ids)), dtype=np.int32)
            room[: self._used] = self._ids[: self._used]
            self._ids = room
        self._ids[self._used : self._used + len(flat)] = flat
        sizes = np.maximum(lengths, 0)
        self._starts[numbers] = self._used + np.cumsum(sizes) - sizes
        self.lengths[numbers] = lengths
        self._used += len(flat)


def index_in_row(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(tokens,): the index of each token in its own row, for rows of `counts` tokens that are stored end to end."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
