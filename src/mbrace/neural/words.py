"""Token ids of texts, looked up word by word: each distinct word is tokenised once.

The candidates of a sentence share most of their words, and most tokenizers treat words independently: the tokens of a
text are those of its words, one after another. Looking words up is many times faster than tokenising, fast enough to
keep a GPU busy. If a tokenizer is not known to treat words independently, `WordTokenizer.of` returns None, and texts
are tokenised as a whole.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace._native import WordList, join_words
from mbrace.cores import helper_threads
from mbrace.neural.tokens import Tokens

_MOST_THREADS = 4
_MOST_WORDS = 500_000  # remembered; when there are more, all are forgotten
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
        self._size = np.zeros(0, dtype=np.int64)  # tokens of each word; -1: texts with it are tokenised as a whole
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
            if self._some_whole:
                numbers, ids, begin, size = self._with_whole(texts, numbers, counts)
        room = max(0, limit - len(self._before) - len(self._after))
        around = (self._before, self._after)
        flat, lengths, cut = join_words(numbers, counts, ids, begin, size, *around, room, threads=threads)
        return Tokens(flat, lengths), cut

    def _with_whole(
        self, texts: Sequence[str], numbers: NDArray[np.int32], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of words and the tokens of all words, in which each text that must be tokenised as a whole is its
        first word, and its other words have no tokens."""
        ids, begin, size = self._ids, self._begin, self._size
        first = np.cumsum(counts) - counts  # the first word of each text
        owner = np.repeat(np.arange(len(texts)), counts)
        whole = np.unique(owner[size[numbers] < 0])
        if not len(whole):
            return numbers, ids, begin, size
        extra = [self._encode([texts[i]])[0] for i in whole.tolist()]
        sizes = np.array([len(each) for each in extra], dtype=np.int64)
        none, numbers = len(size) + len(whole), numbers.copy()
        numbers[np.isin(owner, whole)] = none
        numbers[first[whole]] = np.arange(len(size), none)
        begin = np.concatenate([begin, len(ids) + np.cumsum(sizes) - sizes, [0]])
        ids = np.concatenate([ids, *(np.array(each, dtype=np.int32) for each in extra)])
        return numbers, ids, begin, np.concatenate([size, sizes, [0]])

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
    """The special tokens before and after a text; None if they cannot be told."""
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
