"""For networks with random weights: every forward pass is paid, and a real utility decides by the same strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import mbrace
from mbrace.utility import Ask, Sentence


class Table:
    """A real utility's scores of a record's distinct hypotheses (rows) against its distinct pseudo-references."""

    def __init__(self, hypotheses: Iterable[str], references: Iterable[str], scores: np.ndarray) -> None:
        self.rows = {text: row for row, text in enumerate(hypotheses)}
        self.columns = {text: column for column, text in enumerate(references)}
        self.scores = scores

    @classmethod
    def of(cls, record: mbrace.Record, utility: Any) -> Table:
        """Score the strings of a record."""
        references = distinct(references_of(record))
        hypotheses = distinct(record.hypotheses)
        scorer = utility.start([Sentence(record.id, record.source, hypotheses)])
        return cls(hypotheses, references, scorer.score([Ask(0, np.arange(len(hypotheses)), references)])[0])

    def values(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """The scores of some of the strings, (hypotheses, references)."""
        rows = [self.rows[text] for text in hypotheses]
        return self.scores[np.ix_(rows, [self.columns[text] for text in references])]  # type: ignore[no-any-return]


def decided_by(tables: Mapping[Any, Table], scorer: Any, sentences: Sequence[Sentence]) -> Any:
    """The scorer, which computes its own scores and then returns those of the tables (by record id)."""
    compute = scorer.score

    def score(asks: Sequence[Ask]) -> list[np.ndarray]:
        compute(asks)
        found = []
        for ask in asks:
            sentence = sentences[ask.sentence]
            hypotheses = [sentence.hypotheses[index] for index in ask.hypotheses.tolist()]
            found.append(tables[sentence.id].values(hypotheses, ask.references))
        return found

    scorer.score = score
    return scorer


class SpeedOnly:
    """Pays every forward pass of a utility, and returns the scores of the tables."""

    def __init__(self, utility: Any, tables: Mapping[Any, Table]) -> None:
        self.utility, self.tables = utility, tables
        self.name, self.schedule, self.needs_source = "speed only", utility.schedule, True
        self.pairs = utility.pairs

    def start(self, window: Sequence[Sentence]) -> Any:
        return decided_by(self.tables, self.utility.start(window), window)


def references_of(record: mbrace.Record) -> Sequence[str]:
    """A record's pseudo-references, which must be a list."""
    assert isinstance(record.pseudo_references, Sequence)
    return record.pseudo_references


def distinct(texts: Iterable[str]) -> list[str]:
    """The distinct strings of a list, in its order."""
    return list(dict.fromkeys(texts))
