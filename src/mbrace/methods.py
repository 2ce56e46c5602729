"""Published ways to score fewer pairs than standard MBR that are no pruning functions: what a race scores is changed,
not the race. `docs/methods.md` has them side by side."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, TypeAlias

from mbrace.aggregates import Grouped, aggregated, clustered
from mbrace.decoded import Decoded, Step
from mbrace.errors import UserError, check_number, check_whole
from mbrace.low_rank import Completed, pairs_to_score
from mbrace.prune import Confidence, PruningFunction
from mbrace.records import Record
from mbrace.runner import Entry
from mbrace.sampler import Sampler, SharedDraws, is_function
from mbrace.schedule import Schedule
from mbrace.shortlist import ByRace, Shortlist, Shortlister
from mbrace.utility import (
    AggregatingUtility,
    CentroidUtility,
    EncodingUtility,
    GroupUtility,
    SelfScaledUtility,
    Utility,
)


class Method(Protocol):
    """What a race scores in place of every hypothesis against every pseudo-reference."""

    @property
    def prunes(self) -> bool:
        """Whether a pruning function goes with it."""

    def check(self, utility: Utility) -> None:
        """Refuse a utility that cannot do it."""
        ...

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility of the race."""
        ...

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """The source of its pseudo-references."""
        ...

    def shortlister(self, utility: Utility, schedule: Schedule, seed: int, nbest: int) -> Shortlister | None:
        """What shortens the list of hypotheses before the race."""
        ...

    def calls(self, step: Step) -> Step:
        """What a step of the race cost, of what the race counted."""
        ...


class _Unchanged:
    """The race as it is; each method changes a part."""

    prunes: ClassVar[bool] = False

    def check(self, utility: Utility) -> None:
        """Any utility will do."""

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility itself."""
        return utility

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """The draws themselves."""
        return sampler

    def shortlister(self, utility: Utility, schedule: Schedule, seed: int, nbest: int) -> Shortlister | None:
        """All hypotheses race."""
        return None

    def calls(self, step: Step) -> Step:
        """As the race counts: hypotheses x pseudo-references, or what stands for those."""
        return step


@dataclass(frozen=True)
class AggregateReferences(_Unchanged):
    """Reference aggregation (DeNero et al. 2009; Vamvas & Sennrich 2024): pseudo-references become a few `aggregates`,
    averages of their n-gram counts or of their embeddings, and hypotheses are scored against those. One is full
    aggregation, more are partial aggregation."""

    aggregates: int = 1

    def __post_init__(self) -> None:
        check_whole("aggregates", self.aggregates, least=1)

    def check(self, utility: Utility) -> None:
        """It must know how to average references."""
        if not isinstance(utility, AggregatingUtility):
            raise _refused(
                self, utility, "cannot average references; choose chrf, chrf+, chrf++, comet, learned or embedding"
            )

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility over aggregates."""
        assert isinstance(utility, AggregatingUtility)
        return GroupUtility(utility, utility.start_aggregates)

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """Aggregates of draws."""
        return Grouped(sampler, lambda record, draws: aggregated(draws, self.aggregates))


@dataclass(frozen=True)
class AggregateToFine(_Unchanged):
    """Aggregation, then the race: only the `fine_top` best hypotheses by `aggregates` are compared with every
    pseudo-reference (aggregate-to-fine, Vamvas & Sennrich 2024). Strings are encoded once for both."""

    fine_top: int = 20
    aggregates: int = 1
    prunes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("fine_top", self.fine_top, least=1)
        check_whole("aggregates", self.aggregates, least=1)

    def check(self, utility: Utility) -> None:
        """As for aggregation."""
        AggregateReferences(self.aggregates).check(utility)

    def shortlister(self, utility: Utility, schedule: Schedule, seed: int, nbest: int) -> Shortlister | None:
        """The best by aggregates."""
        coarse = AggregateReferences(self.aggregates)
        view = coarse.utility(utility, seed)
        return ByRace(
            view, self.fine_top, None, schedule, seed, nbest, Entry(), lambda draws: coarse.sampler(draws, seed)
        )


@dataclass(frozen=True)
class CentroidReferences(_Unchanged):
    """Centroid-based MBR (Deguchi et al. 2024): the embeddings of the pseudo-references are clustered by k-means, and
    hypotheses are scored against the centroids. All centroids count the same, as in the paper, or with `weighted` each
    by the pseudo-references in its cluster."""

    centroids: int = 64
    weighted: bool = False

    def __post_init__(self) -> None:
        check_whole("centroids", self.centroids, least=1)

    def check(self, utility: Utility) -> None:
        """It must have embeddings."""
        if not isinstance(utility, CentroidUtility):
            raise _refused(self, utility, "has no embeddings to cluster; choose comet, learned or embedding")

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility over centroids."""
        assert isinstance(utility, CentroidUtility)
        return GroupUtility(utility, utility.start_centroids)

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """Centroids of draws."""
        how: dict[str, Any] = {"equal": not self.weighted, "seed": seed}
        return Grouped(sampler, lambda record, draws: clustered(draws, self.centroids, record=record, **how))


@dataclass(frozen=True)
class LowRank(_Unchanged):
    """Probabilistic MBR (Trabelsi et al. 2024): a random `fraction` of the pairs is scored, the others are completed
    by a matrix of a `rank`."""

    rank: int = 8
    fraction: float = 0.125

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, least=1)
        check_number("fraction", self.fraction, least=0, most=1)
        if self.fraction == 0:
            raise UserError("fraction 0: must be above 0")

    def check(self, utility: Utility) -> None:
        """Its scores may not depend on what else is asked for."""
        if isinstance(utility, SelfScaledUtility) and utility.scales_by_first_table:
            raise _refused(
                self, utility, "is scaled by whole tables, of which only some pairs are scored; fix its scale"
            )

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility, a part of whose tables is completed."""
        return Completed(utility, self.rank, self.fraction, seed)

    def calls(self, step: Step) -> Step:
        """The fraction of what the race counted."""
        return replace(
            step,
            utility_calls=pairs_to_score(step.utility_calls, self.fraction),
            pairs_scored=pairs_to_score(step.pairs_scored, self.fraction),
        )


AnyMethod: TypeAlias = AggregateReferences | AggregateToFine | CentroidReferences | LowRank
METHODS: dict[str, type[AnyMethod]] = {
    "aggregate": AggregateReferences,
    "aggregate-to-fine": AggregateToFine,
    "centroid": CentroidReferences,
    "low-rank": LowRank,
}
RACE = "race"  # the name of no method


def method_of(method: Method | str | None) -> Method | None:
    """A method by its name with its defaults, or as it is; None is the race itself."""
    if method is None or method == RACE:
        return None
    if isinstance(method, str):
        if method not in METHODS:
            raise UserError(f"method {method!r}: unknown; choose from {', '.join([RACE, *METHODS])}")
        return METHODS[method]()
    if isinstance(method, type) or not hasattr(method, "shortlister"):
        raise UserError(f"method {method!r}: give a name such as 'aggregate', or an object such as mbrace.LowRank()")
    return method


def name_of(method: object) -> str:
    """What options call a method."""
    return next((name for name, kind in METHODS.items() if isinstance(method, kind)), type(method).__name__)


def describe(method: Method | None) -> str | None:
    """A method and its numbers, for a run's settings."""
    if method is None:
        return None
    numbers = (
        {each.name: getattr(method, each.name) for each in fields(method)} if isinstance(method, AnyMethod) else {}
    )
    return " ".join([name_of(method), *(f"{name}={value}" for name, value in numbers.items())])


def pruning_with(method: Method | None, prune: PruningFunction | None) -> PruningFunction | None:
    """The pruning function of a race with a method: none where the method has no use for one. The default one may stand
    for none; any other is refused."""
    if method is None or method.prunes:
        return prune
    if prune is not None and prune != Confidence():
        raise UserError(f"prune {prune!r}: only valid without method {name_of(method)}, which prunes none; give None")
    return None


def check_method(method: Method | None, *, nbest: int, **others: Any) -> None:
    """Refuse options that do not go with a method: `pool`, `exclude_self`, `select`, `keep_utilities`."""
    if method is None:
        return
    name = name_of(method)
    if others.get("pool"):
        raise UserError(f"pool: only valid without method {name}, for which all hypotheses are there from the start")
    if method.prunes:
        if isinstance(method, AggregateToFine) and method.fine_top < nbest:
            raise UserError(f"fine_top {method.fine_top}: must be at least nbest ({nbest})")
        return
    if others.get("exclude_self"):
        raise UserError(f"exclude_self: only valid without method {name}, which scores no single pseudo-references")
    if others.get("select", "best") != "best":
        raise UserError(f"select {others['select']!r}: only valid without method {name}, which has no full scores")
    if others.get("keep_utilities"):
        raise UserError(f"utilities: cannot be saved with method {name}, which does not score every pair")


def check_source(method: Method | None, record: Record, schedule: Schedule) -> None:
    """Refuse a source of pseudo-references that cannot say what "all" is."""
    if method is not None and not method.prunes and schedule == "all" and is_function(record.pseudo_references):
        raise record.error(
            f'schedule "all": method {name_of(method)} takes all pseudo-references at once, and a function has no last '
            "one; give the sizes"
        )


def shared_encodings(method: Method, utility: Utility) -> Utility:
    """The utility; where a method asks it twice about the same strings, one that encodes each once."""
    return utility.remembering() if method.prunes and isinstance(utility, EncodingUtility) else utility


def counted(method: Method, each: Shortlist, answer: Decoded, draws: SharedDraws) -> Decoded:
    """The answer of a race with a method, with what was really drawn, encoded and scored."""
    if not answer.steps or method.prunes:
        return answer
    drawn = draws.drawn(each.record)
    raced = each.coarse_strings or {each.record.hypotheses[index] for index in each.indices}
    steps = tuple(replace(method.calls(step), pseudo_references=len(drawn)) for step in answer.steps)
    return replace(
        answer,
        utility_calls=sum(step.utility_calls for step in steps),
        pairs_scored=sum(step.pairs_scored for step in steps),
        pseudo_references=len(drawn),
        strings=len(set(raced).union(drawn)),
        steps=steps,
    )


def _refused(method: object, utility: Utility, why: str) -> UserError:
    return UserError(f"method {name_of(method)}: utility {utility.name} {why}, or another method")
