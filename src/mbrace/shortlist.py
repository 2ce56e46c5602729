"""Which hypotheses race, chosen before the race: the best by estimated quality, or those that a race with a cheaper
utility over the same pseudo-references leaves (coarse-to-fine MBR, Eikema & Aziz 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mbrace.errors import UserError, check_whole
from mbrace.prune import Confidence, PruningFunction, planner_of
from mbrace.race import race
from mbrace.ranking import first_copies, rank
from mbrace.records import Record
from mbrace.result import Decoded, Phases
from mbrace.runner import Entry
from mbrace.sampler import Sampler, SharedDraws
from mbrace.schedule import Schedule
from mbrace.utility import QualityUtility, Utility


@dataclass(frozen=True)
class Shortlist:
    """The hypotheses of a record that will race, and what choosing them has cost so far."""

    record: Record
    indices: Sequence[int]  # of first copies, ascending
    quality_calls: int | None = None
    coarse_calls: int | None = None
    coarse_strings: frozenset[str] = frozenset()  # hypotheses that the coarse utility compared

    def count(self, answer: Decoded, draws: SharedDraws) -> Decoded:
        """The answer of the race, with the cost of the choice added; `draws` are those of all races."""
        answer = replace(answer, quality_calls=self.quality_calls, coarse_calls=self.coarse_calls)
        if not self.coarse_strings:
            return answer
        drawn = draws.drawn(self.record)
        return replace(answer, strings=len(self.coarse_strings.union(drawn)), pseudo_references=len(drawn))


class Shortlister(Protocol):
    """Shortens the lists of a window of records."""

    def __call__(
        self, lists: Sequence[Shortlist], draws: SharedDraws, phases: Phases | None = None
    ) -> list[Shortlist]: ...


@dataclass(frozen=True)
class ByQuality:
    """Keeps the `top` best by estimated quality. Nothing is estimated for a record that has no more than those."""

    qe: QualityUtility
    top: int

    def __call__(self, lists: Sequence[Shortlist], draws: SharedDraws, phases: Phases | None = None) -> list[Shortlist]:
        """Estimate the quality of all records' hypotheses in one call."""
        long = [each for each in lists if len(each.indices) > self.top]
        rankings = iter(rank([_shortened(each) for each in long], self.qe, phases) if long else [])
        shorter = []
        for each in lists:
            if len(each.indices) <= self.top:
                shorter.append(replace(each, quality_calls=0))
                continue
            best = sorted(each.indices[row] for row in next(rankings).indices[: self.top].tolist())
            shorter.append(replace(each, indices=best, quality_calls=len(each.indices)))
        return shorter


@dataclass(frozen=True)
class ByRace:
    """Keeps the `top` best of a race with a cheap utility, or with None all that this race does not rule out.

    This race is like the one that follows: the same pseudo-references, schedule and pruning function (or `Confidence()`
    instead of one with a schedule of its own, whose budget is meant for the expensive utility). It goes on until at
    most `top` (or `nbest`) are left, and never stops by regret, which looks for a single winner. No pair is scored for
    a record that has no more than those.
    """

    utility: Utility
    top: int | None
    prune: PruningFunction | None
    schedule: Schedule
    seed: int
    nbest: int
    entry: Entry
    view: Callable[[Sampler], Sampler] = lambda draws: draws  # what this race sees of the draws

    def __call__(self, lists: Sequence[Shortlist], draws: SharedDraws, phases: Phases | None = None) -> list[Shortlist]:
        """Race all records in one window."""
        fewest = self.top or self.nbest
        long = [each for each in lists if len(each.indices) > fewest]
        own = Phases()
        answers = iter(self._race(long, draws, own, fewest) if long else [])
        if phases is not None:
            phases.draw += own.draw
            phases.coarse += own.encode + own.score + own.prune
        shorter = []
        for each in lists:
            if len(each.indices) <= fewest:
                shorter.append(replace(each, coarse_calls=0))
                continue
            answer = next(answers)
            left = sorted(best.index for best in answer.nbest[: self.top] if best.index is not None)
            compared = frozenset(each.record.hypotheses[index] for index in each.indices)
            shorter.append(replace(each, indices=left, coarse_calls=answer.utility_calls, coarse_strings=compared))
        return shorter

    def _race(self, lists: Sequence[Shortlist], draws: SharedDraws, phases: Phases, fewest: int) -> list[Decoded]:
        prune = self.prune if planner_of(self.prune) is None else Confidence()
        if isinstance(prune, Confidence) and prune.regret:
            prune = replace(prune, regret=0.0)
        return race(
            [each.record for each in lists],
            self.utility,
            prune=prune,
            schedule=self.schedule,
            sampler=self.view(draws),
            seed=self.seed,
            nbest=fewest,
            entry=self.entry._replace(forecast=0.0),  # hypotheses are cheap to score here
            starting=[each.indices for each in lists],
            for_survivors=True,
            phases=phases,
        )


def whole_list(record: Record) -> Shortlist:
    """All distinct hypotheses of a record."""
    return Shortlist(record, first_copies(record))


def check_shortlists(
    *,
    qe: object,
    qe_top: int | None,
    coarse: object,
    coarse_top: int | None,
    prune: object,
    nbest: int,
    pool: bool,
) -> None:
    """Refuse options of shortlists that make no sense, before any model is loaded."""
    if (qe is None) != (qe_top is None):
        raise UserError("qe and qe_top: give both, the quality utility and how many of its best hypotheses race")
    if coarse is None and coarse_top is not None:
        raise UserError("coarse_top: only valid with coarse, the utility that chooses the best")
    for name, top in (("qe_top", qe_top), ("coarse_top", coarse_top)):
        if top is not None:
            check_whole(name, top)
            if top < max(nbest, 1):
                raise UserError(f"{name} {top}: must be 1 or more, and at least nbest ({nbest})")
    if coarse is not None and coarse_top is None and prune is None:
        raise UserError("coarse: rules nothing out without pruning; give coarse_top, how many go on")
    for name, given, done in (("qe", qe, "estimated"), ("coarse", coarse, "compared")):
        if given is not None and pool:
            raise UserError(f"{name}: only valid without pool, which lets in strings that were not {done}")


def _shortened(each: Shortlist) -> Record:
    return replace(each.record, hypotheses=[each.record.hypotheses[index] for index in each.indices])
