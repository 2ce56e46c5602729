"""Methods by name, and which options go with a method. Their classes are in `mbrace.methods`, which is imported only
when a method is used, so that a race without one starts sooner."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any, Protocol, cast

from mbrace.errors import UserError
from mbrace.prune import Confidence, PruningFunction
from mbrace.records import Record
from mbrace.replayable import is_function
from mbrace.result import Step
from mbrace.sampler import Sampler
from mbrace.schedule import Schedule
from mbrace.utility import Utility

RACE = "race"  # stands for no method: the plain race
MODULE = "mbrace.methods"
METHODS = {  # the class of each
    "aggregate": "AggregateReferences",
    "centroid": "CentroidReferences",
    "low-rank": "LowRank",
}


class Method(Protocol):
    """Changes what a race scores, instead of every hypothesis against every pseudo-reference."""

    def check(self, utility: Utility) -> None:
        """Refuse a utility that does not support it."""
        ...

    def utility(self, utility: Utility, seed: int) -> Utility:
        """The utility that the race uses instead."""
        ...

    def sampler(self, sampler: Sampler, seed: int) -> Sampler:
        """The source of pseudo-references that the race uses instead."""
        ...

    def calls(self, step: Step) -> Step:
        """What a step really cost, given what the race counted."""
        ...


def method_class(name: str) -> Any:
    """The class of a method, by name."""
    return getattr(import_module(MODULE), METHODS[name])


def method_of(method: Method | str | None) -> Method | None:
    """A method given by name (with its defaults) or as an object; None is the plain race."""
    if method is None or method == RACE:
        return None
    if isinstance(method, str):
        if method not in METHODS:
            raise UserError(f"method {method!r}: unknown; choose from {', '.join([RACE, *METHODS])}")
        made: Method = method_class(method)()
        return made
    if isinstance(method, type) or not hasattr(method, "calls"):
        raise UserError(f"method {method!r}: give a name such as 'aggregate', or an object such as mbrace.LowRank()")
    return method


def name_of(method: object) -> str:
    """The name of a method, as in options."""
    return next((name for name in METHODS if isinstance(method, method_class(name))), type(method).__name__)


def describe(method: Method | None) -> str | None:
    """A method's name and parameters, for a run's settings."""
    if method is None:
        return None
    name, ours = name_of(method), cast(Any, method)
    parameters = [f"{each.name}={getattr(ours, each.name)}" for each in fields(ours)] if name in METHODS else []
    return " ".join([name, *parameters])


def pruning_with(method: Method | None, prune: PruningFunction | None) -> PruningFunction | None:
    """The pruning function of a race with a method: None, which drops the default one; any other is refused."""
    if method is None:
        return prune
    if prune is not None and prune != Confidence():
        raise UserError(f"prune {prune!r}: only valid without method {name_of(method)}, which prunes none; give None")
    return None


def check_method(
    method: Method | None,
    *,
    pool: bool = False,
    exclude_self: bool = False,
    select: str = "best",
    keep_utilities: bool = False,
) -> None:
    """Refuse options that cannot be combined with a method."""
    if method is None:
        return
    name = name_of(method)
    if pool:
        raise UserError(f"pool: only valid without method {name}, for which all hypotheses are there from the start")
    if exclude_self:
        raise UserError(f"exclude_self: only valid without method {name}, which scores no single pseudo-references")
    if select != "best":
        raise UserError(f"select {select!r}: only valid without method {name}, which has no full scores")
    if keep_utilities:
        raise UserError(f"utilities: cannot be saved with method {name}, which does not score every pair")


def check_source(method: Method | None, record: Record, schedule: Schedule) -> None:
    """Refuse a function as the source of "all" pseudo-references, for a method that needs them at once."""
    if method is not None and schedule == "all" and is_function(record.pseudo_references):
        raise record.error(
            f'schedule "all": method {name_of(method)} takes all pseudo-references at once, and a function has no last '
            "one; give the sizes"
        )
