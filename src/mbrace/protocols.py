"""Whether an object has what a protocol asks for."""

from __future__ import annotations

from functools import cache
from typing import Any


def implements(thing: object, protocol: Any) -> bool:
    """`isinstance(thing, protocol)` for a protocol whose members are all written in its own body.

    Up to Python 3.11 `isinstance` finds out the members of a protocol at every question, which takes longer than a
    small race.
    """
    return all(getattr(thing, name, None) is not None for name in _members(protocol))


@cache
def _members(protocol: Any) -> tuple[str, ...]:
    return tuple(name for name in vars(protocol) if not name.startswith("_"))
