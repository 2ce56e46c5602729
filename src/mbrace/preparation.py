"""Races with a method that changes what is scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mbrace.method_names import Method, check_method, check_source, pruning_with
from mbrace.methods import counted
from mbrace.prune import PruningFunction
from mbrace.race import race
from mbrace.records import Record
from mbrace.result import Decoded, Phases
from mbrace.runner import Entry
from mbrace.sampler import Sampler, SharedDraws
from mbrace.schedule import Schedule
from mbrace.utility import Utility


class Preparation:
    """A method and the options of its races, checked; `prune` is the pruning function that they use."""

    def __init__(
        self,
        utility: Utility,
        method: Method,
        *,
        prune: PruningFunction | None,
        schedule: Schedule,
        seed: int,
        nbest: int,
        entry: Entry,
        select: str,
        keep_utilities: bool,
    ) -> None:
        self._method, self._schedule, self._seed = method, schedule, seed
        self.prune = pruning_with(method, prune)
        check_method(
            method,
            pool=entry.pool,
            exclude_self=entry.exclude_self,
            select=select,
            keep_utilities=keep_utilities,
        )
        method.check(utility)

    def check(self, record: Record) -> None:
        """Refuse a record that lacks what the method needs."""
        check_source(self._method, record, self._schedule)

    def race(
        self, group: Sequence[Record], utility: Utility, sampler: Sampler, phases: Phases | None, **options: Any
    ) -> list[Decoded]:
        """The races of a group of records."""
        method, seed = self._method, self._seed
        draws = SharedDraws(sampler, group)
        utility, source = method.utility(utility, seed), method.sampler(draws, seed)
        answers = race(group, utility, sampler=source, phases=phases, **options)
        return [counted(method, record, answer, draws) for record, answer in zip(group, answers, strict=True)]
