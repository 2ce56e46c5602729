"""The answer for a sentence: what was chosen, from where, and what it cost; and where the time of a run went."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mbrace.utility_table import UtilityTable


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


@dataclass(frozen=True)
class Decoded:
    """The answer for one sentence.

    `index` is the caller's of the hypothesis, None if it was drawn and let into the race. `utility` is the expected
    utility over the pseudo-references used, None if only one hypothesis could win and none was needed. `utility_calls`
    counts as the paper does (hypotheses asked about x pseudo-references, repeated ones included), and the
    pairs of hypotheses that a diverse selection compared; `pairs_scored` counts what was computed after equal strings
    were merged, `strings` the distinct strings that were encoded for it.

    What chose the hypotheses that race is counted apart (None if it was not asked for): `quality_calls` the hypotheses
    whose quality was estimated without a reference, `coarse_calls` the calls of the coarse utility, counted as
    `utility_calls` is. `strings` and `pseudo_references` then are those of both races together.

    `utilities` is what the race scored (None unless that was asked for).
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
    coarse_calls: int | None = None
    utilities: UtilityTable | None = field(default=None, compare=False, repr=False)


@dataclass
class Phases:
    """Seconds spent drawing pseudo-references, encoding strings, scoring pairs, pruning, estimating quality, on races
    of the coarse utility (without their draws), and forecasting who may win; of races side by side on several threads,
    each thread's share of the time that passed."""

    draw: float = 0.0
    encode: float = 0.0
    score: float = 0.0
    prune: float = 0.0
    quality: float = 0.0
    coarse: float = 0.0
    forecast: float = 0.0

    def add(self, other: Phases, share: float) -> None:
        """Add a share of the seconds of another."""
        for phase in fields(self):
            setattr(self, phase.name, getattr(self, phase.name) + share * getattr(other, phase.name))
