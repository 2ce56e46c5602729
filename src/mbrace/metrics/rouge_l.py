"""ROUGE-L as a utility: equal to the rouge-score package's, with the longest common subsequences by rapidfuzz."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import check_threads, require
from mbrace.metrics.base import Alphabet, Multithreaded, StringMetric

_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, kw_only=True)
class RougeL(Multithreaded, StringMetric[str]):
    """F-measure of the longest common subsequence of words, from 0 to 1 (Lin 2004).

    Equal to the rougeL fmeasure of Google's rouge-score without stemming. Its words are runs of a-z and 0-9 after
    lowercasing; everything else separates words, so texts in other scripts have none and score 0.
    `threads`: all cores by default; it changes no score.
    """

    threads: int | None = None

    name: ClassVar[str] = "ROUGE-L|measure:f|stemming:no"

    def __post_init__(self) -> None:
        check_threads(self.threads)
        require("rapidfuzz.distance", extra="strings")

    def preparer(self) -> Callable[[str], str]:
        """A character for each word."""
        return Alphabet(lambda text: _WORD.findall(text.lower()))

    def table(self, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
        """(hypotheses, references): F-measures."""
        process, distance = (require(f"rapidfuzz.{part}", extra="strings") for part in ("process", "distance"))
        common = process.cdist(
            hypotheses, references, scorer=distance.LCSseq.similarity, dtype=np.int64, workers=self.workers
        )
        rows = np.array([len(text) for text in hypotheses])[:, None]
        columns = np.array([len(text) for text in references])[None, :]
        return np.asarray(2 * common / np.maximum(rows + columns, 1), dtype=np.float64)
