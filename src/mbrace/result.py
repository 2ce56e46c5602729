"""The answer for a sentence: what was chosen and what it cost; and how long each phase of a run took."""

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

    def add(self, other: Phases, share: float) -> None:
        """Add `share` times the seconds of `other`."""
        for phase in fields(self):
            setattr(self, phase.name, getattr(self, phase.name) + share * getattr(other, phase.name))
