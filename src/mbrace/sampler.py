"""Where pseudo-references come from: lists, iterators, functions, or a live model that serves the whole window.

The race asks for "n more" only for sentences that are still open, so a source never works for a race that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from mbrace._native import covering_order
from mbrace.errors import UserError
from mbrace.randomness import generator
from mbrace.records import Record
from mbrace.remembered import RememberedSource, function_of
from mbrace.wording import counted

MOST_COVERED = 1024  # pseudo-references of a record: how alike they are is a table of all pairs


class Draws(NamedTuple):
    """Pseudo-references as drawn, repeated ones included, and their log-probabilities where the source knows them."""

    texts: Sequence[str]
    logprobs: Sequence[float] | None = None


@dataclass(frozen=True)
class Want:
    """Draws number `first` to `first + count - 1` of a sentence of the window."""

    sentence: int
    first: int
    count: int


def source_of(record: Record) -> str:
    """The source that a live source of pseudo-references draws for."""
    if record.source is None:
        raise record.error("source: missing; pseudo-references are drawn for it")
    return record.source


def refuse_one_string(sources: Iterable[str]) -> None:
    """Refuse a single string: it is an iterable of strings too, so each letter would be a source."""
    if isinstance(sources, str):
        raise UserError(f"sources: a string, {sources[:20]!r}; give a list, [source] for one")


def ids_of(sources: Sequence[str], ids: Sequence[str | int] | None) -> list[str | int]:
    """The ids of the sources: 0, 1, ... unless given."""
    refuse_one_string(sources)
    names: list[str | int] = [*range(len(sources))] if ids is None else [*ids]
    if len(names) != len(sources):
        raise UserError(f"ids: {len(names)} for {len(sources)} sources; give one for each")
    return names


class Drawer(Protocol):
    """Draws for the races of one window; dropped with it."""

    def draw(self, wants: Sequence[Want]) -> Sequence[Draws]:
        """The draws of each want; fewer than wanted when a source has no more."""
        ...


class Sampler(Protocol):
    """A live source of pseudo-references, such as a model: all open sentences of a window are drawn for in one call."""

    def start(self, records: Sequence[Record]) -> Drawer:
        """Begin a window (a model encodes its sources here, once)."""
        ...


def checked_draws(drawn: Any, wants: Sequence[Want], records: Sequence[Record]) -> Sequence[Draws]:
    """What a sampler returned: for each want of a window of records, no more draws than were asked for."""
    if not isinstance(drawn, Sequence) or len(drawn) != len(wants):
        got = f"{len(drawn)}" if isinstance(drawn, Sized) else type(drawn).__name__
        asked = f"asked for the draws of {counted(len(wants), 'sentence')}"
        raise UserError(f"sampler: {asked}, got {got}; return one Draws for each")
    for want, draws in zip(wants, drawn, strict=True):
        record = records[want.sentence]
        if not isinstance(draws, Draws):
            raise record.error(f"sampler: expected Draws, got {type(draws).__name__}")
        if len(draws.texts) > want.count:
            raise record.error(f"sampler: asked for {want.count} draws, got {len(draws.texts)}")
        if draws.logprobs is not None and len(draws.logprobs) != len(draws.texts):
            raise record.error(f"sampler: {len(draws.logprobs)} logprobs for {len(draws.texts)} draws; give as many")
    return drawn


class SharedDraws:
    """The sampler of several races over the same records, one race after another: each draw is made once.

    A race may leave records out, but takes the others as they are and in their order.
    """

    def __init__(self, sampler: Sampler, records: Sequence[Record]) -> None:
        self._sampler = sampler
        self._records = [record for record in records if len(set(record.hypotheses)) > 1]  # no others are drawn for
        self._drawer: Drawer | None = None
        self._drawn = [Draws([]) for _ in self._records]
        self._ended = [False for _ in self._records]

    def start(self, records: Sequence[Record]) -> _SharedDrawer:
        """Begin a race."""
        if self._drawer is None:
            self._drawer = self._sampler.start(self._records)
        return _SharedDrawer(self, self._positions(records))

    def drawn(self, record: Record) -> Sequence[str]:
        """The texts drawn for a record by all races so far."""
        return self._drawn[self._positions([record])[0]].texts

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws of each want, whose `sentence` is a position among the records drawn for."""
        assert self._drawer is not None
        missing = []
        for want in wants:
            have = len(self._drawn[want.sentence].texts)
            if want.first + want.count > have and not self._ended[want.sentence]:
                missing.append(Want(want.sentence, have, want.first + want.count - have))
        if missing:
            found = checked_draws(self._drawer.draw(missing), missing, self._records)
            for want, draws in zip(missing, found, strict=True):
                self._ended[want.sentence] = len(draws.texts) < want.count
                self._drawn[want.sentence] = _joined(self._drawn[want.sentence], draws) if want.first else draws
        return [_part(self._drawn[want.sentence], want) for want in wants]

    def _positions(self, records: Sequence[Record]) -> list[int]:
        """The positions of some records, in order; an equal record may be there several times."""
        mine = enumerate(self._records)
        return [next(position for position, own in mine if own is record) for record in records]


class _SharedDrawer:
    def __init__(self, shared: SharedDraws, positions: Sequence[int]) -> None:
        self._shared, self._positions = shared, positions

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        return self._shared.draw([replace(want, sentence=self._positions[want.sentence]) for want in wants])


def _joined(first: Draws, second: Draws) -> Draws:
    """Draws one after the other, with log-probabilities where both have them."""
    both = first.logprobs is not None and second.logprobs is not None
    return Draws([*first.texts, *second.texts], [*(first.logprobs or ()), *(second.logprobs or ())] if both else None)


def _part(draws: Draws, want: Want) -> Draws:
    part = slice(want.first, want.first + want.count)
    return Draws(draws.texts[part], None if draws.logprobs is None else draws.logprobs[part])


class Listed:
    """The sampler of records that bring their own pseudo-references, or use their hypotheses as such.

    Lists are shuffled with random numbers from (seed, record id): the first r_1 of a list in beam order, say, would be
    a biased sample. With `cover` each next one is then the one with which those so far have the n-grams of the whole
    list best, so that a few stand for all. Iterators and functions are taken in their own order.
    """

    def __init__(self, *, seed: int, shuffle: bool, cover: bool = False) -> None:
        self._seed = seed
        self._shuffle = shuffle
        self._cover = cover

    def start(self, records: Sequence[Record]) -> _ListedDrawer:
        return _ListedDrawer([self._source(record) for record in records])

    def _source(self, record: Record) -> _Source:
        given = record.listed()
        assert given is not None  # only a live source has none
        if isinstance(given, RememberedSource):
            return _Source(record, ask=given.reader())
        if not isinstance(given, Sequence):
            return _Source(record, ask=function_of(given))
        texts: Sequence[str] = given
        logprobs = record.logprobs
        if self._shuffle and len(texts) > 1:
            order = generator(self._seed, record.id, "shuffle").permutation(len(texts)).tolist()
            texts = [texts[position] for position in order]
            logprobs = None if logprobs is None else [logprobs[position] for position in order]
        if self._cover:
            check_cover(record)
            texts = [texts[position] for position in covering_order(texts).tolist()]
        return _Source(record, texts=texts, logprobs=logprobs)


def check_cover(record: Record) -> None:
    """Refuse a record whose pseudo-references cannot be put into an order that covers them."""
    given = record.listed()
    if not isinstance(given, Sequence):
        raise record.error("pseudo_references: cover needs a list; what is drawn one by one has an order of its own")
    if record.logprobs is not None:
        raise record.error("logprobs: cover is for draws that count the same; leave out logprobs, or cover")
    if len(given) > MOST_COVERED:
        both = record.pseudo_references is None
        listed = "hypotheses, which are the pseudo-references too" if both else "pseudo_references"
        raise record.error(f"{listed}: {len(given)}; cover works with up to {MOST_COVERED}: give fewer, or no cover")


class _Source:
    def __init__(
        self,
        record: Record,
        *,
        ask: Callable[[int], Sequence[str]] | None = None,
        texts: Sequence[str] = (),
        logprobs: Sequence[float] | None = None,
    ) -> None:
        self._record = record
        self._ask = ask
        self._texts = texts
        self._logprobs = logprobs

    def draw(self, want: Want) -> Draws:
        if self._ask is not None:
            texts = self._ask(want.count)
            if isinstance(texts, str) or not isinstance(texts, Iterable):
                got = "None" if texts is None else f"a {type(texts).__name__}"
                raise self._record.error(f"pseudo_references: expected a list of strings, got {got}")
            texts = list(texts)
            if len(texts) > want.count:
                raise self._record.error(f"pseudo_references: asked for {want.count} more, got {len(texts)}")
            return Draws(texts)
        part = slice(want.first, want.first + want.count)
        return Draws(self._texts[part], None if self._logprobs is None else self._logprobs[part])


class _ListedDrawer:
    def __init__(self, sources: Sequence[_Source]) -> None:
        self._sources = sources

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        return [self._sources[want.sentence].draw(want) for want in wants]
