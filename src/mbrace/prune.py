"""Pruning functions: who stays in the race (section 3 of the paper).

A pruning function is anything callable that gets `Standings` and returns a mask, True for the hypotheses to keep:

    def above_average(standings):
        return standings.means >= standings.means.mean()
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError


@dataclass(frozen=True)
class Standings:
    """The race of one sentence at one time step, as a pruning function sees it."""

    utilities: NDArray[np.float32]  # (alive hypotheses, distinct pseudo-references)
    counts: NDArray[np.int64]  # (distinct,) how often each pseudo-reference was drawn
    weights: NDArray[np.float64]  # (distinct,) its share in the expectation; they sum to 1
    means: NDArray[np.float64]  # (alive,) expected utility U(y, R_t)
    nbest: int  # how many hypotheses the race is for
    seed: int  # 64 bits, from (seed, record id, time step) alone

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers for this record and time step."""
        return np.random.Generator(np.random.PCG64(self.seed))

    def ranking(self) -> NDArray[np.int64]:
        """Alive hypotheses from best to worst; equal ones in their order."""
        return np.argsort(-self.means, kind="stable")


PruningFunction: TypeAlias = Callable[[Standings], NDArray[np.bool_]]


@dataclass(frozen=True)
class Confidence:
    """prune_alpha, Algorithm 2: drop a hypothesis whose chance to beat the leader, by bootstrap, is at most 1 - alpha.

    In a race for the n best the rival is the n-th best, so that those n stay.
    """

    alpha: float = 0.99
    bootstraps: int = 500

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UserError(f"alpha {self.alpha}: must be between 0 and 1")
        if self.bootstraps < 1:
            raise UserError(f"bootstraps {self.bootstraps}: must be 1 or more")

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        """Lines 7 to 12 of Algorithm 2."""
        return self.keep(self.win_rates(standings))

    def keep(self, win_rates: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Line 9: keep y if w > 1 - alpha. In floating point 1 - 0.9 is a little less than a win rate of 50 / 500."""
        return win_rates > 1 - self.alpha + 1e-9

    def win_rates(self, standings: Standings) -> NDArray[np.float64]:
        """(alive,): the share of resamples in which U(y, R^i) >= U(rival, R^i), Equation 5."""
        alive = len(standings.means)
        rival = standings.ranking()[min(standings.nbest, alive) - 1]
        differences = leader_differences(standings, int(rival))
        resamples = self.resamples(standings)
        wins: NDArray[np.int64] = np.count_nonzero(differences @ resamples.T >= 0, axis=1)
        return wins / self.bootstraps

    def resamples(self, standings: Standings) -> NDArray[np.float64]:
        """(bootstraps, distinct): how often each distinct pseudo-reference is in each resample of R_t."""
        from mbrace._native import resample_counts

        owners = np.repeat(np.arange(len(standings.counts)), standings.counts)
        return resample_counts(standings.seed, owners, len(standings.counts), self.bootstraps)


def leader_differences(standings: Standings, rival: int) -> NDArray[np.float64]:
    """(alive, distinct): utilities less the rival's, weighted, on a grid on which sums over a resample are exact.

    Exact sums do not depend on the order of addition, so neither BLAS nor its threads can change a decision, and a
    hypothesis equal to the rival ties exactly. The grid has 52 bits for the largest possible sum.
    """
    utilities = standings.utilities.astype(np.float64)
    differences: NDArray[np.float64] = utilities - utilities[rival]
    per_draw = standings.weights / standings.counts
    if np.ptp(per_draw) > 1e-12 * per_draw.max():  # model-based weights; else every draw weighs the same
        differences *= per_draw / per_draw.max()
    largest = float(np.abs(differences).max(initial=0.0)) * float(standings.counts.sum())
    if largest == 0:
        return differences
    grid = math.ldexp(1.0, math.frexp(largest)[1] - 52)
    np.rint(differences / grid, out=differences)
    differences *= grid
    return differences


@dataclass(frozen=True)
class Bottom:
    """prune_beta, the paper's baseline: drop the bottom-beta proportion by expected utility, keep at least one."""

    beta: float

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise UserError(f"beta {self.beta}: must be between 0 and 1")

    def __call__(self, standings: Standings) -> NDArray[np.bool_]:
        alive = len(standings.means)
        dropped = math.floor(self.beta * alive + 1e-9)  # 0.3 * 10 is a little less than 3
        keep = np.zeros(alive, dtype=np.bool_)
        keep[standings.ranking()[: max(1, alive - dropped)]] = True
        return keep
