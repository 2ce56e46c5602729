"""Reference aggregation: DeNero, Chiang and Knight, "Fast Consensus Decoding over Translation Forests" (ACL 2009);
Vamvas and Sennrich, "Linear-time Minimum Bayes Risk Decoding with Reference Aggregation" (ACL 2024).

The vectors of all pseudo-references are averaged, and hypotheses are scored against the average: N scores for N
hypotheses and M pseudo-references instead of N x M. With several `aggregates`, each is the average of a part of the
draws (partial aggregation): N x aggregates. Every string is still encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import LARGEST, check_whole
from mbrace.methods import StandardMBR, refused, started_by, with_cost
from mbrace.methods.groups import GroupingUtility, aggregates_of, weighted
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.sampler import Draws
from mbrace.utility import Utility


@dataclass(frozen=True)
class AggregateReferences:
    """Hypotheses are scored against `aggregates` averages of pseudo-references."""

    aggregates: int = 1
    scores_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("aggregates", self.aggregates, least=1, most=LARGEST)

    def check(self, utility: Utility) -> None:
        """Refuse a utility that cannot average references."""
        if not isinstance(utility, GroupingUtility):
            raise refused(
                self,
                utility,
                "cannot average references; for a string metric exact pairs are as fast: leave the method out. "
                "Aggregation needs comet, learned or embedding",
            )

    def decode(self, records: Sequence[Record], mbr: StandardMBR) -> list[Decoded | Exception]:
        """Standard MBR in which consecutive draws are replaced by their average."""
        assert isinstance(mbr.utility, GroupingUtility)
        drawn = mbr.draw(records)
        averages = [aggregates_of(self._parts(draws)) if draws.texts else draws for draws in drawn]
        answers = mbr(records, draws=averages, utility=started_by(mbr.utility, mbr.utility.start_groups))
        return [with_cost(*each) for each in zip(answers, records, drawn, strict=True)]

    def _parts(self, draws: Draws) -> list[tuple[Sequence[str], NDArray[np.float64]]]:
        """The texts of each aggregate and their weights."""
        if draws.logprobs is None:
            parts = np.array_split(np.arange(len(draws.texts)), min(self.aggregates, len(draws.texts)))
            return [weighted(Draws([draws.texts[position] for position in part.tolist()])) for part in parts]
        texts, weights = weighted(draws)
        parts = np.array_split(np.arange(len(texts)), min(self.aggregates, len(texts)))
        return [([texts[position] for position in part.tolist()], weights[part]) for part in parts]
