"""What scorers and drawers may do besides, so that a race takes less time. Answers do not depend on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Resamples, Tally
from mbrace.protocols import implements
from mbrace.prune import Confidence, PruningFunction
from mbrace.sampler import Drawer
from mbrace.utility import Ask, Scorer


@runtime_checkable
class PrefetchingDrawer(Protocol):
    """A drawer that draws while others work."""

    @property
    def has_begun(self) -> bool:
        """Whether draws were begun that have not been asked for: until they are ready, there is time for other work."""


def has_begun(drawer: Drawer) -> bool:
    """Whether draws may still be being made. It does not go by the clock: what is done meanwhile is always done."""
    return implements(drawer, PrefetchingDrawer) and cast(PrefetchingDrawer, drawer).has_begun


@runtime_checkable
class EncodingScorer(Protocol):
    """A scorer that can encode hypotheses before it knows what they are compared with."""

    def encode_hypotheses(self, asks: Sequence[Ask]) -> None:
        """Encode the hypotheses of these asks, which have no references yet."""
        ...


def encoding_of(scorer: Scorer) -> EncodingScorer | None:
    """The scorer, if it can encode hypotheses ahead."""
    return cast(EncodingScorer, scorer) if implements(scorer, EncodingScorer) else None


class RacePlan(NamedTuple):
    """How races over lists of pseudo-references go: `sizes` of the list step by step, and who is dropped at each."""

    sizes: Sequence[int]
    resamples: dict[int, Resamples]  # by the number of draws; none: nobody is dropped
    nbest: int
    enough: int  # a race is over when so many are left
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
