"""A recorder of one race: who raced at each time step, how they stood, and who was dropped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mbrace.prune import Confidence, PruningFunction, Standings
from mbrace.records import Record


@dataclass(frozen=True)
class RecordedStep:
    """One time step; arrays are (alive,), in the order of the distinct hypotheses."""

    pseudo_references: int  # drawn so far
    alive: NDArray[np.int64]  # indices of those that raced among the distinct hypotheses
    indexes: NDArray[np.int64]  # in the caller's list; -1 for a string that was drawn and let in
    texts: tuple[str, ...]
    means: NDArray[np.float64]  # expected utilities
    win_rates: NDArray[np.float64] | None  # w of Equation 5; None unless the pruning function is `Confidence`
    kept: NDArray[np.bool_]
    leaders: NDArray[np.int64]  # positions of the n best
    spread: float  # between the expected utilities of all that raced
    expected_regret: float | None = None  # of answering now; None unless the race may stop by regret


class RaceRecorder:
    """Records the steps of one race, as the `watch` of `decode_corpus`; `prune` is the race's pruning function."""

    def __init__(self, prune: PruningFunction | None) -> None:
        self._rule = prune if isinstance(prune, Confidence) else None
        self.steps: list[RecordedStep] = []

    def __call__(self, record: Record, alive: NDArray[np.int64], standings: Standings, keep: NDArray[np.bool_]) -> None:
        """Record a decision."""
        rule, win_rates, regret = self._rule, None, None
        if rule is not None:
            win_rates = rule.win_rates(standings)  # from the same random numbers as the decision
            if rule.regret > 0:
                confident = win_rates * rule.bootstraps > rule.max_losing_wins
                confident[standings.leaders()] = True
                regret = rule.expected_regret(standings, confident)
        self.steps.append(
            RecordedStep(
                pseudo_references=int(standings.counts.sum()),
                alive=alive.copy(),
                indexes=standings.indexes,
                texts=tuple(standings.texts),
                means=standings.means,
                win_rates=win_rates,
                kept=keep,
                leaders=standings.leaders(),
                spread=standings.spread,
                expected_regret=regret,
            )
        )
