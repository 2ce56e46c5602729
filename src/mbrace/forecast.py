"""Forecast-based admission: hypotheses enter a race late, once a forecast says that they may win.

A race starts with a few hypotheses that predict the others well. After each time step the expected utilities of the
others are forecast from those that raced: hypotheses that share character n-grams tend to share their utility (a
Gaussian process, in native code). Those whose expected improvement on the leader is large enough are admitted. The
rest are never scored and never encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Forecast, build_forecasts, distinct, next_window
from mbrace.errors import Parameter
from mbrace.records import Record

STARTERS = 24  # hypotheses that race from the start
MOST_ADMITTED = 16  # per time step
MOST = 1024  # hypotheses of a record: how alike they are is a table of all pairs


class Waiting:
    """The hypotheses of one race that have not entered it. One is admitted when its expected improvement on the leader
    exceeds `least` standard deviations of the hypotheses that raced."""

    def __init__(
        self, hypotheses: Sequence[str], least: float, forecast: Forecast, starters: NDArray[np.int64]
    ) -> None:
        self.hypotheses, self.least, self.forecast = hypotheses, least, forecast
        self.starters = [hypotheses[index] for index in starters.tolist()]
        self.pending: list[str] = []  # admitted in the next time step
        # Expected utilities of all that raced, in the order in which they entered, times 2^-exponent: squares of
        # numbers around 1 are neither too large nor too small for a double, and a power of two rounds nothing.
        self.means, self._exponent = np.empty(0), -1074

    def learn(self, alive: NDArray[np.int64], means: NDArray[np.float64], nbest: int) -> float:
        """Note the expected utilities of those `alive` (their numbers, in the order of entry); returns the one to beat.

        Of those that were dropped, the last known one counts, moved as much as the others' have moved since.
        """
        before, largest = self._exponent, float(np.abs(means).max())
        if largest > 0:
            self._exponent = max(before, int(np.frexp(largest)[1]))
        known, means = np.ldexp(self.means, before - self._exponent), np.ldexp(means, -self._exponent)
        stayed = alive < len(known)
        moved = float(np.mean(means[stayed] - known[alive[stayed]])) if stayed.any() else 0.0
        self.means = np.concatenate([known + moved, np.zeros(max(0, int(alive[-1]) + 1 - len(known)))])
        self.means[alive] = means
        rank = -min(nbest, len(means))
        return float(np.partition(means, rank)[rank])


class View(NamedTuple):
    """A race after a time step: the hypotheses alive, and their expected utilities."""

    waiting: Waiting
    alive: NDArray[np.int64]
    means: NDArray[np.float64]


def update_forecasts(views: Sequence[View], nbest: int, threads: int) -> None:
    """Learn from a time step of several races, and admit the hypotheses that may win."""
    rivals = [view.waiting.learn(view.alive, view.means, nbest) for view in views]
    each = [view.waiting for view in views]
    chosen = next_window(
        [waiting.forecast for waiting in each],
        [waiting.means for waiting in each],
        np.array(rivals),
        np.array([waiting.least for waiting in each]),
        MOST_ADMITTED,
        threads=threads,
    )
    for waiting, indexes in zip(each, chosen, strict=True):
        waiting.pending = [waiting.hypotheses[index] for index in indexes.tolist()]


def waiting_of(records: Sequence[Record], least: float, nbest: int, threads: int) -> list[Waiting | None]:
    """The hypotheses of each record that do not race from the start; None where there are few."""
    found: list[Waiting | None] = [None] * len(records)
    starters = max(STARTERS, nbest)  # as many as the answer has to list
    waiting: dict[int, list[str]] = {}
    for number, record in enumerate(records):
        hypotheses = distinct(record.hypotheses)
        if len(hypotheses) > MOST:
            raise record.error(
                f"hypotheses: {len(hypotheses)} distinct ones; forecast works with at most {MOST}: "
                f"give fewer, or {Parameter('forecast', 0)}"
            )
        if len(hypotheses) > starters:
            waiting[number] = hypotheses
    built = build_forecasts(list(waiting.values()), starters, threads=threads)
    for (number, hypotheses), (forecast, chosen) in zip(waiting.items(), built, strict=True):
        found[number] = Waiting(hypotheses, least, forecast, chosen)
    return found
