"""The answer for a sentence: what was chosen and what it cost; what was scored; how the race went; seconds by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbrace._native import expected_utilities
from mbrace.prune import Confidence, PruningFunction, Standings
from mbrace.records import Record
from mbrace.utility import Scorer


class Step(NamedTuple):
    """One time step: pseudo-references drawn so far, survivors after pruning, and what the step cost."""

    pseudo_references: int
    survivors: int
    utility_calls: int
    pairs_scored: int


@dataclass(frozen=True)
class Candidate:
    """A hypothesis of an n-best list: its text, the caller's index of its first copy (None if it was drawn and let into
    the race), its expected utility."""

    text: str
    index: int | None
    utility: float | None


@dataclass(frozen=True, eq=False)
class UtilityTable:
    """What the race of one record scored. Equal strings are merged. NaN stands for a pair that was not scored because
    the hypothesis had been pruned before the pseudo-reference was drawn.

    A pair in `left_out` (row, column) was scored, but one draw of the column does not count in the row's expected
    utility, because that draw is the hypothesis itself (`exclude_self`).
    """

    id: str | int
    utility: str  # its signature
    schedule: tuple[int, ...]  # the utility's own
    hypotheses: Sequence[str]  # rows, in the caller's order, then drawn strings that became hypotheses
    pseudo_references: Sequence[str]  # columns, in the order in which they were first drawn
    utilities: NDArray[np.floating]  # (hypotheses, pseudo-references), float32 or float64
    counts: NDArray[np.int64]  # (pseudo-references,) how often each was drawn
    weights: NDArray[np.float64] | None  # (pseudo-references,) shares by probability; None: by counts
    left_out: NDArray[np.int64]  # (pairs, 2)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Row of each hypothesis."""
        return {text: row for row, text in enumerate(self.hypotheses)}

    @cached_property
    def columns(self) -> Mapping[str, int]:
        """Column of each pseudo-reference."""
        return {text: column for column, text in enumerate(self.pseudo_references)}

    def expected(self) -> NDArray[np.float64]:
        """(hypotheses,): expected utilities as the race computed them; NaN for a hypothesis that was not scored against
        every pseudo-reference."""
        found = np.full(len(self.hypotheses), np.nan)
        full = np.flatnonzero(np.isfinite(self.utilities).all(axis=1))
        if len(full) and len(self.pseudo_references):
            found[full] = expected_utilities(self.utilities[full], self._shares, exact=len(self.left_out) > 0)
        for row, column in self.left_out.tolist():
            shares = self._shares.copy()
            if self.weights is None:
                shares[column] -= 1
            elif self.counts[column] == 1:  # with weights, all copies of a string share its weight
                shares[column] = 0
            if shares.any() and np.isfinite(found[row]):
                found[row] = expected_utilities(self.utilities[row : row + 1], shares, exact=True)[0]
        return found

    @property
    def _shares(self) -> NDArray[np.float64]:
        return self.counts.astype(np.float64) if self.weights is None else self.weights


@dataclass(frozen=True)
class Decoded:
    """The answer for one sentence.

    `index` is the hypothesis' index in the caller's list, None if it was drawn and let into the race. `utility` is its
    expected utility over the pseudo-references used, None if there was only one hypothesis, which needs none.
    `utility_calls` counts as the paper does (hypotheses scored x pseudo-references, repeated ones included), plus the
    pairs of hypotheses that a diverse selection compared. `pairs_scored` counts what was computed after equal strings
    were merged, and `strings` the distinct strings that were encoded for it.

    `quality_calls` is the number of hypotheses whose quality was estimated without a reference (None: none was).

    `utilities` is the table of what the race scored (None unless `keep_utilities` was given).
    """

    id: str | int
    text: str
    index: int | None
    utility: float | None
    utility_calls: int
    pairs_scored: int
    pseudo_references: int
    steps: tuple[Step, ...]
    nbest: tuple[Candidate, ...]
    strings: int = 0
    quality_calls: int | None = None
    utilities: UtilityTable | None = field(default=None, compare=False, repr=False)


@dataclass
class Phases:
    """Seconds spent drawing pseudo-references, encoding strings, scoring pairs, pruning, estimating quality and
    forecasting who may win. The seconds of races on several threads are divided by the number of threads."""

    draw: float = 0.0
    encode: float = 0.0
    score: float = 0.0
    prune: float = 0.0
    quality: float = 0.0
    forecast: float = 0.0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of a block to a phase."""
        began = time.perf_counter()
        yield
        setattr(self, phase, getattr(self, phase) + time.perf_counter() - began)

    @contextmanager
    def scoring(self, scorer: Scorer) -> Iterator[None]:
        """Add the seconds of a block to scoring, and those that the scorer spends on single strings to encoding."""
        encoded = scorer.encode_seconds
        with self.timed("score"):
            yield
        encoding = scorer.encode_seconds - encoded
        self.encode += encoding
        self.score -= encoding

    def add(self, other: Phases, share: float) -> None:
        """Add `share` times the seconds of `other`."""
        for phase in fields(self):
            setattr(self, phase.name, getattr(self, phase.name) + share * getattr(other, phase.name))


@dataclass(frozen=True)
class RecordedStep:
    """One time step; arrays are (alive,), in the order of the distinct hypotheses."""

    pseudo_references: int  # drawn so far
    alive: NDArray[np.int64]  # indices of those that raced among the distinct hypotheses
    indexes: NDArray[np.int64]  # in the caller's list; -1 for a drawn string
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
