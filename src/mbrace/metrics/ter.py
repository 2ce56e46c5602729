"""Translation edit rate as a utility, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import check_switches, require
from mbrace.metrics.base import StringMetric


@dataclass(frozen=True, kw_only=True)
class TER(StringMetric[tuple[str, ...]]):
    """Negated TER (Snover et al. 2006): minus sacreBLEU's score with the same options, so that higher is better.

    0 is a perfect match, -100 as many edits as the reference has words, and it may fall below that. sacreBLEU counts
    in Python, several milliseconds per pair: race with it rather than score every pair.
    """

    normalized: bool = False
    no_punct: bool = False
    asian_support: bool = False
    case_sensitive: bool = False

    def __post_init__(self) -> None:
        check_switches(self)
        require("sacrebleu.metrics.ter", extra="strings")

    @property
    def name(self) -> str:
        """sacreBLEU's signature with a minus sign: the parts that the score of a sentence depends on."""
        switches = {"norm": self.normalized, "punct": not self.no_punct, "asian": self.asian_support}
        case = "mixed" if self.case_sensitive else "lc"
        return f"-TER|case:{case}|tok:tercom" + "".join(
            f"|{switch}:{'yes' if on else 'no'}" for switch, on in switches.items()
        )

    def preparer(self) -> Callable[[str], tuple[str, ...]]:
        """Words as sacreBLEU's tokenizer for TER splits them."""
        tokenizer = _metric(self.normalized, self.no_punct, self.asian_support, self.case_sensitive).tokenizer
        return lambda text: tuple(tokenizer(text.rstrip()).split())

    def table(
        self, hypotheses: Sequence[tuple[str, ...]], references: Sequence[tuple[str, ...]]
    ) -> NDArray[np.float64]:
        """(hypotheses, references): negated TER."""
        rows = [[self._score(*_edits(h, r)) for r in references] for h in hypotheses]
        return np.array(rows, dtype=np.float64).reshape(len(hypotheses), len(references))

    @staticmethod
    def _score(edits: int, length: int) -> float:
        return -100.0 * (edits / length if length > 0 else float(edits > 0))

    def corpus(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """Corpus score: minus sacreBLEU's, which divides the edits of all pairs by all words of the references."""
        return self.from_statistics(self.statistics(hypotheses, references).sum(axis=0))

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
        """(pairs, 2): edits, and words of the reference, of each aligned pair."""
        counts = [_edits(h, r) for h, r in self.prepared_pairs(hypotheses, references)]
        return np.array(counts, dtype=np.int64).reshape(-1, 2)

    def from_statistics(self, totals: NDArray[np.int64]) -> float:
        """The corpus score of summed `statistics`, (2,)."""
        return self._score(int(totals[0]), int(totals[1]))


@lru_cache(maxsize=16)
def _metric(normalized: bool, no_punct: bool, asian_support: bool, case_sensitive: bool) -> Any:
    return require("sacrebleu.metrics.ter", extra="strings").TER(normalized, no_punct, asian_support, case_sensitive)


def _edits(hypothesis: tuple[str, ...], reference: tuple[str, ...]) -> tuple[int, int]:
    if hypothesis == reference:
        return 0, len(reference)
    count: Callable[[list[str], list[str]], tuple[int, int]]
    count = require("sacrebleu.metrics.lib_ter", extra="strings").translation_edit_rate
    return count(list(hypothesis), list(reference))
