"""A fast check whether an object implements a protocol."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def implements(thing: object, protocol: Any) -> bool:
    """`isinstance(thing, protocol)`, for a protocol without base protocols.

    Up to Python 3.11 every `isinstance` collects the members of the protocol again, which takes longer than a small
    race. Here each class is checked only once, and an object only for members that its class lacks.
    """
    kind: Any = type(thing)
    lacks = _lacks(kind, protocol)
    return not lacks or all(getattr(thing, name, None) is not None for name in lacks)


@lru_cache(maxsize=1024)
def _lacks(kind: type, protocol: Any) -> tuple[str, ...]:
    """The members of a protocol that a class does not have."""
    members = (name for name in vars(protocol) if not name.startswith("_"))
    return tuple(name for name in members if getattr(kind, name, None) is None)
