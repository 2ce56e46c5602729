"""Where pseudo-references come from: lists, iterators, functions, or a live model that serves the whole window.

The race asks for "n more" only for sentences that are still open, so a source never works for a race that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from mbrace._native import covering_order
from mbrace.errors import UserError
from mbrace.randomness import generator
from mbrace.records import Record
from mbrace.replayable import RememberedSource, function_of
from mbrace.wording import counted

MOST_COVERED = 1024  # pseudo-references to put in order: their similarities are a table of all pairs


class Draws(NamedTuple):
    """Pseudo-references as drawn, repeated ones included, and their log-probabilities where the source knows them.

    `unusable` draws were made and are no candidates, such as outputs that were cut: they use up draws of the schedule.
    """

    texts: Sequence[str]
    logprobs: Sequence[float] | None = None
    unusable: int = 0


@dataclass(frozen=True)
class Receipt:
    """What the draws of one record cost: tokens in and out, requests, draws, and of those: cut at max_tokens, blank,
    without the answer that a vote looks for. `denied` draws were not paid for; `seconds` were spent waiting."""

    tokens_in: int = 0
    tokens_out: int = 0
    requests: int = 0
    draws: int = 0
    cut: int = 0
    blank: int = 0
    unmatched: int = 0
    denied: int = 0
    seconds: float = 0.0

    def __add__(self, other: Receipt) -> Receipt:
        return Receipt(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Want:
    """A request for draws number `first` to `first + count - 1` of one sentence of the window."""

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
        """The draws for each request; fewer than requested when a source has no more."""
        ...


class FunctionDrawer(NamedTuple):
    """A drawer that is just a function."""

    draw: Callable[[Sequence[Want]], list[Draws]]


class Sampler(Protocol):
    """A live source of pseudo-references, such as a model: all open sentences of a window are drawn for in one call."""

    def start(self, records: Sequence[Record]) -> Drawer:
        """Begin a window (a model encodes its sources here, once)."""
        ...


def checked_draws(drawn: Any, wants: Sequence[Want], records: Sequence[Record]) -> Sequence[Draws]:
    """What a sampler returned, refused unless it has one `Draws` for each request, no larger than requested."""
    if not isinstance(drawn, Sequence) or len(drawn) != len(wants):
        got = f"{len(drawn)}" if isinstance(drawn, Sized) else type(drawn).__name__
        asked = f"asked for the draws of {counted(len(wants), 'sentence')}"
        raise UserError(f"sampler: {asked}, got {got}; return one Draws for each")
    for want, draws in zip(wants, drawn, strict=True):
        if not isinstance(draws, Draws):
            raise records[want.sentence].error(f"sampler: expected Draws, got {type(draws).__name__}")
        texts, logprobs, unusable = draws
        if len(texts) + unusable > want.count:
            raise records[want.sentence].error(f"sampler: asked for {want.count} draws, got {len(texts)}")
        if logprobs is not None and len(logprobs) != len(texts):
            raise records[want.sentence].error(
                f"sampler: {len(logprobs)} logprobs for {len(texts)} draws; give one for each"
            )
    return drawn


class SharedDraws:
    """A sampler that several races over the same records use one after another: each draw is made only once.

    A race may leave records out, but must take the others unchanged and in their order.
    """

    def __init__(self, sampler: Sampler, records: Sequence[Record]) -> None:
        self._sampler = sampler
        self._records = [record for record in records if len(set(record.hypotheses)) > 1]  # the others need no race
        self._drawer: Drawer | None = None
        self._drawn = [Draws([]) for _ in self._records]
        self._ended = [False for _ in self._records]

    def start(self, records: Sequence[Record]) -> FunctionDrawer:
        """Begin a race."""
        if self._drawer is None:
            self._drawer = self._sampler.start(self._records)
        positions = self._positions(records)
        return FunctionDrawer(
            lambda wants: self.draw([replace(want, sentence=positions[want.sentence]) for want in wants])
        )

    def drawn(self, record: Record) -> Sequence[str]:
        """The texts drawn for a record by all races so far."""
        return self._drawn[self._positions([record])[0]].texts

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws for each request, whose `sentence` is an index into the records that race."""
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
        """The indices of these records, which are in the same order here; there may be several equal records."""
        mine = enumerate(self._records)
        return [next(position for position, own in mine if own is record) for record in records]


class Listed:
    """The sampler of records that bring their own pseudo-references, or use their hypotheses as such.

    A list is shuffled with random numbers from (seed, record id): the first r_1 strings of an ordered list, such
    as one in beam order, would be a biased sample. With `cover` it is then put into an order in which each next string
    is the one that brings the n-grams drawn so far closest to those of the whole list, so that the first few represent
    all. Only the first 1,024 of the shuffled list are put into that order; the others follow. Iterators and functions
    are read in their own order.
    """

    def __init__(self, *, seed: int, shuffle: bool, cover: bool = False) -> None:
        self._seed = seed
        self._shuffle = shuffle
        self._cover = cover

    def start(self, records: Sequence[Record]) -> FunctionDrawer:
        sources = [self._source(record) for record in records]
        return FunctionDrawer(lambda wants: [sources[want.sentence](want) for want in wants])

    def _source(self, record: Record) -> Callable[[Want], Draws]:
        """A function that answers what is wanted for one record."""
        given = record.listed()
        assert given is not None  # only a live source has none
        if isinstance(given, RememberedSource):
            return partial(_ask, record, given.reader())
        if not isinstance(given, Sequence):
            return partial(_ask, record, function_of(given))
        draws = Draws(given, record.logprobs)
        if self._shuffle and len(given) > 1:
            draws = _in_order(draws, generator(self._seed, record.id, "shuffle").permutation(len(given)).tolist())
        if self._cover:
            order = covering_order(draws.texts[:MOST_COVERED]).tolist()
            draws = _in_order(draws, [*order, *range(MOST_COVERED, len(given))])
        return partial(_part, draws)


def check_cover(record: Record) -> None:
    """Refuse a record whose pseudo-references cannot be put into an order that covers them."""
    if not isinstance(record.listed(), Sequence):
        raise record.error("pseudo_references: cover needs a list; what is drawn one by one has an order of its own")


def _ask(record: Record, ask: Callable[[int], Sequence[str]], want: Want) -> Draws:
    """The next draws of a function that is asked for n more."""
    texts = ask(want.count)
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        got = "None" if texts is None else f"a {type(texts).__name__}"
        raise record.error(f"pseudo_references: expected a list of strings, got {got}")
    texts = list(texts)
    if len(texts) > want.count:
        raise record.error(f"pseudo_references: asked for {want.count} more, got {len(texts)}")
    return Draws(texts)


def _in_order(draws: Draws, order: Sequence[int]) -> Draws:
    texts, logprobs, _ = draws
    return Draws(
        list(map(texts.__getitem__, order)), None if logprobs is None else list(map(logprobs.__getitem__, order))
    )


def _part(draws: Draws, want: Want) -> Draws:
    part = slice(want.first, want.first + want.count)
    return Draws(draws.texts[part], None if draws.logprobs is None else draws.logprobs[part])


def _joined(first: Draws, second: Draws) -> Draws:
    """Draws one after the other, with log-probabilities where both have them."""
    both = first.logprobs is not None and second.logprobs is not None
    return Draws([*first.texts, *second.texts], [*(first.logprobs or ()), *(second.logprobs or ())] if both else None)
