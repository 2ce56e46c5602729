"""Iterators and functions as sources of pseudo-references: asked for n more, and remembered for reruns of a race."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mbrace.records import Record


def function_of(source: Iterator[str] | Callable[[int], Sequence[str]]) -> Callable[[int], Sequence[str]]:
    """A function that returns n more: the source itself, or one that takes the next n of an iterator."""
    return source if callable(source) else lambda count: list(itertools.islice(source, count))


class RememberedSource(Iterator[str]):
    """A live source that remembers what it gave and what it raised, so that a race can rerun over the same draws. The
    source is asked only for draws that no earlier race has seen."""

    def __init__(self, source: Iterator[str] | Callable[[int], Sequence[str]]) -> None:
        self.is_function = callable(source)
        self._ask = function_of(source)
        self._texts: list[str] = []
        self._ended = False
        self._failure: Exception | None = None
        self._refused: list[Any] = []  # the one thing it gave that no race can use

    def __next__(self) -> str:
        """One more draw, which is not remembered, so no race will see it."""
        for text in self._ask(1):
            return text
        raise StopIteration

    def reader(self) -> Callable[[int], Sequence[str]]:
        """A new function that returns n more, beginning with the first draw."""
        position = 0

        def more(count: int) -> Sequence[str]:
            nonlocal position
            if not self._ended and (missing := position + count - len(self._texts)) > 0:
                self._draw(missing)
            found = self._texts[position : position + count]
            if len(found) < count and self._failure is not None:
                raise self._failure
            if len(found) < count and self._refused:
                return self._refused[0]  # type: ignore[no-any-return]
            position += len(found)
            return found

        return more

    def _draw(self, count: int) -> None:
        try:
            texts = self._ask(count)
            if isinstance(texts, Iterable) and not isinstance(texts, str):
                texts = list(texts)
        except Exception as error:
            self._failure, self._ended = error, True
            return
        if not isinstance(texts, list) or len(texts) > count:
            self._refused, self._ended = [texts], True
            return
        self._texts += texts
        self._ended = len(texts) < count


def remember(record: Record) -> Record:
    """The record, with its own live source (if it has one) remembered, so that it can be raced several times."""
    given = record.pseudo_references
    if given is None or isinstance(given, Sequence):
        return record
    return replace(record, pseudo_references=RememberedSource(given))


def is_function(source: object) -> bool:
    """Whether a source of pseudo-references is a function that is asked for n more."""
    return source.is_function if isinstance(source, RememberedSource) else callable(source)
