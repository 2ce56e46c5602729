"""Hypotheses that wait outside a race until a forecast says that they may win.

A race begins with a few hypotheses that say much about the others. After each time step the expected utilities of the
others are forecast from those that raced: hypotheses that share n-grams of characters tend to share their utility (a
Gaussian process, in native code). Those whose expected improvement on the leader is large enough are let in. The others
are never scored, and never encoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Forecast, distinct
from mbrace.errors import UserError, check_number
from mbrace.prune import PruningFunction, planner_of
from mbrace.records import Record

STARTERS = 24  # hypotheses that race from the start
AT_ONCE = 16  # the most that are let in after a time step
MOST = 1024  # hypotheses of a record: how alike they are is a table of all pairs
NO_PRUNING, OWN_SCHEDULE = "no pruning", "own schedule"  # what a forecast does not go with; see `clash_with`


class Outsiders:
    """The hypotheses of one race that are not in it yet. One is let in when its expected improvement on the leader is
    more than `least` standard deviations between the hypotheses that raced."""

    def __init__(self, hypotheses: Sequence[str], least: float, starters: int) -> None:
        self._hypotheses, self._least = hypotheses, least
        self._forecast = Forecast(hypotheses)
        self.starters = [hypotheses[index] for index in self._forecast.start(starters).tolist()]
        self.called: list[str] = []  # those to be let in next
        # Expected utilities of all that raced, in the order in which they entered, times 2^-exponent: squares of
        # numbers around 1 are neither too large nor too small for a double, and a power of two rounds nothing.
        self._means, self._exponent = np.empty(0), -1074

    def look(self, alive: NDArray[np.int64], means: NDArray[np.float64], nbest: int) -> None:
        """Call those who may win, by the expected utilities of those `alive` (their numbers, in the order of entry).

        Of those that were dropped, the last known one counts, moved as much as the others' have moved since.
        """
        before, largest = self._exponent, float(np.abs(means).max())
        if largest > 0:
            self._exponent = max(before, int(np.frexp(largest)[1]))
        known, means = np.ldexp(self._means, before - self._exponent), np.ldexp(means, -self._exponent)
        stayed = alive < len(known)
        moved = float(np.mean(means[stayed] - known[alive[stayed]])) if stayed.any() else 0.0
        self._means = np.concatenate([known + moved, np.zeros(max(0, int(alive[-1]) + 1 - len(known)))])
        self._means[alive] = means
        rank = -min(nbest, len(means))
        rival = float(np.partition(means, rank)[rank])
        chosen = self._forecast.next(self._means, rival, self._least, AT_ONCE)
        self.called = [self._hypotheses[index] for index in chosen.tolist()]


def outsiders_of(record: Record, given: Sequence[str], least: float, nbest: int) -> Outsiders | None:
    """The hypotheses of a record that wait outside its race; None where all race from the start."""
    if least <= 0:
        return None
    hypotheses = distinct(given)
    if len(hypotheses) > MOST:
        raise record.error(
            f"hypotheses: {len(hypotheses)} different ones; forecast works with up to {MOST}: give fewer, or forecast=0"
        )
    starters = max(STARTERS, nbest)  # as many as the answer has to list
    return Outsiders(hypotheses, least, starters) if len(hypotheses) > starters else None


def check_forecast(
    forecast: float, *, prune: PruningFunction | None, pool: bool, exclude_self: bool, method: object
) -> None:
    """Refuse a forecast that makes no sense, or together with what needs all hypotheses from the start."""
    check_number("forecast", forecast, least=0)
    if forecast == 0:
        return
    schedule = planner_of(prune) is not None
    clash = clash_with(pool, exclude_self, method is not None, no_pruning=prune is None, own_schedule=schedule)
    if clash is not None:
        reasons = {
            NO_PRUNING: "with a pruning function; standard MBR scores all hypotheses",
            OWN_SCHEDULE: f"without {prune!r}, which shares out its budget beforehand",
        }
        raise UserError(f"forecast {forecast:g}: only valid {reasons.get(clash, f'without {clash}')}")


def clash_with(pool: bool, exclude_self: bool, method: bool, *, no_pruning: bool, own_schedule: bool) -> str | None:
    """What needs all hypotheses from the start, of the options of a race: "pool", "exclude_self", "method", NO_PRUNING,
    OWN_SCHEDULE (of the pruning function); None where nothing does."""
    clashes = {"pool": pool, "exclude_self": exclude_self, "method": method}
    clashes |= {NO_PRUNING: no_pruning, OWN_SCHEDULE: own_schedule}
    return next((name for name, given in clashes.items() if given), None)
