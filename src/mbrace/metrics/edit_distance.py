"""Word and character error rates and other edit distances as utilities, counted by rapidfuzz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import SettingError, check_switches, check_threads, require
from mbrace.metrics.base import Alphabet, Multithreaded, StringMetric

ERROR_RATES = {"wer": "words", "cer": "characters"}  # what each counts
SIMILARITIES = {  # rapidfuzz's module of each
    "levenshtein": "Levenshtein",
    "osa": "OSA",
    "damerau-levenshtein": "DamerauLevenshtein",
    "indel": "Indel",
}
UNITS = ("characters", "words")


@dataclass(frozen=True, kw_only=True)
class EditDistance(Multithreaded, StringMetric[str]):
    """An edit distance, negated or subtracted from 1 so that higher is better.

    `kind` wer and cer are the negated error rate: minus the number of edits (Levenshtein) divided by the number of
    words or characters of the reference. 0 is a perfect match, and it may fall below -1. Against an empty reference it
    is -1, or 0 for an empty hypothesis. The others are rapidfuzz's normalised similarity, 1 minus the distance divided
    by the largest possible distance, from 0 to 1: levenshtein, osa (also swaps of neighbours), damerau-levenshtein
    (swaps, which may be edited further) and indel (insertions and deletions only), of characters or, with
    `unit="words"`, of words. Words are separated by whitespace. `threads`: all cores by default; it changes no score.
    """

    kind: str = "levenshtein"
    unit: str | None = None
    lowercase: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        check_switches(self)
        if self.kind not in (*ERROR_RATES, *SIMILARITIES):
            known = ", ".join([*ERROR_RATES, *SIMILARITIES])
            raise SettingError("kind", self.kind, f"unknown; choose from {known}")
        if self.unit is not None and self.unit not in UNITS:
            raise SettingError("unit", self.unit, f"unknown; choose from {', '.join(UNITS)}")
        if self.unit not in (None, self._unit):
            raise SettingError("unit", self.unit, f"{self.kind} counts {self._unit}")
        check_threads(self.threads)
        self._distance()

    @property
    def _unit(self) -> str:
        return ERROR_RATES.get(self.kind) or self.unit or "characters"

    @property
    def name(self) -> str:
        """The kind, with a minus sign where it is negated, and what it counts."""
        kind = f"-{self.kind.upper()}" if self.kind in ERROR_RATES else self.kind
        return f"{kind}|case:{'lc' if self.lowercase else 'mixed'}|unit:{self._unit}"

    def _distance(self) -> Callable[..., int]:
        distance: Any = require("rapidfuzz.distance", extra="strings")
        function: Callable[..., int] = getattr(distance, SIMILARITIES.get(self.kind, "Levenshtein")).distance
        return function

    def preparer(self) -> Callable[[str], str]:
        """Characters to compare: the text's own, or one for each of its words."""
        lowercase = self.lowercase
        prepare: Callable[[str], str] = Alphabet(str.split) if self._unit == "words" else str
        return (lambda text: prepare(text.lower())) if lowercase else prepare

    def table(self, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
        """(hypotheses, references): negated error rates or normalised similarities."""
        return self._score(*self._counts(hypotheses, references))

    def _counts(
        self, hypotheses: Sequence[str], references: Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(hypotheses, references): distances, and what they are divided by."""
        process = require("rapidfuzz.process", extra="strings")
        distances = process.cdist(hypotheses, references, scorer=self._distance(), dtype=np.int64, workers=self.workers)
        rows = np.array([len(text) for text in hypotheses], dtype=np.int64)[:, None]
        columns = np.array([len(text) for text in references], dtype=np.int64)[None, :]
        if self.kind in ERROR_RATES:
            return distances, np.broadcast_to(columns, distances.shape)
        return distances, rows + columns if self.kind == "indel" else np.maximum(rows, columns)

    def _score(self, distances: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        # nothing to divide by: all wrong unless both are empty, as sacreBLEU's TER has it
        rates = np.where(lengths > 0, distances / np.maximum(lengths, 1), distances > 0)
        return np.asarray(0 - rates if self.kind in ERROR_RATES else 1 - rates, dtype=np.float64)

    def corpus(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """Corpus score: the sums, over all pairs, of the distances and of what they are divided by."""
        return self.from_statistics(self.statistics(hypotheses, references).sum(axis=0))

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
        """(pairs, 2): the distance of each aligned pair, and what it is divided by."""
        counts = [self._counts([h], [r]) for h, r in self.prepared_pairs(hypotheses, references)]
        return np.array([(distance[0, 0], length[0, 0]) for distance, length in counts], dtype=np.int64).reshape(-1, 2)

    def from_statistics(self, totals: NDArray[np.int64]) -> float:
        """The corpus score of summed `statistics`, (2,)."""
        return float(self._score(np.asarray(totals[0]), np.asarray(totals[1])))
