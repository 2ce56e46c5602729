"""Token ids of many strings in one flat array, and batches of them that are cut on the encoder's device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor


def copy_to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    """Whole numbers below 2^31, one array after another, as int64 on a device, without waiting for what it is doing."""
    joined = torch.from_numpy(np.concatenate([array.astype(np.int32, copy=False) for array in arrays]))
    if device.type == "cuda":
        joined = joined.pin_memory()  # torch keeps such memory and gives it out again when the copy is done
    return joined.to(device, non_blocking=True).long()


@dataclass(frozen=True)
class Tokens:
    """The ids of all strings, one string after another, and how many ids each string has."""

    flat: NDArray[np.int32]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, strings: Sequence[Sequence[int]]) -> Tokens:
        """From the ids of each string."""
        lengths = np.fromiter(map(len, strings), np.int64, len(strings))
        return cls(np.fromiter(chain.from_iterable(strings), np.int32, int(lengths.sum())), lengths)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The index in `flat` at which each string begins."""
        return np.cumsum(self.lengths) - self.lengths

    def joined(self, other: Tokens) -> Tokens:
        """These strings, then the other ones."""
        return Tokens(np.concatenate([self.flat, other.flat]), np.concatenate([self.lengths, other.lengths]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return iter(np.split(self.flat, np.cumsum(self.lengths)[:-1])) if len(self) else iter(())


def tokenised(
    tokenizer: Any, texts: Iterable[str], limit: int | None = None, *, special: bool = True
) -> tuple[Tokens, int]:
    """Ids of texts by a tokenizer of the package tokenizers, cut to `limit`, and how many texts were cut; with
    `special`, special tokens are around each text."""
    tokenizer.no_padding()  # each time: the caller's tokenizer object may be used elsewhere too
    if limit is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(limit)
    # `encode_batch_fast`, in newer versions, does not compute where in the text each token is.
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    encodings = encode(valid_unicode(texts), add_special_tokens=special)
    return Tokens.of([each.ids for each in encodings]), sum(1 for each in encodings if each.overflowing)


def valid_unicode(texts: Iterable[str]) -> list[str]:
    """Texts that tokenizers accept: a lone surrogate, which is allowed elsewhere, becomes a question mark."""
    return [text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8") for text in texts]


@dataclass(frozen=True)
class PackedTokens:
    """The tokens of some strings on a device, one string after another, longest first."""

    ids: Tensor  # (tokens,)
    positions: Tensor  # (tokens,): the index of each token in its string
    offsets: Tensor  # (strings + 1,), int32: string i has tokens offsets[i] to offsets[i + 1]
    groups: list[tuple[int, int]]  # strings of one length: how many they are, and their number of tokens

    @property
    def longest(self) -> int:
        """The number of tokens of the longest string."""
        return self.groups[0][1]


@dataclass(frozen=True)
class TokenBatch:
    """Strings on a device, longest first: some of the strings that were copied to the device together."""

    indices: NDArray[np.int64]  # (strings,): which of the strings of the whole call these are
    flat: Tensor  # ids of all strings that were copied together
    starts: Tensor  # (strings,): the index in `flat` at which each string begins
    lengths: Tensor  # (strings,)
    host_lengths: NDArray[np.int64]  # `lengths` in host memory, so that reading them need not wait for the device
    holds_pad: NDArray[np.bool_]  # (strings,) whether the text itself holds the padding token
    pad: int

    @classmethod
    def copy(cls, tokens: Tokens, indices: NDArray[np.int64], device: torch.device, *, pad: int) -> TokenBatch:
        """All strings, longest first, copied to the device in one go."""
        order = np.argsort(-tokens.lengths, kind="stable")
        lengths, starts = tokens.lengths[order], tokens.starts[order]
        found = np.flatnonzero(tokens.flat == pad)
        holds_pad = np.isin(order, np.searchsorted(tokens.starts, found, side="right") - 1)
        joined = copy_to_device([tokens.flat, starts, lengths], device)
        flat, starts_there, lengths_there = joined.split_with_sizes((len(tokens.flat), len(order), len(order)))
        return cls(indices[order], flat, starts_there, lengths_there, lengths, holds_pad, pad)

    def __len__(self) -> int:
        return len(self.host_lengths)

    def __getitem__(self, part: slice) -> TokenBatch:
        there = self.flat, self.starts[part], self.lengths[part]
        return TokenBatch(self.indices[part], *there, self.host_lengths[part], self.holds_pad[part], self.pad)

    @property
    def longest(self) -> int:
        """The number of tokens of the first, longest string."""
        return int(self.host_lengths[0])

    @property
    def even(self) -> bool:
        """Whether all strings have the same number of tokens."""
        return bool(self.host_lengths[-1] == self.host_lengths[0])

    @property
    def groups(self) -> list[tuple[int, int]]:
        """Strings of the same length, which are neighbours: how many they are, and their number of tokens."""
        ends = [*(np.flatnonzero(np.diff(self.host_lengths)) + 1).tolist(), len(self)]
        return [(end - begin, int(self.host_lengths[begin])) for begin, end in zip([0, *ends], ends, strict=False)]

    @property
    def count(self) -> int:
        """The number of tokens of all strings."""
        return int(self.host_lengths.sum())

    def enough(self) -> TokenBatch:
        """The batch; on a CPU several times over if it has too few tokens (see `repeats_for_cpu`)."""
        times = 1 if self.flat.device.type != "cpu" else repeats_for_cpu(self.count)
        if times == 1:
            return self
        there = self.flat, self.starts.repeat(times), self.lengths.repeat(times)
        indices, lengths = np.tile(self.indices, times), np.tile(self.host_lengths, times)
        return TokenBatch(indices, *there, lengths, np.tile(self.holds_pad, times), self.pad)

    def packed(self) -> PackedTokens:
        """The tokens of the strings, one string after another."""
        offsets = F.pad(self.lengths.cumsum(0), (1, 0))
        # without the number of tokens, the host would wait for the device
        owners = torch.repeat_interleave(self.lengths, output_size=self.count)
        positions = torch.arange(self.count, device=self.flat.device) - offsets[owners]
        return PackedTokens(self.flat[self.starts[owners] + positions], positions, offsets.int(), self.groups)

    def attended(self) -> Tensor:
        """(strings, longest): True for tokens of the string, False for padding after it."""
        return torch.arange(self.longest, device=self.flat.device) < self.lengths[:, None]

    def mask(self) -> Tensor | None:
        """The same as the attention mask of a network; None if nothing is padded."""
        return None if self.even else self.attended()

    def ids(self) -> Tensor:
        """(strings, longest), padded."""
        index = self.starts[:, None] + torch.arange(self.longest, device=self.flat.device)
        if self.even:
            return self.flat[index]
        ids = self.flat[index.clamp_(max=len(self.flat) - 1)]
        return ids.masked_fill_(~self.attended(), self.pad)


# Rows per thread. With fewer than about 4 a CPU computes matrix products in another way, which rounds differently.
FEWEST_ROWS = 8


def repeats_for_cpu(rows: int) -> int:
    """How many times to repeat the rows of a matrix product on a CPU so that there are enough: see `FEWEST_ROWS`."""
    return max(1, -(-FEWEST_ROWS * torch.get_num_threads() // max(1, rows)))
