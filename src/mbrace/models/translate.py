"""Sources in, records with lazy hypotheses out: what `mbrace translate` races over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from mbrace.records import Record


class Hypothesiser:
    """Makes the hypotheses of sources, `together` at a time, when the first of them is looked at.

    Sources whose answers an earlier run wrote are never looked at, so that resuming costs no beam search for them.
    """

    def __init__(self, model: Any, *, beam: int, alpha: float = 1.0, together: int = 64) -> None:
        self._model, self._beam, self._alpha, self._together = model, beam, alpha, together
        self.seconds = 0.0  # spent on hypotheses so far

    def records(self, sources: Iterable[str], *, name: str = "") -> Iterator[Record]:
        """One record a source, without pseudo-references; ids are line numbers from 1."""
        rest = iter(sources)
        number = itertools.count(1)
        while chunk := list(itertools.islice(rest, self._together)):
            beams = _Beams(self, chunk)
            for place, source in enumerate(chunk):
                line = next(number)
                yield Record(_Hypotheses(beams, place), id=line, source=source, where=f"{name or '<stdin>'}:{line}")

    def make(self, sources: Sequence[str]) -> list[Sequence[str]]:
        """Hypotheses of each source."""
        started = time.perf_counter()
        found = [beams.texts for beams in self._model.beam(sources, k=self._beam, alpha=self._alpha)]
        self.seconds += time.perf_counter() - started
        return found


class ServerHypothesiser(Hypothesiser):
    """Hypotheses from a server: samples of a stream of their own, since servers have no beam search."""

    def __init__(self, server: Any, *, count: int, together: int = 64) -> None:
        super().__init__(server, beam=count, together=together)

    def make(self, sources: Sequence[str]) -> list[Sequence[str]]:
        """Hypotheses of each source."""
        started = time.perf_counter()
        found = self._model.candidates(sources, self._beam, ids=list(sources), stream="hypothesis")
        self.seconds += time.perf_counter() - started
        return [draws.texts for draws in found]


class _Beams:
    """The hypotheses of some sources, made together when first needed."""

    def __init__(self, maker: Hypothesiser, sources: Sequence[str]) -> None:
        self._maker, self._sources = maker, sources
        self._texts: list[Sequence[str]] | None = None

    def __getitem__(self, place: int) -> Sequence[str]:
        if self._texts is None:
            self._texts = self._maker.make(self._sources)
        return self._texts[place]


class _Hypotheses(Sequence[str]):
    def __init__(self, beams: _Beams, place: int) -> None:
        self._beams, self._place = beams, place

    def __len__(self) -> int:
        return len(self._beams[self._place])

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._beams[self._place][index]
