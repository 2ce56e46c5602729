"""The one error a user is meant to read, and the hint for a missing extra."""

from __future__ import annotations

import importlib
from typing import Any


class UserError(ValueError):
    """Something the user gave is wrong: the message names it and says what to do. The command line exits with 2."""


class RecordError(UserError):
    """One record is at fault: `reason` says how, `where` names the record (its file and line, or its id)."""

    def __init__(self, where: object, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.reason = reason


class ServiceError(UserError):
    """What a run depends on has failed (a server, the network), through no fault of a record: a run stops, and nothing
    is set aside. The command line exits with 3."""


def require(module: str, *, extra: str) -> Any:
    """Import `module`, or say which extra of mbrace brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = (error.name or module).split(".")[0]  # what is missing may be what the module itself imports
        if package == "mbrace":  # our own mistake, which no extra mends
            raise
        raise UserError(
            f"{package} is not installed ({error}); install it with: pip install 'mbrace[{extra}]'"
        ) from error
