"""chrF, chrF+ and chrF++ as a utility: equal to sacreBLEU's, counted in native code (docs/kernel.md)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace import _native
from mbrace.errors import SettingError, UserError, check_number, check_switches, check_threads, check_whole
from mbrace.metrics.base import Multithreaded
from mbrace.utility import Ask, Sentence, check_aligned

if TYPE_CHECKING:
    from mbrace._native import Tally

SIMD_VARIABLE = "MBRACE_SIMD"  # forces one of `_native.simd_variants()`
MAX_ORDERS = 24
# Of each race expected utilities and steps; seconds for pairs and for decisions.
Races: TypeAlias = "tuple[list[NDArray[np.float64]], list[list[tuple[int, int, int, int]]], float, float]"


@dataclass(frozen=True, kw_only=True)
class ChrF(Multithreaded):
    """Sentence chrF from 0 to 100 (Popovic 2015, 2017) with sacreBLEU's options; the default is chrF++.

    `word_order` 0 is chrF, 1 chrF+, 2 chrF++. `threads`: all cores by default; it changes no score.
    """

    char_order: int = 6
    word_order: int = 2
    beta: float = 2
    lowercase: bool = False
    whitespace: bool = False
    eps_smoothing: bool = False
    threads: int | None = None

    schedule: ClassVar[tuple[int, ...]] = (16, 32, 64, 128, 256)
    needs_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_switches(self)
        for name in ("char_order", "word_order"):
            check_whole(name, getattr(self, name), least=0)
        if not 1 <= self.char_order + self.word_order <= MAX_ORDERS:
            together = f"must be 1 to {MAX_ORDERS} together with word_order {self.word_order}"
            raise SettingError("char_order", self.char_order, together)
        check_number("beta", self.beta, least=0)
        check_threads(self.threads)
        simd = os.environ.get(SIMD_VARIABLE, "")
        if simd and simd != "auto" and simd not in _native.simd_variants():
            known = ", ".join(["auto", *_native.simd_variants()])
            raise UserError(f"{SIMD_VARIABLE}={simd} is not available on this machine; choose one of: {known}")

    @property
    def name(self) -> str:
        """sacreBLEU's signature: the parts that the score of a sentence depends on."""
        return (
            f"chrF{self.beta:g}{'+' * self.word_order}|case:{'lc' if self.lowercase else 'mixed'}"
            f"|eff:{'no' if self.eps_smoothing else 'yes'}|nc:{self.char_order}|nw:{self.word_order}"
            f"|space:{'yes' if self.whitespace else 'no'}"
        )

    def start(self, sentences: Sequence[Sentence]) -> ChrFScorer:
        """Begin the races of a window; the n-gram indexes of its hypotheses live as long as its scorer."""
        return ChrFScorer(self, sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Sentence scores of aligned pairs, (pairs,)."""
        return self._aligned(hypotheses, references)[0]

    def corpus(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """Corpus score: F of the n-gram counts summed over all pairs, as sacreBLEU's `corpus_score`."""
        return self.from_statistics(self._aligned(hypotheses, references)[1])

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
        """(pairs, orders, 3): n-grams of the hypothesis, of the reference, and matches, for each aligned pair."""
        return np.stack([self._aligned([h], [r])[1] for h, r in zip(hypotheses, references, strict=True)])

    def from_statistics(self, totals: NDArray[np.int64]) -> float:
        """The corpus score, F-beta, of summed `statistics`, (orders, 3)."""
        factor = self.beta**2
        present = totals[(totals[:, 0] > 0) & (totals[:, 1] > 0)].astype(np.float64)
        hypothesis, reference, matches = present[:, 0], present[:, 1], present[:, 2]
        if self.eps_smoothing:
            return float(100 * np.sum((1 + factor) * matches / (factor * reference + hypothesis)) / len(totals))
        if not matches.any():
            return 0.0
        precision, recall = np.mean(matches / hypothesis), np.mean(matches / reference)
        return float(100 * (1 + factor) * precision * recall / (factor * precision + recall))

    def _aligned(
        self, hypotheses: Sequence[str], references: Sequence[str]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        check_aligned(self.name, hypotheses=hypotheses, references=references)
        return _native.score_pairs(
            self._prepared(hypotheses),
            self._prepared(references),
            char_order=self.char_order,
            word_order=self.word_order,
            whitespace=self.whitespace,
            beta=self.beta,
            eps_smoothing=self.eps_smoothing,
            threads=self.workers,
            simd=os.environ.get(SIMD_VARIABLE, ""),
        )

    def _prepared(self, texts: Sequence[str]) -> tuple[str, ...]:
        return tuple([text.lower() for text in texts] if self.lowercase else texts)  # of a tuple: no copy


class ChrFScorer:
    """Scores the races of one window. Hypotheses are indexed when an ask first names them, and a new reference is
    scored only against the hypotheses of its ask."""

    def __init__(self, utility: ChrF, sentences: Sequence[Sentence]) -> None:
        self._utility = utility
        self._threads = utility.workers
        self._sentences = sentences
        # Of each sentence: an index of its hypotheses, and more of those that join its race later.
        self._indexes: list[list[_native.ChrFIndex]] = [[] for _ in sentences]
        self.encode_seconds = 0.0

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float32]]:
        """The utilities of each ask, (hypotheses, references)."""
        began = time.perf_counter()
        self._index(asks)
        indexed = time.perf_counter()
        parts = [(number, *part) for number, ask in enumerate(asks) for part in self._parts(ask)]
        found, share = _native.score_window(
            [index for _, index, _ in parts],
            [rows for _, _, rows in parts],
            [self._utility._prepared(asks[number].references) for number, _, _ in parts],
            beta=self._utility.beta,
            eps_smoothing=self._utility.eps_smoothing,
            threads=self._threads,
            simd=os.environ.get(SIMD_VARIABLE, ""),
        )
        self.encode_seconds += indexed - began + share * (time.perf_counter() - indexed)
        if len(parts) == len(asks):
            return found
        tables: list[list[NDArray[np.float32]]] = [[] for _ in asks]
        for (number, _, _), table in zip(parts, found, strict=True):
            tables[number].append(table)
        return [np.concatenate(each) for each in tables]

    def race_lists(self, tallies: Sequence[Tally], drawn: Sequence[Sequence[str]], **plan: Any) -> Races | None:
        """Whole races, without going back to the race after every step; `plan` is that of the native call. On one
        thread alone: several would share out the sentences, not the pairs of one."""
        if self._threads != 1:
            return None
        began = time.perf_counter()
        self._index([Ask(i, np.arange(len(each.hypotheses)), ()) for i, each in enumerate(self._sentences)])
        indexed = time.perf_counter()
        means, steps, (reading, counting, deciding) = _native.race_lists(
            list(tallies),
            [index for (index,) in self._indexes],
            list(drawn),
            [self._utility._prepared(texts) for texts in drawn],
            **plan,
            beta=self._utility.beta,
            eps_smoothing=self._utility.eps_smoothing,
            simd=os.environ.get(SIMD_VARIABLE, ""),
        )
        self.encode_seconds += indexed - began + reading
        return means, steps, counting, deciding

    def _index(self, asks: Sequence[Ask]) -> None:
        """Index hypotheses that are new, up to the last one that an ask names."""
        ends: dict[int, int] = {}
        for ask in asks:
            end = int(ask.hypotheses.max()) + 1
            if end > max(sum(map(len, self._indexes[ask.sentence])), ends.get(ask.sentence, 0)):
                ends[ask.sentence] = end
        if not ends:
            return
        starts = {sentence: sum(map(len, self._indexes[sentence])) for sentence in ends}
        built = _native.build_indexes(
            [self._utility._prepared(self._sentences[s].hypotheses[starts[s] : end]) for s, end in ends.items()],
            char_order=self._utility.char_order,
            word_order=self._utility.word_order,
            whitespace=self._utility.whitespace,
            threads=self._threads,
        )
        for sentence, index in zip(ends, built, strict=True):
            self._indexes[sentence].append(index)

    def _parts(self, ask: Ask) -> list[tuple[_native.ChrFIndex, NDArray[np.int64]]]:
        """The indexes that have the hypotheses of an ask, and their rows in each."""
        indexes = self._indexes[ask.sentence]
        if len(indexes) == 1:
            return [(indexes[0], ask.hypotheses)]
        starts = np.cumsum([0, *map(len, indexes)])
        rows = np.split(ask.hypotheses, np.searchsorted(ask.hypotheses, starts[1:-1]))
        parts = zip(indexes, rows, starts[:-1], strict=True)
        return [(index, some - start) for index, some, start in parts if len(some)]
