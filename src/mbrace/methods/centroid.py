"""Centroid-based MBR: Deguchi et al., "Centroid-Based Efficient Minimum Bayes Risk Decoding" (Findings of ACL 2024).

The embeddings of the pseudo-references are clustered by k-means, and hypotheses are scored against the K centres: N x K
scores for N hypotheses and M pseudo-references instead of N x M, and M x K distances per iteration of k-means. Every
string is still encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mbrace.errors import LARGEST, check_whole
from mbrace.methods import StandardMBR, refused, started_by, with_cost
from mbrace.methods.groups import Clustering, Group, GroupingUtility, aggregates_of, weighted
from mbrace.records import Record, key
from mbrace.result import Decoded
from mbrace.sampler import Draws
from mbrace.utility import Utility


@dataclass(frozen=True)
class CentroidReferences:
    """Hypotheses are scored against the centres of `centroids` clusters, which count equally, as in the paper, or with
    `weighted` each by the number of pseudo-references in its cluster."""

    centroids: int = 64
    weighted: bool = False
    scores_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("centroids", self.centroids, least=1, most=LARGEST)

    def check(self, utility: Utility) -> None:
        """Refuse a utility without embeddings."""
        if not isinstance(utility, GroupingUtility):
            raise refused(self, utility, "has no embeddings to cluster; choose comet, learned or embedding")

    def decode(self, records: Sequence[Record], mbr: StandardMBR) -> list[Decoded | Exception]:
        """Standard MBR in which the draws are replaced by centroids."""
        assert isinstance(mbr.utility, GroupingUtility)
        drawn = mbr.draw(records)
        pairs = zip(records, drawn, strict=True)
        centres = [
            self._centroids(record, draws, mbr.settings.seed) if draws.texts else draws for record, draws in pairs
        ]
        answers = mbr(records, draws=centres, utility=started_by(mbr.utility, mbr.utility.start_groups))
        return [with_cost(*each) for each in zip(answers, records, drawn, strict=True)]

    def _centroids(self, record: Record, draws: Draws, seed: int) -> Draws:
        """The centroids. If no more of the draws are distinct, each becomes an aggregate of its own, weighted by how
        often it was drawn, which is standard MBR."""
        texts, weights = weighted(draws)
        if len(texts) <= self.centroids:
            return aggregates_of([([text], weights[[position]]) for position, text in enumerate(texts)])
        equal = not self.weighted and draws.logprobs is None
        clustering = Clustering(texts, weights, equal=equal, seed=key(seed, record.id, "centroids"))
        count = self.centroids
        return Draws([Group(f"centroid {number} of {count}", clustering) for number in range(1, count + 1)])
