"""Optional fast paths of scorers: whole races in native code. Answers do not depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Resamples, Tally
from mbrace.protocols import implements
from mbrace.prune import Confidence, PruningFunction
from mbrace.utility import Scorer


class RacePlan(NamedTuple):
    """How races over lists of pseudo-references go: `sizes` of the list step by step, and who is dropped at each."""

    sizes: Sequence[int]
    resamples: dict[int, Resamples]  # by the number of draws; none: nobody is dropped
    nbest: int
    enough: int  # a race is over when this many are left
    max_losing_wins: int
    max_regret: float


def plan_of(
    prune: PruningFunction | None, sizes: Sequence[int], draws: Iterable[int], nbest: int, enough: int, run_seed: int
) -> RacePlan | None:
    """How whole races, whose steps have these numbers of `draws`, go by a pruning function: None unless its decisions
    are native ones, by `Confidence` itself or none at all."""
    if prune is None:
        return RacePlan(sizes, {}, nbest, enough, 0, 0.0)
    if type(prune) is not Confidence:
        return None
    resamples = {size: prune.resamples_of(size, run_seed) for size in draws}
    return RacePlan(sizes, resamples, nbest, enough, prune.max_losing_wins, prune.regret)


class FinishedRaces(NamedTuple):
    """What races came to."""

    means: list[NDArray[np.float64]]  # of each race, expected utilities of those left
    steps: list[list[tuple[int, int, int, int]]]  # of each race: draws, survivors, calls, pairs
    pair_seconds: float
    decision_seconds: float


@runtime_checkable
class RacingScorer(Protocol):
    """A scorer that can run whole races over lists, without going back to the race after every step."""

    def race_lists(
        self, tallies: Sequence[Tally], drawn: Sequence[Sequence[str]], plan: RacePlan
    ) -> FinishedRaces | None:
        """The races of all sentences of the window; None, and nothing has changed, if it cannot run these."""
        ...


def racing_of(scorer: Scorer) -> RacingScorer | None:
    """The scorer, if it can run whole races."""
    return cast(RacingScorer, scorer) if implements(scorer, RacingScorer) else None
