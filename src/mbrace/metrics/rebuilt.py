"""Utilities with a model are pickled as their arguments, and made again in the other process."""

from __future__ import annotations

from functools import partial
from typing import Any


class Rebuilt:
    """Pickled as the arguments it was made with: the hooks and GPU memory of a model cannot be pickled."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """Remember the arguments for `__reduce__`."""
        made = super().__new__(cls)
        made._made_with = arguments, options
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """The class and its arguments: an equal object is made where this one is unpickled."""
        arguments, options = self._made_with
        return partial(type(self), **options), arguments
