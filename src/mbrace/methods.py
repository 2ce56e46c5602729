"""Published ways to score fewer pairs than standard MBR that are not pruning functions: they change what a race scores,
not the race. `docs/methods.md` compares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mbrace.aggregates import Grouped, aggregated, clustered
from mbrace.errors import LARGEST, UserError, check_number, check_whole
from mbrace.low_rank import Completed, pairs_to_score
from mbrace.method_names import Method, name_of
from mbrace.records import Record
from mbrace.result import Decoded, Step
from mbrace.sampler import Draws, Sampler, SharedDraws
from mbrace.scoring import UtilityWrapper
from mbrace.utility import (
    AggregatingUtility,
    CentroidUtility,
    Scorer,
    SelfScaledUtility,
    Sentence,
    Utility,
)

MOST_RANK = 1024  # a higher rank saves nothing, and its matrices would have to fit in memory


@dataclass(frozen=True)
class _GroupUtility(UtilityWrapper):
    """Scores pseudo-references that each stand for many: `begin` is the utility's method that starts such races."""

    begin: Callable[[Sequence[Sentence]], Scorer]

    def start(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window."""
        return self.begin(sentences)


class _Unchanged:
    """The defaults of `Method`, which leave the race as it is; each method overrides some."""

    def check(self, utility: Utility) -> None:
        """Accept any utility."""

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility itself."""
        return utility

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """The draws themselves."""
        return sampler

    def calls(self, step: Step) -> Step:
        """What the race counted: hypotheses x pseudo-references (or aggregates or centroids)."""
        return step


@dataclass(frozen=True)
class AggregateReferences(_Unchanged):
    """Reference aggregation (DeNero et al. 2009; Vamvas & Sennrich 2024): pseudo-references become a few `aggregates`,
    averages of their embeddings, and hypotheses are scored against those. One is full
    aggregation, more are partial aggregation."""

    aggregates: int = 1

    def __post_init__(self) -> None:
        check_whole("aggregates", self.aggregates, least=1, most=LARGEST)

    def check(self, utility: Utility) -> None:
        """Refuse a utility that cannot average references."""
        if not isinstance(utility, AggregatingUtility):
            raise _refused(
                self,
                utility,
                "cannot average references (for a string metric, exact pairs take no longer than their "
                "aggregate: leave the method out); choose comet, learned or embedding",
            )

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility over aggregates."""
        assert isinstance(utility, AggregatingUtility)
        return _GroupUtility(utility, utility.start_aggregates)

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """Aggregates of draws."""
        return Grouped(sampler, lambda record, draws: aggregated(draws, self.aggregates))


@dataclass(frozen=True)
class CentroidReferences(_Unchanged):
    """Centroid-based MBR (Deguchi et al. 2024): the embeddings of the pseudo-references are clustered by k-means, and
    hypotheses are scored against the centroids. All centroids count equally, as in the paper, or with `weighted` each
    by the number of pseudo-references in its cluster."""

    centroids: int = 64
    weighted: bool = False

    def __post_init__(self) -> None:
        check_whole("centroids", self.centroids, least=1, most=LARGEST)

    def check(self, utility: Utility) -> None:
        """Refuse a utility without embeddings."""
        if not isinstance(utility, CentroidUtility):
            raise _refused(self, utility, "has no embeddings to cluster; choose comet, learned or embedding")

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility over centroids."""
        assert isinstance(utility, CentroidUtility)
        return _GroupUtility(utility, utility.start_centroids)

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """Centroids of draws."""

        def group(record: Record, draws: Draws) -> Draws:
            return clustered(draws, self.centroids, equal=not self.weighted, seed=seed, record=record)

        return Grouped(sampler, group)


@dataclass(frozen=True)
class LowRank(_Unchanged):
    """Probabilistic MBR (Trabelsi et al. 2024): a random `fraction` of the pairs is scored, and the others are
    estimated by a matrix of this `rank`."""

    rank: int = 8
    fraction: float = 0.125

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, least=1, most=MOST_RANK)
        check_number("fraction", self.fraction, least=0, most=1)
        if self.fraction == 0:
            raise UserError("fraction 0: must be above 0")

    def check(self, utility: Utility) -> None:
        """Refuse a utility whose scores depend on what else is asked for."""
        if isinstance(utility, SelfScaledUtility) and utility.scales_by_first_table:
            raise _refused(
                self, utility, "is scaled by whole tables, of which only some pairs are scored; fix its scale"
            )

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility with completed tables."""
        return Completed(utility, self.rank, self.fraction, seed)

    def calls(self, step: Step) -> Step:
        """The fraction of what the race counted."""
        return step._replace(
            utility_calls=pairs_to_score(step.utility_calls, self.fraction),
            pairs_scored=pairs_to_score(step.pairs_scored, self.fraction),
        )


def counted(method: Method, record: Record, answer: Decoded, draws: SharedDraws) -> Decoded:
    """The answer of a race with a method, with its counters set to what was really drawn, encoded and scored."""
    if not answer.steps:
        return answer
    drawn = draws.drawn(record)
    steps = tuple(method.calls(step)._replace(pseudo_references=len(drawn)) for step in answer.steps)
    return replace(
        answer,
        utility_calls=sum(step.utility_calls for step in steps),
        pairs_scored=sum(step.pairs_scored for step in steps),
        pseudo_references=len(drawn),
        strings=len({*record.hypotheses, *drawn}),
        steps=steps,
    )


def _refused(method: object, utility: Utility, why: str) -> UserError:
    return UserError(f"method {name_of(method)}: utility {utility.name} {why}, or another method")
