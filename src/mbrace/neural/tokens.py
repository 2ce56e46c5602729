"""Token ids of many strings in one flat array, tokenised word by word where that gives the same, and batches of them
that are cut on the encoder's device."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from mbrace._native import WordList, join_words
from mbrace.utility import helper_threads


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


BUCKET = 8  # tokens: the lengths of the strings in a padded batch differ by less than this


def batch_end(lengths: NDArray[np.int64], begin: int, *, most: int, mixed: bool) -> int:
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


_MOST_THREADS = 4
_MOST_WORDS = 500_000  # cached; beyond that the cache is emptied
_MODELS = ("WordPiece", "Unigram", "BPE", "WordLevel")
_NORMALIZERS = ("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled", "Strip")
_SPLITTERS = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
_TRIALS = (
    "", " ", "a", "The cat sat.", "Don't (really) stop, U.S. friends!", " two  spaces and  three   ", "a\tb \n c",
    "Grüße aus Łódź, naïve café", "Привет мир, ёлка", "東京 と 大阪 서울 도시", "e\u0301 \u0301a o\u0308",
    "x \u00a8 y \ufb01n",
    "1,000.50 % of 3/4 -- 'quoted' \"text\"", "\u201cquotes\u201d \u2026 and \u2013 dashes", "a\u00a0b \u2581c \u3000d",
    "supercalifragilisticexpialidocious " * 3, "👩‍👩‍👧 family 🇩🇪 flag", "ÀÉÎ İstanbul ǅ ŉ",
)  # fmt: skip


class WordTokenizer:
    """A tokenizer that treats words independently, and the tokens of the words seen so far."""

    def __init__(self, tokenizer: Any, before: Sequence[int], after: Sequence[int], added: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._before, self._after = np.array(before, dtype=np.int32), np.array(after, dtype=np.int32)
        self._added = added  # tokens that the tokenizer looks for in a text before it splits words
        self._lock = threading.Lock()
        self.forget()

    @classmethod
    def of(cls, tokenizer: Any) -> WordTokenizer | None:
        """For a tokenizer of the package tokenizers; None if it may not treat words independently."""
        added = tokenizer.get_added_tokens_decoder().values()
        apart = (
            type(tokenizer.model).__name__ in _MODELS
            and not getattr(tokenizer.model, "dropout", None)
            and (tokenizer.normalizer is None or _keeps_words(_settings(tokenizer.normalizer)))
            and tokenizer.pre_tokenizer is not None
            and _splits_words(_settings(tokenizer.pre_tokenizer))
            and not any(token.normalized or token.content.split() != [token.content] for token in added)
        )
        around = _around(tokenizer) if apart else None
        if around is None:
            return None
        words = cls(tokenizer, *around, [token.content for token in added])
        return words if words._agrees() else None

    def forget(self) -> None:
        """Forget all words."""
        self._words = WordList()
        self._ids = np.empty(0, dtype=np.int32)  # the tokens of all words, one after another
        self._begin = np.zeros(0, dtype=np.int64)  # the index in `_ids` at which each word begins
        self._size = np.zeros(0, dtype=np.int64)  # tokens of each word; -1: texts with it are not split into words
        self._some_whole = False  # whether there is such a word

    def tokens(self, texts: Sequence[str], limit: int) -> tuple[Tokens, int]:
        """Tokens of valid Unicode texts, cut to `limit`, and how many texts were cut."""
        threads = min(_MOST_THREADS, helper_threads())
        with self._lock:
            if len(self._words) > _MOST_WORDS:
                self.forget()
            try:
                numbers, counts, new = self._words.numbers(texts, threads=threads)
                if new:
                    self._add(new)
            except BaseException:  # Ctrl-C too: a word with a number but no tokens would get those of the next word
                self.forget()
                raise
            ids, begin, size = self._ids, self._begin, self._size
            if self._some_whole and (size[numbers] < 0).any():
                return whole_texts(self._tokenizer, texts, limit)
        room = max(0, limit - len(self._before) - len(self._after))
        around = (self._before, self._after)
        flat, lengths, cut = join_words(numbers, counts, ids, begin, size, *around, room, threads=threads)
        return Tokens(flat, lengths), cut

    def _add(self, words: Sequence[str]) -> None:
        """Tokenise new words."""
        encoded = self._encode(words)
        size = np.array([len(ids) for ids in encoded], dtype=np.int64)
        begin = len(self._ids) + np.cumsum(size) - size
        flat = np.fromiter(itertools.chain.from_iterable(encoded), np.int32, int(size.sum()))
        self._ids = np.concatenate([self._ids, flat])
        every_word = "\n".join(words)
        found = [token for token in self._added if token in every_word]
        for number, word in enumerate(words if found else ()):
            if any(token in word for token in found):
                size[number], self._some_whole = -1, True
        self._begin, self._size = np.concatenate([self._begin, begin]), np.concatenate([self._size, size])

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, without special tokens around them, and not cut."""
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [encoding.ids for encoding in encode(texts, add_special_tokens=False)]

    def _agrees(self) -> bool:
        """Whether it gives texts of many kinds the same tokens as the tokenizer itself."""
        found, _ = self.tokens(_TRIALS, 10**6)
        usual = [[*self._before.tolist(), *ids, *self._after.tolist()] for ids in self._encode(_TRIALS)]
        return [ids.tolist() for ids in found] == usual


def _around(tokenizer: Any) -> tuple[list[int], list[int]] | None:
    """The special tokens before and after a text; None if they cannot be determined."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    inner, outer = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    starts = [i for i in range(len(outer) - len(inner) + 1) if outer[i : i + len(inner)] == inner]
    if not inner or len(starts) != 1:
        return None
    before, after = outer[: starts[0]], outer[starts[0] + len(inner) :]
    return (before, after) if tokenizer.encode("").ids == before + after else None


def _settings(part: Any) -> dict[str, Any]:
    """The settings of a normalizer or pre-tokenizer, as in tokenizer.json."""
    found: dict[str, Any] = json.loads(part.__getstate__())
    return found


def _keeps_words(normalizer: dict[str, Any]) -> bool:
    """Whether a word in a text is normalised in the same way as alone."""
    if normalizer["type"] == "Sequence":
        return all(_keeps_words(each) for each in normalizer["normalizers"])
    if normalizer["type"] == "Replace":
        return bool(normalizer["pattern"] == {"Regex": " {2,}"} and normalizer["content"] == " ")
    return normalizer["type"] in _NORMALIZERS


def _splits_words(splitter: dict[str, Any]) -> bool:
    """Whether a text is first split at every space, and each part is then treated like a whole text."""
    if splitter["type"] == "Sequence":
        first, *others = splitter["pretokenizers"]
        known = all(each["type"] in (*_SPLITTERS, "Punctuation", "Digits") or _marks_words(each) for each in others)
        return _splits_words(first) and known
    return splitter["type"] in _SPLITTERS or _marks_words(splitter)


def _marks_words(splitter: dict[str, Any]) -> bool:
    """Whether every word gets a mark in front, at which it is split off."""
    marks = splitter["type"] == "Metaspace" and splitter.get("split", True)
    return bool(marks and splitter.get("prepend_scheme") == "always")
