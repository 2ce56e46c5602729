"""Published ways to make MBR cheaper, or an n-best list diverse, that are no pruning functions: each is one file.

A method is an object with `check` and `decode`, which calls standard MBR with other pseudo-references or another
utility, or to choose from its answers. A new one is a file with such a class and a line in `METHODS`. docs/methods.md
compares them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol, cast

from mbrace.errors import Parameter, SettingError, UserError
from mbrace.records import Record
from mbrace.result import Decoded, Phases, Step
from mbrace.sampler import Draws, Listed, Sampler, Want, checked_draws, is_all, is_function, largest
from mbrace.utility import Scorer, Sentence, Utility, short_name

RACE = "race"  # stands for no method: the plain race
METHODS = {  # the class of each, which is in the module of that name
    "aggregate": "AggregateReferences",
    "centroid": "CentroidReferences",
    "low-rank": "LowRank",
    "diverse": "Diverse",
}


class Method(Protocol):
    """A decoding method that is used instead of a race."""

    scores_all: ClassVar[bool]  # every pair, so that the utilities can be saved

    def check(self, utility: Utility) -> None:
        """Refuse a utility that does not support it."""
        ...

    def decode(self, records: Sequence[Record], mbr: StandardMBR) -> list[Decoded | Exception]:
        """The answer to each record, or the error that it alone caused."""
        ...


@dataclass(frozen=True)
class StandardMBR:
    """Standard MBR with the settings of a run, for a method: `mbr(records)` gives their answers."""

    race: Callable[..., list[Decoded | Exception]]  # `mbrace.race.race`
    utility: Utility
    sampler: Sampler
    settings: Any  # a `Race` without pruning
    keep_utilities: bool
    phases: Phases

    def __call__(
        self,
        records: Sequence[Record],
        *,
        utility: Utility | None = None,
        draws: Sequence[Draws] | None = None,
        nbest: int | None = None,
        keep_utilities: bool = False,
    ) -> list[Decoded | Exception]:
        """The answers, by another `utility`, over `draws` instead of the sampler's, and with a longer list."""
        sampler, settings = self.sampler, self.settings.replace(nbest=nbest or self.settings.nbest)
        if draws is not None:
            pairs = zip(records, draws, strict=True)
            records = [replace(each, pseudo_references=some.texts, logprobs=some.logprobs) for each, some in pairs]
            sampler, settings = Listed(seed=settings.seed, shuffle=False), settings.replace(schedule="all")
        kept = keep_utilities or self.keep_utilities
        return self.race(records, utility or self.utility, settings, sampler=sampler, keep_utilities=kept)

    def draw(self, records: Sequence[Record]) -> list[Draws]:
        """All pseudo-references that the schedule allows; none for a record with one hypothesis, which needs none."""
        schedule = self.settings.schedule
        most = largest(schedule, self.utility.schedule)
        for record in records:
            if is_all(schedule) and is_function(record.pseudo_references):
                raise record.error(
                    f"{Parameter('schedule', 'all')}: this method takes all pseudo-references at once, and a function "
                    "has no last one; give the sizes"
                )
        open_ones = [record for record in records if len(set(record.hypotheses)) > 1]
        wants = [Want(index, 0, 1 << 62 if most is None else most) for index in range(len(open_ones))]
        began = time.perf_counter()
        drawn = checked_draws(self.sampler.start(open_ones).draw(wants), wants, open_ones) if wants else ()
        self.phases.draw += time.perf_counter() - began
        for draws in drawn:
            if draws.failure is not None:
                raise draws.failure
        found = iter(drawn)
        return [next(found) if len(set(record.hypotheses)) > 1 else Draws([]) for record in records]


def started_by(utility: Utility, start: Callable[[Sequence[Sentence]], Scorer]) -> Utility:
    """The utility with another `start`."""
    members = {name: getattr(utility, name) for name in ("name", "schedule", "needs_source", "pairs")}
    return cast(Utility, SimpleNamespace(**members, start=start))


def with_cost(
    answer: Decoded | Exception, record: Record, draws: Draws, *, scored: Callable[[int], int] = lambda pairs: pairs
) -> Decoded | Exception:
    """An answer with its counters set to what was really drawn, encoded and `scored`, of a number of pairs."""
    if isinstance(answer, Exception) or not answer.steps:
        return answer
    drawn = len(draws.texts)
    steps = tuple(
        Step(drawn, step.survivors, scored(step.utility_calls), scored(step.pairs_scored)) for step in answer.steps
    )
    return replace(
        answer,
        utility_calls=sum(step.utility_calls for step in steps),
        pairs_scored=sum(step.pairs_scored for step in steps),
        pseudo_references=drawn,
        strings=len({*record.hypotheses, *draws.texts}),
        steps=steps,
    )


def method_class(name: str) -> Any:
    """The class of a method, by name."""
    return getattr(import_module(f"mbrace.methods.{name.replace('-', '_')}"), METHODS[name])


def checked_method(method: object) -> Method:
    """A method given as an object."""
    if isinstance(method, type) or not hasattr(method, "decode"):
        raise SettingError("method", method, "give a name such as 'aggregate', or an object such as mbrace.LowRank()")
    return cast(Method, method)


def name_of(method: object) -> str:
    """The name of a method, as in options."""
    return next((name for name in METHODS if type(method).__name__ == METHODS[name]), type(method).__name__)


def describe(method: Method | None) -> str | None:
    """A method's name and parameters, for a run's settings."""
    if method is None:
        return None
    name, ours = name_of(method), cast(Any, method)
    parameters = [f"{each.name}={getattr(ours, each.name)}" for each in fields(ours)] if name in METHODS else []
    return " ".join([name, *parameters])


def check_saving(method: Method | None, *, parameter: str = "save_utilities") -> None:
    """Refuse a method that does not score every pair where utilities are to be saved."""
    if method is not None and not method.scores_all:
        only = f"only valid without {Parameter('method', name_of(method))}, which does not score every pair"
        raise SettingError(parameter, ..., only)


def refused(method: object, utility: Utility, why: str) -> UserError:
    """The error about a utility that a method does not work with."""
    return SettingError("method", name_of(method), f"utility {short_name(utility)} {why}, or another method")
