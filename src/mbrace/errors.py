"""Errors and warnings that a user is meant to read, checks of options, and the hint for a missing extra."""

from __future__ import annotations

import importlib
import math
import os
import sys
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Parameter(NamedTuple):
    """A parameter of the library that a message names: `force=True`, or its name alone.

    The command line spells it as an option; `group` is for options of an option: `method`, `utility`, `server`.
    """

    name: str
    value: object = ...  # the name alone
    group: str = ""

    def __str__(self) -> str:
        if self.value is ...:
            return self.name
        return f'{self.name}="{self.value}"' if isinstance(self.value, str) else f"{self.name}={self.value}"


class _Message:
    """A message in parts, of which some are a `Parameter`; as text, parameters are spelled as in Python."""

    args: tuple[Any, ...]

    @property
    def parts(self) -> tuple[object, ...]:
        """The parts of the message, in order."""
        return self.args

    def spelled(self, spell: Callable[[Parameter], str]) -> str:
        """The message with its parameters spelled by `spell`, as the command line does."""
        return "".join(spell(part) if isinstance(part, Parameter) else str(part) for part in self.parts)

    def __str__(self) -> str:
        return self.spelled(str)


class UserError(_Message, ValueError):
    """Something the user gave is wrong: the message names it and says what to do. The command line exits with 2."""


class SettingError(UserError):
    """One setting is at fault: `parameter` names it, `value` is what was given (`...`: nothing to show)."""

    def __init__(self, parameter: str, value: object, *reason: object, group: str = "") -> None:
        super().__init__(parameter, value, *reason)
        self.parameter, self.value, self.reason, self.group = parameter, value, reason, group

    @property
    def parts(self) -> tuple[object, ...]:
        """The setting, its value, and the reason."""
        value = "" if self.value is ... else f" {self.value!r}" if isinstance(self.value, str) else f" {self.value}"
        return (Parameter(self.parameter, group=self.group), value, ": ", *self.reason)


class RecordError(UserError):
    """One record is at fault: `reason` says how, `where` names the record (its file and line, or its id)."""

    def __init__(self, where: object, *reason: object) -> None:
        super().__init__(where, *reason)
        self.where = where

    @property
    def reason(self) -> str:
        """What is wrong with the record."""
        return "".join(map(str, self.args[1:]))

    @property
    def parts(self) -> tuple[object, ...]:
        """The record and the reason."""
        return (self.where, ": ", *self.args[1:])


class ServiceError(UserError):
    """Something that a run depends on has failed, such as a server or the network. No record is at fault, so the run
    stops and no record is skipped. The command line exits with 3."""


class MbraceWarning(_Message, UserWarning):
    """Something works, but perhaps not as intended."""


def warn(*message: object) -> None:
    """Give a warning. It points at the line outside mbrace that made the call."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(MbraceWarning(*message), stacklevel=level)


LARGEST = 2**63 - 1  # the largest whole number that an option accepts
MOST_THREADS = 1024


def check_whole(name: str, value: object, *, least: int | None = None, most: int | None = None) -> None:
    """Refuse a value that is not a whole number (an int, or a NumPy integer) from `least` to `most`."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise SettingError(name, value, "must be a whole number")
    if least is not None and value < least:
        raise SettingError(name, value, f"must be {least} or more")
    if most is not None and int(value) > most:
        raise SettingError(name, value, f"must be {most:,} or less")


def check_threads(utility: str, threads: int | None) -> None:
    """Refuse a utility's number of threads unless it is at least 1, or None for all cores."""
    if threads is not None:
        check_whole(f"{utility}: threads", threads, least=1, most=MOST_THREADS)


def check_number(name: str, value: object, *, least: float, most: float = math.inf) -> None:
    """Refuse a value that is not a finite number from `least` to `most`."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise SettingError(name, value, "must be a number")
    number: Any = value
    if not least <= number <= most or number > sys.float_info.max:
        allowed = f"{least:g} or more, and finite" if most == math.inf else f"between {least:g} and {most:g}"
        raise SettingError(name, value, f"must be {allowed}")


def require(module: str, *, extra: str) -> Any:
    """Import `module`, or say which extra of mbrace brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = (error.name or module).split(".")[0]  # the missing package may be one that the module imports
        if package == "mbrace":  # our own mistake, which no extra fixes
            raise
        raise UserError(
            f"{package} is not installed ({error}); install it with: pip install 'mbrace[{extra}]'"
        ) from error
