"""Pruning functions: which hypotheses stay in the race (section 3 of the paper).

A pruning function is anything callable that gets `Standings` and returns a mask, True for the hypotheses to keep:

    def above_average(standings):
        return standings.means >= standings.means.mean()
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Resamples
from mbrace.errors import LARGEST, SettingError, check_number, check_whole
from mbrace.records import key

MOST_BOOTSTRAPS = 100_000  # all are in memory at once, for every draw


@dataclass(frozen=True)
class Standings:
    """The race of one sentence at one time step, as a pruning function sees it. Its arrays are read-only."""

    utilities: NDArray[np.floating]  # (alive hypotheses, distinct pseudo-references)
    counts: NDArray[np.int64]  # (distinct,) how often each pseudo-reference was drawn
    weights: NDArray[np.float64]  # (distinct,) its share in the expectation; they sum to 1
    means: NDArray[np.float64]  # (alive,) expected utility U(y, R_t)
    nbest: int  # how many hypotheses the race is for
    seed: int  # 64 bits, from (seed, record id, time step) alone
    run_seed: int = 0  # the seed of the whole run
    equal_draws: bool = True  # every draw weighs the same; False with model-based weights
    indexes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # (alive,) the caller's
    texts: Sequence[str] = ()  # (alive,) the hypotheses themselves
    spread: float = 0.0  # standard deviation of the expected utilities of all that raced, pruned ones as last seen

    def __post_init__(self) -> None:
        for values in (self.utilities, self.counts, self.weights, self.means, self.indexes):
            values.setflags(write=False)  # a pruning function decides by its mask alone

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers for this record and time step."""
        return np.random.Generator(np.random.PCG64(self.seed))

    def ranking(self) -> NDArray[np.int64]:
        """Alive hypotheses from best to worst; equal ones in their order."""
        return np.argsort(-self.means, kind="stable")

    def leaders(self) -> NDArray[np.int64]:
        """The `nbest` first of `ranking` (all alive, if there are fewer)."""
        if self.nbest == 1:  # no need to sort
            return np.array([self.means.argmax()])
        return self.ranking()[: self.nbest]


PruningFunction: TypeAlias = Callable[[Standings], NDArray[np.bool_]]


class RaceState(NamedTuple):
    """How far a race is, for a pruning function that decides how many pseudo-references are drawn next."""

    hypotheses: int  # distinct ones that it began with
    alive: int
    draws: int  # so far
    utility_calls: int  # so far
    nbest: int
    used: int = 0  # draws so far, unusable ones included
    means: NDArray[np.float64] | None = None  # (alive,) expected utilities; None before the first step


class SelfScheduled(Protocol):
    """A pruning function with a schedule of its own; the race's schedule only limits the number of draws.

    One whose attribute `plans_pools` is true also plans races whose hypotheses are drawn (`pool`); these continue until
    it wants no more draws.
    """

    def draws(self, state: RaceState) -> int:
        """How many pseudo-references the next time step draws; 0: the race is over. A UserError refuses the record."""
        ...


def planner_of(prune: object) -> SelfScheduled | None:
    """A pruning function that has a schedule of its own."""
    return cast(SelfScheduled, prune) if callable(getattr(prune, "draws", None)) else None


@dataclass(frozen=True)
class Confidence:
    """prune_alpha, Algorithm 2: drop a hypothesis whose chance to beat the leader, by bootstrap, is at most 1 - alpha.

    In a race for the n best the rival is the n-th best, so that those n stay. With `regret` the race is over as soon as
    the expected regret of answering now is at most this many standard deviations. The regret is the mean over resamples
    of the best survivor's expected utility minus the leader's (of the n best minus the n leaders', per hypothesis); the
    standard deviation is that of the expected utilities of all hypotheses that raced, so 0.02 means the same for chrF++
    and for COMET. 0 is the paper: a race continues until one is left.
    """

    alpha: float = 0.99
    bootstraps: int = 500
    regret: float = 0.0

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, least=0, most=1)
        check_whole("bootstraps", self.bootstraps, least=1, most=MOST_BOOTSTRAPS)
        check_number("regret", self.regret, least=0)

    @property
    def max_losing_wins(self) -> int:
        """A hypothesis with at most this many wins is pruned."""
        return math.floor((1 - self.alpha) * self.bootstraps + 1e-9)  # (1 - 0.9) * 500 is a little less than 50

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        """Lines 7 to 12 of Algorithm 2: keep y if w > 1 - alpha; the leaders alone if there is little to regret."""
        keep = self._wins(standings, self.max_losing_wins) > self.max_losing_wins
        keep[standings.leaders()] = True
        open_race = self.regret > 0 and keep.sum() > standings.nbest
        if open_race and self.expected_regret(standings, keep) <= self.regret * standings.spread:
            keep[:] = False
            keep[standings.leaders()] = True
        return keep

    def expected_regret(self, standings: Standings, alive: NDArray[np.bool_]) -> float:
        """The expected regret of answering with the leaders now, over those of `alive`, a mask."""
        rows = np.flatnonzero(alive)
        leaders = np.searchsorted(rows, np.sort(standings.leaders()))
        utilities = np.ascontiguousarray(standings.utilities[rows])
        weights = None if standings.equal_draws else standings.weights
        return self._resamples_of(standings).regret(utilities, standings.counts, weights, leaders.tolist())

    def win_rates(self, standings: Standings) -> NDArray[np.float64]:
        """(alive,): w, the share of resamples in which U(y, R^i) >= U(rival, R^i), Equation 5."""
        return self._wins(standings) / self.bootstraps

    def resamples(self, draws: int, run_seed: int) -> Resamples:
        """The resamples R^1 ... R^n of lines 4 to 6 for a sample of this many `draws`, as counts of draws.

        They depend on the run's seed and |R_t| alone and are drawn once for all sentences of a run. Each sentence's
        estimate stays what it is: it averages over resamples that are independent of the sentence's utilities.
        """
        return _resamples(run_seed, draws, self.bootstraps)

    def _resamples_of(self, standings: Standings) -> Resamples:
        return self.resamples(int(standings.counts.sum()), standings.run_seed)

    def _wins(self, standings: Standings, max_losing_wins: float | None = None) -> NDArray[np.int64]:
        counts = standings.counts
        return self._resamples_of(standings).wins(
            np.ascontiguousarray(standings.utilities),
            counts,
            None if standings.equal_draws else standings.weights / counts,
            int(standings.leaders()[-1]),
            max_losing_wins=max_losing_wins,
        )


def stops_by_regret(prune: PruningFunction | None) -> bool:
    """Whether races end as soon as there is little to regret."""
    return isinstance(prune, Confidence) and prune.regret > 0


_MOST_KEPT = 1 << 27  # counts of resamples, of two bytes each
_kept: OrderedDict[tuple[int, int, int], Resamples] = OrderedDict()  # those used last come last
_keeping = Lock()


def _resamples(run_seed: int, draws: int, bootstraps: int) -> Resamples:
    wanted = run_seed, draws, bootstraps
    with _keeping:
        if wanted in _kept:
            _kept.move_to_end(wanted)
            return _kept[wanted]
    made = Resamples(key(run_seed, 0, "bootstrap"), draws, bootstraps)
    with _keeping:
        _kept[wanted] = made
        while len(_kept) > 1 and sum(size * number for _, size, number in _kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return made


@dataclass(frozen=True)
class Bottom:
    """prune_beta, the paper's baseline: drop the bottom-beta proportion by expected utility, keep at least one.

    Of n hypotheses floor(n (1 - beta)) stay, as in the authors' script: the paper's text leaves the rounding open.
    """

    beta: float

    def __post_init__(self) -> None:
        check_number("beta", self.beta, least=0, most=1)

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        """Keep all but the bottom."""
        kept = math.floor(len(standings.means) * (1 - self.beta) + 1e-9)  # 10 * (1 - 0.9) is a little less than 1
        return _best(standings, max(1, kept))


@dataclass(frozen=True)
class Halving:
    """Correlated sequential halving (Baharav and Tse, 2019) under a budget of utility calls per record, which adaptive
    MBR decoding uses (AMBR: Jinnai and Ariu, 2024).

    The budget is shared out evenly over the rounds that halving needs: each draws floor(budget / (alive x rounds)) new
    pseudo-references, at least one, and keeps the better half of the hypotheses under all pseudo-references so far. A
    round that the budget does not pay for is not begun. In a race for the n best, halving ends with those n; if there
    are no more to begin with, all of the budget orders them.
    """

    budget: int

    def __post_init__(self) -> None:
        check_whole("budget", self.budget, least=1, most=LARGEST)

    def draws(self, state: RaceState) -> int:
        """t_r of Algorithm 1 of Baharav and Tse."""
        if state.hypotheses > self.budget:
            each = f"each of {state.hypotheses} different hypotheses is scored once"
            raise SettingError("budget", self.budget, f"is spent before {each}; give more, or fewer hypotheses")
        affordable = (self.budget - state.utility_calls) // state.alive
        if state.alive <= state.nbest:
            return 0 if state.draws else affordable  # nobody is left to drop: one round, which orders the list
        rounds = (math.ceil(state.hypotheses / state.nbest) - 1).bit_length()  # log2, rounded up
        return min(affordable, max(1, self.budget // (state.alive * rounds)))

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        """Keep the better half, rounded up, and at least the n best."""
        return _best(standings, max(standings.nbest, math.ceil(len(standings.means) / 2)))


def _best(standings: Standings, count: int) -> NDArray[np.bool_]:
    """A mask of the `count` best by expected utility."""
    keep = np.zeros(len(standings.means), dtype=np.bool_)
    keep[standings.ranking()[:count]] = True
    return keep
