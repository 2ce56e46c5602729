"""What implementations of utilities share: checks of the texts they are given, tables of scores, and a wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.utility import Ask, Sentence, Utility

Number = TypeVar("Number", bound=np.floating)


def split_tables(flat: NDArray[Number], asks: Sequence[Ask]) -> list[NDArray[Number]]:
    """A table (hypotheses, references) per ask, from the scores of all their pairs, end to end."""
    tables, begin = [], 0
    for ask in asks:
        rows, columns = len(ask.hypotheses), len(ask.references)
        tables.append(flat[begin : begin + rows * columns].reshape(rows, columns))
        begin += rows * columns
    return tables


def check_sentence_sources(sentences: Sequence[Sentence]) -> None:
    """Refuse a sentence without a source, for a utility that needs one."""
    for sentence in sentences:
        if sentence.source is None:
            raise UserError(f"record {sentence.id!r}: source: missing; this metric scores with the source")


def check_aligned(utility: str, **columns: Sequence[str]) -> None:
    """Refuse lists of different lengths, by name: `hypotheses`, then `references`, `sources` or both."""
    (first, texts), *others = columns.items()
    for kind, aligned in others:
        if len(aligned) != len(texts):
            raise UserError(f"utility {utility}: {len(texts)} {first} but {len(aligned)} {kind}; give one for each")


def pair_columns(
    utility: Utility, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None
) -> list[Sequence[str]]:
    """What a call of `pairs` scores: hypotheses, references and, if the utility needs them, sources; checked."""
    columns = {"hypotheses": hypotheses, "references": references}
    if utility.needs_source:
        if sources is None:
            raise UserError(f"utility {utility.name}: scores with the source; give sources")
        columns["sources"] = sources
    check_aligned(utility.name, **columns)
    return list(columns.values())


@dataclass(frozen=True)
class UtilityWrapper:
    """A utility that scores races in its own way, by means of another utility."""

    utility: Utility

    @property
    def name(self) -> str:
        """The wrapped utility's."""
        return self.utility.name

    @property
    def schedule(self) -> tuple[int, ...]:
        """The wrapped utility's."""
        return self.utility.schedule

    @property
    def needs_source(self) -> bool:
        """The wrapped utility's."""
        return self.utility.needs_source

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.floating]:
        """Scores of aligned pairs by the wrapped utility."""
        return self.utility.pairs(hypotheses, references, sources)
