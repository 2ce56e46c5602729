"""chrF, chrF+ and chrF++ as a utility: equal to sacreBLEU's, counted in native code (docs/kernel.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrace import _native
from mbrace.errors import UserError, check_number, check_threads, check_whole
from mbrace.metrics.chrf_scorer import SIMD_VARIABLE, ChrFScorer
from mbrace.metrics.multithreaded import Multithreaded
from mbrace.scoring import check_aligned
from mbrace.utility import Sentence

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
