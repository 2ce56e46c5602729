"""Diverse MBR (DMBR): Jinnai, Honda, Morimura and Zhang, "Generating Diverse and High-Quality Texts by Minimum Bayes
Risk Decoding" (Findings of ACL 2024), with the utility itself as similarity.

After standard MBR, an n-best list is chosen greedily: first the best hypothesis, then always the one that adds most to

    sum of U(h) - diversity / (n - 1) x sum of u(h, h') over ordered pairs of chosen hypotheses.

Up to 2 (n - 1) N more scores for N hypotheses; those that standard MBR had are not scored again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import LARGEST, UserError, check_number
from mbrace.methods import StandardMBR, started_by
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.utility import Ask, Scorer, Sentence, Utility


@dataclass(frozen=True)
class Diverse:
    """An n-best list that weighs expected utility against similarity; `diversity` is the weight of the similarity."""

    diversity: float = 0.5
    scores_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("diversity", self.diversity, least=0)

    def check(self, utility: Utility) -> None:
        """Accept any utility."""

    def decode(self, records: Sequence[Record], mbr: StandardMBR) -> list[Decoded | Exception]:
        """Standard MBR, then the choice of all n-best lists, in lockstep."""
        scorers: list[Scorer] = []  # the one that standard MBR used: it has the encodings

        def start(sentences: Sequence[Sentence]) -> Scorer:
            scorers.append(mbr.utility.start(sentences))
            return scorers[-1]

        answers = mbr(records, utility=started_by(mbr.utility, start), nbest=LARGEST, keep_utilities=True)
        lists, raced = dict[int, _List](), 0
        for index, answer in enumerate(answers):
            if isinstance(answer, Decoded):
                lists[index] = _List(raced, answer, mbr.settings.nbest)
            raced += len(set(records[index].hypotheses)) > 1  # the scorer knows only sentences that raced
        while growing := {index: each for index, each in lists.items() if each.grows}:
            asks = [ask for each in growing.values() for ask in each.asks()]
            tables = iter(self._score(asks, scorers, mbr))
            for index, each in growing.items():
                try:
                    each.add(tables, self.diversity / (mbr.settings.nbest - 1))
                except ValueError as error:
                    del lists[index]
                    answers[index] = records[index].error(f"utility {mbr.utility.name} returned {error}")
        return [
            lists[index].answer(keep_utilities=mbr.keep_utilities) if index in lists else answer
            for index, answer in enumerate(answers)
        ]

    def _score(
        self, asks: Sequence[Ask], scorers: Sequence[Scorer], mbr: StandardMBR
    ) -> Sequence[NDArray[np.floating]]:
        """What is not known of how alike hypotheses are."""
        if not asks:
            return []
        began, encoded = time.perf_counter(), scorers[0].encode_seconds
        tables = scorers[0].score(asks)
        if len(tables) != len(asks):
            raise UserError(f"utility {mbr.utility.name}: returned {len(tables)} tables for {len(asks)} asks")
        encoding = scorers[0].encode_seconds - encoded
        mbr.phases.encode += encoding
        mbr.phases.score += time.perf_counter() - began - encoding
        return tables


class _List:
    """The n-best list of one sentence, as it grows: rows of its table of utilities."""

    def __init__(self, sentence: int, answer: Decoded, nbest: int) -> None:
        assert answer.utilities is not None
        self._sentence, self._answer, self._table, self._calls = sentence, answer, answer.utilities, 0
        ranked = [self._table.rows[each.text] for each in answer.nbest]
        self._size = min(nbest, len(ranked))
        self._chosen = ranked[: 1 if len(ranked) > nbest else None]  # there is a choice only if some are left out
        self._means = np.zeros(len(ranked))
        self._means[ranked] = [each.utility or 0.0 for each in answer.nbest]
        self._penalties = np.zeros(len(ranked))
        self._unknown: list[NDArray[np.int64]] = []  # the rows that each ask is about
        self._alike = np.zeros(len(ranked))

    @property
    def grows(self) -> bool:
        """Whether another hypothesis is to be chosen."""
        return len(self._chosen) < self._size

    def asks(self) -> list[Ask]:
        """The pairs of the one chosen last with those left that are no known comparison with a pseudo-reference."""
        table, last = self._table, self._chosen[-1]
        left = np.setdiff1d(np.arange(len(self._means)), self._chosen)
        columns = np.array([table.columns.get(table.hypotheses[row], -1) for row in left.tolist()])
        known, unknown = left[columns >= 0], left[columns < 0]
        self._unknown, self._alike, asks = [], np.zeros(len(self._means)), []
        column = table.columns.get(table.hypotheses[last])
        if column is not None:
            self._alike[left] += table.utilities[left, column]
        else:
            asks.append(Ask(self._sentence, left, (table.hypotheses[last],)))
            self._unknown.append(left)
        self._alike[known] += table.utilities[last, columns[columns >= 0]]
        if len(unknown):
            texts = tuple(table.hypotheses[row] for row in unknown.tolist())
            asks.append(Ask(self._sentence, np.array([last]), texts))
            self._unknown.append(unknown)
        return asks

    def add(self, tables: Iterator[NDArray[np.floating]], weight: float) -> None:
        """Choose one more, given the tables of the asks; a ValueError says what is wrong with these."""
        own = [next(tables) for _ in self._unknown]  # those of other lists follow
        for rows, table in zip(self._unknown, own, strict=True):
            if np.size(table) != len(rows) or not np.isfinite(table).all():
                raise ValueError(f"{np.shape(table)} numbers for {len(rows)} pairs of hypotheses, or one not finite")
            self._alike[rows] += np.asarray(table, dtype=np.float64).ravel()
            self._calls += len(rows)
        self._penalties += weight * self._alike
        worth = self._means - self._penalties
        worth[self._chosen] = -np.inf
        self._chosen.append(int(np.argmax(worth)))  # the first of equal ones

    def answer(self, *, keep_utilities: bool) -> Decoded:
        """The answer with this list."""
        by_row = {self._table.rows[each.text]: each for each in self._answer.nbest}
        return replace(
            self._answer,
            nbest=tuple(by_row[row] for row in self._chosen),
            utility_calls=self._answer.utility_calls + self._calls,
            pairs_scored=self._answer.pairs_scored + self._calls,
            utilities=self._table if keep_utilities else None,
        )
