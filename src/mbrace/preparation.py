"""Races that are prepared: by a shortlist of the hypotheses, or by a method that changes what is scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mbrace.method_names import Method, check_method, check_source, pruning_with
from mbrace.methods import counted, shared_encodings
from mbrace.prune import PruningFunction
from mbrace.race import race
from mbrace.ranking import check_quality
from mbrace.ranking import check_source as check_quality_source
from mbrace.records import Record
from mbrace.result import Decoded, Phases
from mbrace.runner import Entry
from mbrace.sampler import Sampler, SharedDraws
from mbrace.schedule import Schedule
from mbrace.shortlist import ByQuality, ByRace, Shortlister, check_shortlists, whole_list
from mbrace.utility import QualityUtility, Utility


class Preparation:
    """What `decode_corpus` was asked to do before its races, checked; `prune` is the pruning function that they use."""

    def __init__(
        self,
        utility: Utility,
        method: Method | None,
        *,
        qe: QualityUtility | None,
        qe_top: int | None,
        coarse: Utility | None,
        coarse_top: int | None,
        prune: PruningFunction | None,
        schedule: Schedule,
        seed: int,
        nbest: int,
        entry: Entry,
        select: str,
        keep_utilities: bool,
    ) -> None:
        self._method, self._qe = method, qe
        self._schedule, self._seed, self._nbest = schedule, seed, nbest
        self.prune = prune = pruning_with(method, prune)
        check_method(
            method,
            nbest=nbest,
            pool=entry.pool,
            exclude_self=entry.exclude_self,
            select=select,
            keep_utilities=keep_utilities,
        )
        if method is not None:
            method.check(utility)
        check_shortlists(
            qe=qe, qe_top=qe_top, coarse=coarse, coarse_top=coarse_top, prune=prune, nbest=nbest, pool=entry.pool
        )
        self.shortlisters: list[Shortlister] = []
        if qe is not None and qe_top is not None:
            check_quality(qe)
            self.shortlisters.append(ByQuality(qe, qe_top))
        if coarse is not None:
            self.shortlisters.append(ByRace(coarse, coarse_top, prune, schedule, seed, nbest, entry))

    def check(self, record: Record) -> None:
        """Refuse a record that lacks what the preparation needs."""
        if self._qe is not None:
            check_quality_source(record, self._qe)
        check_source(self._method, record, self._schedule)

    def race(
        self, group: Sequence[Record], utility: Utility, sampler: Sampler, phases: Phases | None, **options: Any
    ) -> list[Decoded]:
        """The races of a group of records, over the hypotheses on their shortlists."""
        method, seed = self._method, self._seed
        draws = SharedDraws(sampler, group)
        source: Sampler = draws
        shortlisters = list(self.shortlisters)
        if method is not None:
            utility = shared_encodings(method, utility)
            if (own := method.shortlister(utility, self._schedule, seed, self._nbest)) is not None:
                shortlisters.append(own)
            utility, source = method.utility(utility, seed), method.sampler(draws, seed)
        lists = [whole_list(record) for record in group]
        for shorten in shortlisters:
            lists = shorten(lists, draws, phases)
        starting = [each.indices for each in lists]
        answers = race(group, utility, sampler=source, starting=starting, phases=phases, **options)
        found = [each.count(answer, draws) for each, answer in zip(lists, answers, strict=True)]
        return found if method is None else [counted(method, *each, draws) for each in zip(lists, found, strict=True)]
