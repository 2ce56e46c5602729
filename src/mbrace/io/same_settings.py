"""Refuses to continue work with settings other than those it was started with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mbrace.errors import UserError
from mbrace.io.jsonl import parse_json, to_json

EARLY_NAMES = {"length_penalty": "length_alpha"}  # the names of settings in files of early versions


def refuse_other_settings(
    before: Any,
    now: Mapping[str, Any],
    *,
    file: object,
    remedy: str,
    made: str = "was made",
    data: Sequence[str] = (),
    besides: Collection[str] = (),
) -> None:
    """Refuse to continue `file`, which was made with the settings `before`, if those of `now` are others.

    Settings are compared as JSON values. Those named in `data` are digests or long lists, whose values mean nothing
    to a reader: the message gives only their names. What `before` holds `besides` settings is not compared. An option
    that one of the two lacks, because it is newer or not described where it is not in use, is the same if the other
    does not use it.
    """
    if not isinstance(before, dict):
        raise UserError(f"{file}: not written by mbrace; {remedy}")
    late_names = {early: name for name, early in EARLY_NAMES.items()}
    before = {late_names.get(name, name): value for name, value in before.items() if name not in besides}
    now = parse_json(to_json(now), file)
    others = [
        f"other data ({name})" if name in data else _difference(name, before, now)
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name) and (name in before or now[name]) and (name in now or before[name])
    ]
    if others:
        more = [f"{len(others) - 3} more"] if len(others) > 3 else []
        raise UserError(f"{file}: {made} with {' and '.join(others[:3] + more)}; {remedy}")


def _difference(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Two values of a setting in words; None is the value of an option that was not given."""
    option = name.replace("_", "-")
    made = f"{option} {before.get(name)!r}" if before.get(name) is not None else f"the default {option}"
    wanted = "the default" if now.get(name) is None else repr(now[name])
    return f"{made if name in before else f'no {option}'}, not {wanted if name in now else 'without it'}"
