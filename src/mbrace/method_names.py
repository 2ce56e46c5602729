"""Methods by the names that options have for them, and what goes with a method. The classes are in `mbrace.methods`,
which is imported when a method is asked for: a race without one starts sooner."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from mbrace.decoded import Step
from mbrace.errors import UserError
from mbrace.prune import Confidence, PruningFunction
from mbrace.records import Record
from mbrace.remembered import is_function
from mbrace.sampler import Sampler
from mbrace.schedule import Schedule
from mbrace.utility import Utility

if TYPE_CHECKING:
    from mbrace.shortlist import Shortlister

RACE = "race"  # the name of no method
MODULE = "mbrace.methods"
METHODS = {  # the class of each
    "aggregate": "AggregateReferences",
    "aggregate-to-fine": "AggregateToFine",
    "centroid": "CentroidReferences",
    "low-rank": "LowRank",
}


class Method(Protocol):
    """What a race scores in place of every hypothesis against every pseudo-reference."""

    @property
    def prunes(self) -> bool:
        """Whether a pruning function goes with it."""

    def check(self, utility: Utility) -> None:
        """Refuse a utility that cannot do it."""
        ...

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility of the race."""
        ...

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """The source of its pseudo-references."""
        ...

    def shortlister(self, utility: Utility, schedule: Schedule, seed: int, nbest: int) -> Shortlister | None:
        """What shortens the list of hypotheses before the race."""
        ...

    def calls(self, step: Step) -> Step:
        """What a step of the race cost, of what the race counted."""
        ...


def method_class(name: str) -> Any:
    """The class of a method."""
    return getattr(import_module(MODULE), METHODS[name])


def method_of(method: Method | str | None) -> Method | None:
    """A method by its name with its defaults, or as it is; None is the race itself."""
    if method is None or method == RACE:
        return None
    if isinstance(method, str):
        if method not in METHODS:
            raise UserError(f"method {method!r}: unknown; choose from {', '.join([RACE, *METHODS])}")
        made: Method = method_class(method)()
        return made
    if isinstance(method, type) or not hasattr(method, "shortlister"):
        raise UserError(f"method {method!r}: give a name such as 'aggregate', or an object such as mbrace.LowRank()")
    return method


def name_of(method: object) -> str:
    """What options call a method."""
    return next((name for name in METHODS if isinstance(method, method_class(name))), type(method).__name__)


def describe(method: Method | None) -> str | None:
    """A method and its numbers, for a run's settings."""
    if method is None:
        return None
    ours: Any = method if name_of(method) in METHODS else None
    numbers = {} if ours is None else {each.name: getattr(ours, each.name) for each in fields(ours)}
    return " ".join([name_of(method), *(f"{name}={value}" for name, value in numbers.items())])


def pruning_with(method: Method | None, prune: PruningFunction | None) -> PruningFunction | None:
    """The pruning function of a race with a method: none where the method has no use for one. The default one may stand
    for none; any other is refused."""
    if method is None or method.prunes:
        return prune
    if prune is not None and prune != Confidence():
        raise UserError(f"prune {prune!r}: only valid without method {name_of(method)}, which prunes none; give None")
    return None


def check_method(method: Method | None, *, nbest: int, **others: Any) -> None:
    """Refuse options that do not go with a method: `pool`, `exclude_self`, `select`, `keep_utilities`."""
    if method is None:
        return
    name = name_of(method)
    if others.get("pool"):
        raise UserError(f"pool: only valid without method {name}, for which all hypotheses are there from the start")
    if method.prunes:
        if isinstance(method, method_class("aggregate-to-fine")) and method.fine_top < nbest:
            raise UserError(f"fine_top {method.fine_top}: must be at least nbest ({nbest})")
        return
    if others.get("exclude_self"):
        raise UserError(f"exclude_self: only valid without method {name}, which scores no single pseudo-references")
    if others.get("select", "best") != "best":
        raise UserError(f"select {others['select']!r}: only valid without method {name}, which has no full scores")
    if others.get("keep_utilities"):
        raise UserError(f"utilities: cannot be saved with method {name}, which does not score every pair")


def check_source(method: Method | None, record: Record, schedule: Schedule) -> None:
    """Refuse a source of pseudo-references that cannot say what "all" is."""
    if method is not None and not method.prunes and schedule == "all" and is_function(record.pseudo_references):
        raise record.error(
            f'schedule "all": method {name_of(method)} takes all pseudo-references at once, and a function has no last '
            "one; give the sizes"
        )
