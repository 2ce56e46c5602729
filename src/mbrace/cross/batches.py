"""Rows of token ids go through a network in one stream of batches, sorted by length, over all open sentences.

A thread tokenises, sorts and joins rows ahead of the device. On a CPU a batch holds rows of one length only, so that a
row's score has the same bits in any batch (see `neural.encoder`). On a GPU a batch that is not half full is filled with
shorter rows, but only with rows less than 8 tokens shorter, so there is little padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import warn
from mbrace.neural.device import halve_on_oom, prefetched, without_cudnn_attention
from mbrace.neural.encoder import repeats_for_cpu
from mbrace.neural.tokens import batch_end

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
        self._keys: list[tuple[str, str]] = []  # ("", "") for a piece of given ids
        self._ids: list[Sequence[int]] = []
        self.lengths = np.empty(0, dtype=np.int64)  # (pieces,); -1: not tokenised yet, -2: cannot be on its own
        self.fixed([])

    def fixed(self, ids: Sequence[int]) -> int:
        """Add a piece with these token ids; returns its number."""
        self._keys.append(("", ""))
        self._ids.append(ids)
        self.lengths = np.append(self.lengths, len(ids))
        return len(self._ids) - 1

    def number(self, texts: Iterable[str], role: str = "") -> NDArray[np.int64]:
        """The numbers of strings in a role; the same string has the same number."""
        found = []
        for key in ((role, text) for text in texts):
            if key not in self._numbers:
                self._numbers[key] = len(self._ids)
                self._keys.append(key)
                self._ids.append(())
            found.append(self._numbers[key])
        self.lengths = np.append(self.lengths, np.full(len(self._ids) - len(self.lengths), -1))
        return np.array(found, dtype=np.int64)

    def text(self, number: int) -> str:
        """The string of a piece; empty for a piece of given ids."""
        return self._keys[number][1]

    def ids(self, number: int) -> Sequence[int]:
        """The token ids of a piece that has been tokenised."""
        return self._ids[number]

    def ensure(self, numbers: NDArray[np.int64]) -> None:
        """Tokenise those of these pieces that are not tokenised yet."""
        distinct = np.unique(numbers)
        missing = distinct[self.lengths[distinct] == -1].tolist()
        if missing:
            found = self._tokenize([self._keys[number] for number in missing])
            for number, ids in zip(missing, found, strict=True):
                self._ids[number], self.lengths[number] = ids or (), -2 if ids is None else len(ids)

    def join(self, rows: NDArray[np.int64], width: int, pad: int) -> NDArray[np.int64]:
        """Token ids (rows, width) of rows (rows, parts) of pieces: end to end, cut at `width` and padded to it."""
        joined = [list(chain.from_iterable(map(self._ids.__getitem__, row)))[:width] for row in rows.tolist()]
        return np.array([ids + [pad] * (width - len(ids)) for ids in joined], dtype=np.int64)


CHUNK = 1 << 17  # rows sorted at a time: limits the memory of a call


@dataclass(frozen=True)
class InputRows:
    """Inputs of a network; each consists of the pieces in one row of `pieces`, end to end."""

    positions: NDArray[np.int64]  # (rows,): the index of each row among the rows of the whole call
    pieces: NDArray[np.int64]  # (rows, parts): numbers in `Pieces`


@dataclass(frozen=True)
class Batch:
    """Rows that go through the network together."""

    rows: InputRows
    ids: Tensor  # (rows, tokens)
    lengths: Tensor  # (rows,)
    even: bool  # whether all rows have the same length, so that nothing is padded

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, part: slice) -> Batch:
        rows = InputRows(self.rows.positions[part], self.rows.pieces[part])
        return Batch(rows, self.ids[part], self.lengths[part], self.even)

    def repeated(self, times: int) -> Batch:
        """The batch several times over."""
        rows = InputRows(np.tile(self.rows.positions, times), np.tile(self.rows.pieces, (times, 1)))
        return Batch(rows, self.ids.repeat(times, 1), self.lengths.repeat(times), self.even)


# A network: the outputs for a batch, each (rows, ...), on its device.
Forward: TypeAlias = Callable[[Batch], tuple[Tensor, ...]]


class BatchStream:
    """Batches of at most `batch_tokens` tokens; `truncated` counts rows that were over `limit` tokens and cut."""

    def __init__(self, *, pad: int, limit: int, device: torch.device, batch_tokens: int | None = None) -> None:
        self.device = device
        self.batch_tokens = batch_tokens or (32768 if device.type == "cuda" else 2048)
        self.truncated = 0
        self.rows = 0  # sent through a network so far
        self.tokens = 0  # of these rows, padding not counted
        self.padded = 0  # of these rows, padding counted
        self.limit = limit  # tokens in a row
        self._pad = pad
        self._warned_of_memory = False

    def run(
        self, pieces: Pieces, chunks: Iterable[InputRows], forward: Forward
    ) -> Iterator[tuple[InputRows, tuple[Tensor, ...]]]:
        """Outputs of all rows, batch by batch. Another thread reads `chunks` and tokenises their strings."""
        for batch in prefetched(self._batches(pieces, chunks)):
            yield from self._outputs(batch, forward)

    def scores(self, pieces: Pieces, chunks: Iterable[InputRows], forward: Forward) -> NDArray[np.float32]:
        """The first output for all rows, (rows,), in the order of their positions."""
        positions, scores = [], []
        for rows, outputs in self.run(pieces, chunks, forward):
            positions.append(rows.positions)
            scores.append(outputs[0])
        return torch.cat(scores).float().cpu().numpy()[np.argsort(np.concatenate(positions))]

    def _batches(self, pieces: Pieces, chunks: Iterable[InputRows]) -> Iterator[Batch]:
        for chunk in chunks:
            pieces.ensure(chunk.pieces)
            whole = pieces.lengths[chunk.pieces].sum(axis=1)
            lengths = np.minimum(whole, self.limit)
            self.truncated += int((whole > self.limit).sum())
            for index in split(lengths, self.batch_tokens, mixed=self.device.type != "cpu"):
                rows, own = InputRows(chunk.positions[index], chunk.pieces[index]), lengths[index]
                # An input without tokens consists of one padding token, as in the original.
                width = max(1, int(own.max()))
                ids = torch.from_numpy(pieces.join(rows.pieces, width, self._pad))
                batch = Batch(rows, ids, torch.from_numpy(np.maximum(own, 1)), bool((own == width).all()))
                self.rows, self.tokens = self.rows + len(index), self.tokens + int(own.sum())
                self.padded += width * len(index)
                if self.device.type == "cuda":
                    batch = replace(batch, ids=batch.ids.pin_memory(), lengths=batch.lengths.pin_memory())
                yield batch

    def _outputs(self, batch: Batch, forward: Forward) -> Iterator[tuple[InputRows, tuple[Tensor, ...]]]:
        """The outputs of one batch; in halves if the GPU is out of memory."""

        def smaller(half: Batch) -> None:
            self.batch_tokens = min(self.batch_tokens, half.ids.numel())
            if not self._warned_of_memory:
                self._warned_of_memory = True
                warn(f"the GPU is out of memory: going on with batches of {self.batch_tokens} tokens or fewer")

        def work(part: Batch) -> tuple[InputRows, tuple[Tensor, ...]]:
            return part.rows, self._forward(part, forward)

        yield from halve_on_oom(work, batch, f"one input of {batch.ids.shape[1]} tokens", smaller)

    def _forward(self, batch: Batch, forward: Forward) -> tuple[Tensor, ...]:
        count = len(batch)
        if self.device.type == "cpu":
            times = repeats_for_cpu(batch.ids.numel())
            batch = batch if times == 1 else batch.repeated(times)
        else:
            ids, lengths = (each.to(self.device, non_blocking=True) for each in (batch.ids, batch.lengths))
            batch = replace(batch, ids=ids, lengths=lengths)
        with torch.inference_mode(), without_cudnn_attention():
            return tuple(output[:count] for output in forward(batch))


def split(lengths: NDArray[np.int64], batch_tokens: int, *, mixed: bool) -> Iterator[NDArray[np.int64]]:
    """Indexes of rows in batches of at most `batch_tokens` padded tokens (see `batch_end`), longest first."""
    order = np.argsort(-lengths, kind="stable")
    descending, begin = lengths[order], 0
    while begin < len(order):
        end = batch_end(descending, begin, most=batch_tokens, mixed=mixed)
        yield order[begin:end]
        begin = end
