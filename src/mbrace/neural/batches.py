"""Strings of tokens go through a network in one stream of batches, sorted by length.

On a CPU a batch holds packed strings, or strings of one length, and every row of a matrix product has the same bits
regardless of the other rows (if there are enough: see `repeats_for_cpu`): what a network makes of a string does not
depend on its batch, window or step. On a GPU it does, and a small batch takes as long as a large one, so padded batches
are filled there with strings that are a little shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mbrace.errors import warn
from mbrace.neural.device import halve_on_oom, prefetched, without_cudnn_attention
from mbrace.neural.tokens import TokenBatch, Tokens

Output = TypeVar("Output")

CHUNK = {"cpu": (16384, 16384), "cuda": (2048, 4096)}  # strings tokenised at a time: at first, and then
BUCKET = 8  # tokens: the lengths of the strings in a padded batch differ by less than this


class BatchStream:
    """Batches of at most `batch_tokens` tokens, padding included. With `packed` nothing is padded."""

    def __init__(
        self, *, pad: int, limit: int, device: torch.device, batch_tokens: int | None = None, packed: bool = False
    ) -> None:
        self.device = device
        self.limit = limit  # tokens of a string
        self.batch_tokens = batch_tokens or (32768 if device.type == "cuda" else 2048)
        self.packed = packed
        self.pads = device.type != "cpu"  # whether a batch may hold strings of several lengths
        self.truncated = 0  # strings that were over the limit and cut
        self.strings = 0  # sent through the network so far
        self._pad = pad
        self._warned_of_memory = False

    def cut(self, count: int) -> None:
        """Count strings that were cut at the limit, with a warning for the first."""
        if count and not self.truncated:
            warn(f"text over the metric's limit of {self.limit} tokens is cut there, as the original does")
        self.truncated += count

    def run(
        self,
        sizes: NDArray[np.int64],
        tokens_of: Callable[[NDArray[np.int64]], Tokens],
        forward: Callable[[TokenBatch], Output],
    ) -> Iterator[tuple[NDArray[np.int64], Output]]:
        """The network's outputs batch by batch, with the indices of the strings of each batch.

        There are as many strings as `sizes`, which estimate their lengths; `tokens_of` tokenises those of some indices.
        For a GPU a thread does that ahead, the first time for few strings, so that the GPU need not wait long. On a CPU
        a thread would only take cores away.
        """
        if not len(sizes):
            return
        order = np.argsort(-sizes, kind="stable")
        first, size = CHUNK["cuda" if self.pads else "cpu"]
        chunks = np.split(order, range(first, len(order), size))
        tokens = map(tokens_of, chunks)
        for chunk, some in zip(chunks, prefetched(tokens) if self.pads and len(chunks) > 1 else tokens, strict=True):
            strings = TokenBatch.copy(some, chunk, self.device, pad=self._pad)
            begin = 0
            while begin < len(strings):
                end = self._end(strings.host_lengths, begin)
                for batch, output in self._outputs(strings[begin:end], forward):
                    yield batch.indices, output
                begin = end
            self.strings += len(strings)

    def scores(
        self,
        sizes: NDArray[np.int64],
        tokens_of: Callable[[NDArray[np.int64]], Tokens],
        forward: Callable[[TokenBatch], torch.Tensor],
    ) -> NDArray[np.float32]:
        """A network's score of each string, (strings,)."""
        indices, outputs = zip(*self.run(sizes, tokens_of, forward), strict=True)
        return torch.cat(outputs).float().cpu().numpy()[np.argsort(np.concatenate(indices))]

    def _end(self, lengths: NDArray[np.int64], begin: int) -> int:
        """The end of the batch of strings that starts at `begin`."""
        if self.packed:
            return packed_end(lengths, begin, most=self.batch_tokens)
        return padded_end(lengths, begin, most=self.batch_tokens, mixed=self.pads)

    def _outputs(self, batch: TokenBatch, forward: Callable[[TokenBatch], Output]) -> list[tuple[TokenBatch, Output]]:
        """The outputs of one batch; of its halves if the GPU is out of memory."""

        def smaller(half: TokenBatch) -> None:
            # The size tried next, not half the old limit: if both halves fail, each would halve the limit again.
            tokens = half.count if self.packed else len(half) * half.longest
            self.batch_tokens = min(self.batch_tokens, max(1, tokens))
            if not self._warned_of_memory:
                self._warned_of_memory = True
                warn(f"the GPU is out of memory: continuing with batches of at most {self.batch_tokens} tokens")

        @torch.inference_mode()
        @without_cudnn_attention()
        def work(part: TokenBatch) -> tuple[TokenBatch, Any]:
            return part, forward(part)

        return halve_on_oom(work, batch, f"one string of {batch.longest} tokens", smaller)


def padded_end(lengths: NDArray[np.int64], begin: int, *, most: int, mixed: bool) -> int:
    """The end of the batch of strings that starts at `begin`; `lengths` are descending.

    The batch has at most `most` padded tokens (a single string may have more). It ends where the length changes; if
    `mixed`, only when it is half full or the next string is `BUCKET` tokens shorter than its longest.
    """
    longest = max(1, int(lengths[begin]))
    end = min(len(lengths), begin + max(1, most // longest))
    least = min(begin + max(1, -(-most // (2 * longest))), len(lengths)) if mixed else begin + 1
    falling = -lengths[begin:end]  # ascending, for searchsorted
    same = begin + int(np.searchsorted(falling, -lengths[least - 1], side="right"))
    near = begin + int(np.searchsorted(falling, BUCKET - longest))
    return min(same, near) if mixed else same


def packed_end(lengths: NDArray[np.int64], begin: int, *, most: int) -> int:
    """The end of the batch of strings that starts at `begin`, with at most `most` tokens (a single string may have
    more)."""
    tokens = lengths[begin : begin + most].cumsum()
    return begin + max(1, int(np.searchsorted(tokens, most, side="right")))
