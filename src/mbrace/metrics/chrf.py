"""chrF, chrF+ and chrF++ as a utility: equal to sacreBLEU's, counted in native code (docs/kernel.md)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from mbrace import _native
from mbrace.errors import UserError, check_number, check_switches, check_threads, check_whole
from mbrace.metrics.base import Multithreaded
from mbrace.race import FinishedRaces, RacePlan
from mbrace.utility import Ask, Sentence, check_aligned

if TYPE_CHECKING:
    from mbrace._native import Tally

SIMD_VARIABLE = "MBRACE_SIMD"  # forces one of `_native.simd_variants()`
MAX_ORDERS = 24


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
        check_switches("chrF", self)
        for name in ("char_order", "word_order"):
            check_whole(f"chrF: {name}", getattr(self, name), least=0)
        if not 1 <= self.char_order + self.word_order <= MAX_ORDERS:
            raise UserError(
                f"chrF: char_order {self.char_order} and word_order {self.word_order}: "
                f"must be 1 to {MAX_ORDERS} together"
            )
        check_number("chrF: beta", self.beta, least=0)
        check_threads("chrF", self.threads)
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
        self._options: dict[str, Any] = {"beta": utility.beta, "eps_smoothing": utility.eps_smoothing}
        self._options["threads"] = self._threads
        self._sentences = sentences
        self._indexes: list[_native.ChrFIndex | None] = [None] * len(sentences)
        self._grown: dict[int, IndexedTexts] = {}  # the references of races into which hypotheses were let in later
        self.encode_seconds = 0.0

    def score(self, asks: Sequence[Ask]) -> Sequence[NDArray[np.float32]]:
        """The utilities of each ask, (hypotheses, references)."""
        began = time.perf_counter()
        self._index(asks)
        indexed = time.perf_counter()
        plain = [ask for ask in asks if ask.sentence not in self._grown] if self._grown else asks
        found, share = self._count(
            [self._indexes[ask.sentence] for ask in plain],
            [ask.hypotheses for ask in plain],
            [self._utility._prepared(ask.references) for ask in plain],
        )
        counted = time.perf_counter()
        self.encode_seconds += indexed - began + share * (counted - indexed)
        if len(plain) == len(asks):
            return found
        grown = [(number, ask) for number, ask in enumerate(asks) if ask.sentence in self._grown]
        numbers = [number for number, ask in enumerate(asks) if ask.sentence not in self._grown]
        scores = dict(zip(numbers, found, strict=True))
        looked_up = [self._texts(ask) for _, ask in grown]
        parts = [self._grown[ask.sentence].parts(ask.references) for _, ask in grown]
        found, share = self._count(
            [index for part in parts for index, _, _ in part],
            [rows for part in parts for _, rows, _ in part],
            [texts for texts, part in zip(looked_up, parts, strict=True) for _ in part],
            swapped=True,
        )
        tables = iter(found)
        for (number, ask), part in zip(grown, parts, strict=True):
            scores[number] = np.empty((len(ask.hypotheses), len(ask.references)), dtype=np.float32)
            for _, _, columns in part:
                scores[number][:, columns] = next(tables).T
        self.encode_seconds += share * (time.perf_counter() - counted)
        return [scores[number] for number in range(len(asks))]

    def race_lists(
        self, tallies: Sequence[Tally], drawn: Sequence[Sequence[str]], plan: RacePlan
    ) -> FinishedRaces | None:
        """Whole races, on one thread: several would share out the sentences, not the pairs of one."""
        if self._threads != 1:
            return None
        began = time.perf_counter()
        self._index([Ask(i, np.arange(len(each.hypotheses)), ()) for i, each in enumerate(self._sentences)])
        indexed = time.perf_counter()
        means, steps, (reading, counting, deciding) = _native.race_lists(
            list(tallies),
            cast("list[_native.ChrFIndex]", self._indexes),
            list(drawn),
            [self._utility._prepared(texts) for texts in drawn],
            **plan._asdict(),
            beta=self._utility.beta,
            eps_smoothing=self._utility.eps_smoothing,
            simd=os.environ.get(SIMD_VARIABLE, ""),
        )
        self.encode_seconds += indexed - began + reading
        return FinishedRaces(means, steps, counting, deciding)

    def _texts(self, ask: Ask) -> tuple[str, ...]:
        """The hypotheses of an ask."""
        given = self._sentences[ask.sentence].hypotheses
        return self._utility._prepared([given[row] for row in ask.hypotheses.tolist()])

    def _count(self, *window: list[Any], swapped: bool = False) -> tuple[list[NDArray[np.float32]], float]:
        """Scores for a window of indexes, their rows and references, and the share of the time spent on encoding. With
        `swapped`, references are indexed, and hypotheses are looked up."""
        simd = os.environ.get(SIMD_VARIABLE, "")
        return _native.score_window(*window, **self._options, simd=simd, swapped=swapped)

    def _index(self, asks: Sequence[Ask]) -> None:
        """Index the hypotheses of new sentences. If hypotheses join a race later, its references are indexed instead,
        each once, and each new hypothesis is looked up among them, rather than all references among new hypotheses."""
        ends: dict[int, int] = {}  # of new sentences: the index after the last hypothesis named
        for ask in asks:
            sentence, index = ask.sentence, self._indexes[ask.sentence]
            if index is not None and len(index) == len(self._sentences[sentence].hypotheses):
                continue  # all are indexed
            end = int(ask.hypotheses.max()) + 1
            if index is None:
                ends[sentence] = max(end, ends.get(sentence, 0))
            elif end > len(index):
                self._grown.setdefault(sentence, IndexedTexts())
        if not ends and not self._grown:
            return
        new = {
            (sentence, False): self._utility._prepared(self._sentences[sentence].hypotheses[:end])
            for sentence, end in ends.items()
        }
        for ask in asks:
            if ask.sentence in self._grown:
                unknown = self._grown[ask.sentence].unknown(ask.references)
                new[ask.sentence, True] = new.get((ask.sentence, True), ()) + self._utility._prepared(unknown)
        built = _native.build_indexes(
            [texts for texts in new.values() if texts],
            char_order=self._utility.char_order,
            word_order=self._utility.word_order,
            whitespace=self._utility.whitespace,
            threads=self._threads,
        )
        for (sentence, drawn), index in zip([key for key, texts in new.items() if texts], built, strict=True):
            if drawn:
                self._grown[sentence].add(index)
            else:
                self._indexes[sentence] = index


class IndexedTexts:
    """The references of a race in the order in which they were drawn, with one index per time step."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._indexes: list[_native.ChrFIndex] = []
        self._starts = [0]  # the number of the first of each index

    def unknown(self, texts: Sequence[str]) -> list[str]:
        """Those not known yet, each once. They get numbers, and their index must be added next."""
        new = [text for text in dict.fromkeys(texts) if text not in self._numbers]
        self._numbers.update(zip(new, range(len(self._numbers), len(self._numbers) + len(new)), strict=True))
        return new

    def add(self, index: _native.ChrFIndex) -> None:
        """Add the index of the texts that `unknown` returned last."""
        self._indexes.append(index)
        self._starts.append(self._starts[-1] + len(index))

    def parts(self, texts: Sequence[str]) -> list[tuple[_native.ChrFIndex, NDArray[np.int64], NDArray[np.int64]]]:
        """The indexes that hold these texts, their rows in each, and their positions in `texts`."""
        numbers = np.array([self._numbers[text] for text in texts], dtype=np.int64)
        found = []
        for number, index in enumerate(self._indexes):
            first, end = self._starts[number], self._starts[number + 1]
            positions = np.flatnonzero((numbers >= first) & (numbers < end))
            if len(positions):
                found.append((index, numbers[positions] - first, positions))
        return found
