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
    def of(cls, encodings: Sequence[Any]) -> Tokens:
        """From the encodings of a tokenizer of the package tokenizers."""
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        return cls(np.fromiter(ids, np.int32, int(lengths.sum())), lengths)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The index in `flat` at which each string begins."""
        return np.cumsum(self.lengths) - self.lengths

    def longest_first(self) -> NDArray[np.int64]:
        """Indices of the strings, those with the most tokens first."""
        return np.argsort(-self.lengths, kind="stable")

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return iter(np.split(self.flat, np.cumsum(self.lengths)[:-1])) if len(self) else iter(())


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

    flat: Tensor  # ids of all strings that were copied together
    starts: Tensor  # (strings,): the index in `flat` at which each string begins
    lengths: Tensor  # (strings,)
    host_lengths: NDArray[np.int64]  # `lengths` in host memory, so that reading them need not wait for the device
    holds_pad: NDArray[np.bool_]  # (strings,) whether the text itself holds the padding token
    pad: int

    @classmethod
    def copy(cls, tokens: Tokens, order: NDArray[np.int64], device: torch.device, *, pad: int) -> TokenBatch:
        """All strings of `tokens`, in the given order, copied to the device in one go."""
        lengths, starts = tokens.lengths[order], tokens.starts[order]
        holds_pad = np.zeros(len(tokens), dtype=bool)
        found = np.flatnonzero(tokens.flat == pad)
        if len(found):
            holds_pad = np.isin(order, np.searchsorted(tokens.starts, found, side="right") - 1)
        joined = copy_to_device([tokens.flat, starts, lengths], device)
        sizes = (len(tokens.flat), len(order), len(order))
        flat, starts_there, lengths_there = joined.split_with_sizes(sizes)
        return cls(flat, starts_there, lengths_there, lengths, holds_pad, pad)

    def __len__(self) -> int:
        return len(self.host_lengths)

    def __getitem__(self, part: slice) -> TokenBatch:
        cut = (self.starts[part], self.lengths[part], self.host_lengths[part], self.holds_pad[part])
        return TokenBatch(self.flat, *cut, self.pad)

    @property
    def longest(self) -> int:
        """The number of tokens of the first, longest string."""
        return int(self.host_lengths[0])

    @property
    def even(self) -> bool:
        """Whether all strings have the same number of tokens."""
        return bool(self.host_lengths[-1] == self.host_lengths[0])

    @property
    def changes(self) -> NDArray[np.int64]:
        """The strings that are shorter than the one before."""
        return np.flatnonzero(np.diff(self.host_lengths)) + 1

    @property
    def groups(self) -> list[tuple[int, int]]:
        """Strings of the same length, which are neighbours: how many they are, and their number of tokens."""
        ends = [*self.changes.tolist(), len(self)]
        return [(end - begin, int(self.host_lengths[begin])) for begin, end in zip([0, *ends], ends, strict=False)]

    @property
    def count(self) -> int:
        """The number of tokens of all strings."""
        return int(self.host_lengths.sum())

    def repeated(self, times: int) -> TokenBatch:
        """The strings several times over."""
        each = self.starts.repeat(times), self.lengths.repeat(times)
        return TokenBatch(self.flat, *each, np.tile(self.host_lengths, times), np.tile(self.holds_pad, times), self.pad)

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

    def ids(self) -> Tensor:
        """(strings, longest), padded."""
        index = self.starts[:, None] + torch.arange(self.longest, device=self.flat.device)
        if self.even:
            return self.flat[index]
        ids = self.flat[index.clamp_(max=len(self.flat) - 1)]
        return ids.masked_fill_(~self.attended(), self.pad)


def batch_end(lengths: NDArray[np.int64], changes: NDArray[np.int64], begin: int, *, most: int, half_full: int) -> int:
    """The end of the batch of strings that starts at `begin`; `lengths` are descending and change at `changes`.

    The batch has at most `most` padded tokens (a single string may have more), and ends early where the length changes
    once it has `half_full` tokens.
    """
    longest = max(1, int(lengths[begin]))
    end = min(len(lengths), begin + max(1, most // longest))
    later = np.searchsorted(changes, begin + max(1, -(-half_full // longest)))
    return min(end, int(changes[later])) if later < len(changes) else end


def packed_end(lengths: NDArray[np.int64], begin: int, *, most: int) -> int:
    """The end of the batch of strings that starts at `begin`, with at most `most` tokens (a single string may have
    more)."""
    tokens = lengths[begin : begin + most].cumsum()
    return begin + max(1, int(np.searchsorted(tokens, most, side="right")))


def even_share(lengths: NDArray[np.int64], most: int) -> int:
    """Tokens for the next of several batches, at most `most`, if all are to be about equal."""
    tokens = int(lengths.sum())
    share = -(-tokens // max(1, -(-tokens // most)))
    return min(most, share + int(lengths[0]))  # with room for a whole string: or there would be one batch more


def valid_unicode(texts: Iterable[str]) -> list[str]:
    """Texts that tokenizers accept: a lone surrogate, which is allowed elsewhere, becomes a question mark."""
    return [text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8") for text in texts]


def whole_texts(tokenizer: Any, texts: Sequence[str], limit: int) -> tuple[Tokens, int]:
    """Tokens of texts cut to `limit`, and how many texts were cut, for a tokenizer of any kind."""
    tokenizer.no_padding()  # each time: the caller's tokenizer object may be used elsewhere too
    tokenizer.enable_truncation(limit)
    # `encode_batch_fast`, in newer versions, does not compute where in the text each token is.
    encodings = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)(texts)
    return Tokens.of(encodings), sum(1 for encoding in encodings if encoding.overflowing)
