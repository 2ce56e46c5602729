"""Utilities with a model, sent to another process as their arguments."""

from __future__ import annotations

from functools import partial
from typing import Any


class Rebuilt:
    """What is pickled as the arguments it was made with: hooks and the memory of a GPU, in a model, cannot travel."""

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
