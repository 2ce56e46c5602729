"""Diverse MBR (DMBR): Jinnai, Honda, Morimura and Zhang, "Generating Diverse and High-Quality Texts by Minimum Bayes
Risk Decoding" (Findings of ACL 2024), with the utility itself as similarity.

After standard MBR, an n-best list is chosen greedily: first the best hypothesis, then always the one that adds most to

    sum of U(h) - diversity / (n - 1) x sum of u(h, h') over ordered pairs of chosen hypotheses.

Up to 2 (n - 1) N more scores for N hypotheses; those that standard MBR had are not scored again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import LARGEST, RecordError, check_number
from mbrace.methods import StandardMBR, started_by
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.utility import Ask, Scorer, Sentence, Utility, score_asks


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
        """Standard MBR, then the choice of each list."""
        scorers: list[Scorer] = []  # the one that standard MBR used: it has the encodings

        def start(sentences: Sequence[Sentence]) -> Scorer:
            scorers.append(mbr.utility.start(sentences))
            return scorers[-1]

        answers = mbr(records, utility=started_by(mbr.utility, start), nbest=LARGEST, keep_utilities=True)
        raced = 0  # the scorer knows only sentences that raced
        for index, record in enumerate(records):
            answer = answers[index]
            if isinstance(answer, Decoded):
                try:
                    found = self._choose(answer, mbr.settings.nbest, partial(_scored, record, raced, scorers, mbr))
                    answers[index] = found if mbr.keep_utilities else replace(found, utilities=None)
                except RecordError as error:
                    answers[index] = error
            raced += len(set(record.hypotheses)) > 1
        return answers

    def _choose(self, answer: Decoded, nbest: int, score: Callable[..., NDArray[np.floating]]) -> Decoded:
        """The answer with its list, and with the cost of the comparisons that standard MBR had not made."""
        table = answer.utilities
        assert table is not None
        if len(answer.nbest) <= nbest:  # there is a choice only if some are left out
            return answer
        size, by_row = len(answer.nbest), {table.rows[each.text]: each for each in answer.nbest}
        similar = np.full((size, size), np.nan)  # u(h, h'), as far as it is known
        known = [row for row, text in enumerate(table.hypotheses) if text in table.columns]
        similar[:, known] = table.utilities[:, [table.columns[table.hypotheses[row]] for row in known]]
        means, penalties = np.array([by_row[row].utility for row in range(size)]), np.zeros(size)
        chosen, calls = [table.rows[answer.text]], 0
        while len(chosen) < nbest:
            last, left = np.array(chosen[-1:]), np.setdiff1d(np.arange(size), chosen)
            for rows, others in ((left, last), (last, left)):
                unknown = others[np.isnan(similar[rows[0], others])]
                if len(unknown):
                    similar[np.ix_(rows, unknown)] = score(rows, [table.hypotheses[row] for row in unknown.tolist()])
                    calls += len(rows) * len(unknown)
            penalties[left] += self.diversity / (nbest - 1) * (similar[left, last] + similar[last, left])
            worth = means - penalties
            worth[chosen] = -np.inf
            chosen.append(int(np.argmax(worth)))  # the first of equal ones
        calls, pairs = answer.utility_calls + calls, answer.pairs_scored + calls
        return replace(answer, nbest=tuple(by_row[row] for row in chosen), utility_calls=calls, pairs_scored=pairs)


def _scored(
    record: Record, place: int, scorers: Sequence[Scorer], mbr: StandardMBR, rows: NDArray[np.int64], texts: list[str]
) -> NDArray[np.floating]:
    """(rows, texts): hypotheses of the sentence at this `place` of the window against others as references."""
    name = mbr.utility.name
    with mbr.phases.scoring(scorers[0]):
        (table,) = score_asks(scorers[0], [Ask(place, rows, tuple(texts))], name)
    if np.shape(table) != (len(rows), len(texts)) or not np.isfinite(table).all():
        raise record.error(f"utility {name} returned other than {len(rows)} x {len(texts)} finite numbers")
    return table
