"""Whether an object has what a protocol asks for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def implements(thing: object, protocol: Any) -> bool:
    """`isinstance(thing, protocol)` for a protocol whose members are all written in its own body.

    Up to Python 3.11 `isinstance` finds out the members of a protocol at every question, which takes longer than a
    small race. Here a class is asked once, and an object only for what its class lacks.
    """
    kind: Any = type(thing)
    lacks = _lacks(kind, protocol)
    return not lacks or all(getattr(thing, name, None) is not None for name in lacks)


@lru_cache(maxsize=1024)
def _lacks(kind: type, protocol: Any) -> tuple[str, ...]:
    """The members of a protocol that a class does not have."""
    members = (name for name in vars(protocol) if not name.startswith("_"))
    return tuple(name for name in members if getattr(kind, name, None) is None)
