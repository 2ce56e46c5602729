"""Errors and warnings that a user is meant to read, checks of options, and the hint for a missing extra."""

from __future__ import annotations

import importlib
import math
import os
import sys
import warnings
from numbers import Integral, Real
from typing import Any

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class UserError(ValueError):
    """Something the user gave is wrong: the message names it and says what to do. The command line exits with 2."""


class RecordError(UserError):
    """One record is at fault: `reason` says how, `where` names the record (its file and line, or its id)."""

    def __init__(self, where: object, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.reason = reason


class ServiceError(UserError):
    """Something that a run depends on has failed, such as a server or the network. No record is at fault, so the run
    stops and no record is skipped. The command line exits with 3."""


class MbraceWarning(UserWarning):
    """Something works, but perhaps not as intended."""


def warn(message: str) -> None:
    """Give a warning. It points at the line outside mbrace that made the call."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, MbraceWarning, stacklevel=level)


LARGEST = 2**63 - 1  # the largest whole number that an option accepts
MOST_THREADS = 1024


def check_whole(name: str, value: object, *, least: int | None = None, most: int | None = None) -> None:
    """Refuse a value that is not a whole number (an int, or a NumPy integer) from `least` to `most`."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise UserError(f"{name} {value!r}: must be a whole number")
    if least is not None and value < least:
        raise UserError(f"{name} {value}: must be {least} or more")
    if most is not None and int(value) > most:
        raise UserError(f"{name} {value}: must be {most:,} or less")


def check_threads(utility: str, threads: int | None) -> None:
    """Refuse a utility's number of threads unless it is at least 1, or None for all cores."""
    if threads is not None:
        check_whole(f"{utility}: threads", threads, least=1, most=MOST_THREADS)


def check_number(name: str, value: object, *, least: float, most: float = math.inf) -> None:
    """Refuse a value that is not a finite number from `least` to `most`."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise UserError(f"{name} {value!r}: must be a number")
    number: Any = value
    if not least <= number <= most or number > sys.float_info.max:
        allowed = f"{least:g} or more, and finite" if most == math.inf else f"between {least:g} and {most:g}"
        raise UserError(f"{name} {value}: must be {allowed}")


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
