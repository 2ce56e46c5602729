"""Work is continued only with the settings it was begun with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mbrace.errors import UserError
from mbrace.io.jsonl import parse_json, to_json

EARLY_NAMES = {"length_penalty": "length_alpha"}  # what settings were called in files of early versions


def refuse_other_settings(
    before: Any, now: Mapping[str, Any], *, file: object, remedy: str, made: str = "was made", data: Sequence[str] = ()
) -> None:
    """Refuse to continue `file`, which was made with the settings `before`, if those of `now` are others.

    Settings are compared as JSON values. Those named in `data` are digests or long lists, whose values mean nothing
    to a reader: the message gives only their names. An option that `before` lacks because it is newer is the same if it
    is not in use now.
    """
    if not isinstance(before, dict):
        raise UserError(f"{file}: not written by mbrace; {remedy}")
    before = {**before, **{name: before[early] for name, early in EARLY_NAMES.items() if early in before}}
    others = [
        f"other data ({name})" if name in data else _difference(name, before, value)
        for name, value in parse_json(to_json(now), file).items()
        if before.get(name) != value and (name in before or value)
    ]
    if others:
        more = [f"{len(others) - 3} more"] if len(others) > 3 else []
        raise UserError(f"{file}: {made} with {' and '.join(others[:3] + more)}; {remedy}")


def _difference(name: str, before: Mapping[str, Any], now: Any) -> str:
    """How a message tells two values of a setting apart; None is what an option has that is not given."""
    option = name.replace("_", "-")
    made = f"{option} {before.get(name)!r}" if before.get(name) is not None else f"the default {option}"
    return f"{made if name in before else f'no {option}'}, not {'the default' if now is None else repr(now)}"
