"""Sources in, records with lazy hypotheses out: what `mbrace translate` races over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

from mbrace.errors import RecordError, UserError
from mbrace.io.candidates import Item
from mbrace.jobs.generate import chunks
from mbrace.records import Location, Record


class Hypothesiser:
    """Makes the hypotheses of sources, `together` at a time, when the first of them is looked at.

    Sources whose answers an earlier run wrote are never looked at, so that resuming costs no beam search for them.
    """

    def __init__(self, model: Any, *, beam: int, alpha: float = 1.0, together: int = 64) -> None:
        self._model, self._beam, self._alpha, self._together = model, beam, alpha, together
        self.seconds = 0.0  # spent on hypotheses so far

    def records(self, sources: Iterable[str], *, name: str = "") -> Iterator[Record]:
        """One record a source, without pseudo-references; ids are line numbers from 1."""
        lines = enumerate(sources, 1)
        named = (Record((), id=n, source=source, location=Location(name or "<stdin>", n)) for n, source in lines)
        return (item for item in self.items(named) if isinstance(item, Record))

    def items(self, items: Iterable[Item]) -> Iterator[Item]:
        """Records with their hypotheses; what is bad stays as it is."""
        for chunk in chunks(items, self._together):
            made = iter(with_hypotheses(self, [item for item in chunk if isinstance(item, Record)]))
            for item in chunk:
                yield next(made) if isinstance(item, Record) else item

    def make(self, records: Sequence[Record]) -> list[Sequence[str]]:
        """Hypotheses of each record's source."""
        started = time.perf_counter()
        sources = [record.source or "" for record in records]
        found = [beams.texts for beams in self._model.beam(sources, k=self._beam, alpha=self._alpha)]
        self.seconds += time.perf_counter() - started
        return found


class ServerHypothesiser(Hypothesiser):
    """Hypotheses from a server: samples of a stream of their own, since servers have no beam search."""

    def __init__(self, server: Any, *, count: int, together: int = 64) -> None:
        super().__init__(server, beam=count, together=together)

    def make(self, records: Sequence[Record]) -> list[Sequence[str]]:
        """Hypotheses of each record's source."""
        started = time.perf_counter()
        sources, ids = [record.source or "" for record in records], [record.id for record in records]
        found = self._model.candidates(sources, self._beam, ids=ids, stream="hypothesis")
        self.seconds += time.perf_counter() - started
        return [draws.texts for draws in found]


def with_hypotheses(maker: Hypothesiser, records: Sequence[Record]) -> list[Record]:
    """The records with hypotheses that are made, for all of them together, when the first is looked at."""
    beams = _Beams(maker, records)
    return [replace(record, hypotheses=_Hypotheses(beams, place)) for place, record in enumerate(records)]


class _Beams:
    """The hypotheses of some records, made together when first needed.

    If that fails, each record's are made alone when they are needed, so that only the one at fault goes without.
    """

    def __init__(self, maker: Hypothesiser, records: Sequence[Record]) -> None:
        self._maker, self._records = maker, records
        self._tried = False
        self._made: dict[int, Sequence[str] | Exception] = {}

    def __getitem__(self, place: int) -> Sequence[str]:
        if not self._tried:
            self._tried = True
            with contextlib.suppress(Exception):
                self._made = dict(enumerate(self._maker.make(self._records)))
        if place not in self._made:
            self._made[place] = self._alone(self._records[place])
        made = self._made[place]
        if isinstance(made, Exception):
            raise made
        return made

    def _alone(self, record: Record) -> Sequence[str] | Exception:
        try:
            return self._maker.make([record])[0]
        except UserError as error:
            return error if isinstance(error, RecordError) else record.error(str(error))
        except Exception as error:
            return error


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
