"""Where pseudo-references come from, and how many: lists, iterators, functions, or a live model; and the schedule.

The race asks for "n more" only for sentences that are still open, so a source never works for a race that is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from mbrace._native import covering_order
from mbrace.errors import ServiceError, SettingError, UserError, counted
from mbrace.records import Record, generator, kind

MOST_COVERED = 1024  # pseudo-references to put in order: their similarities are a table of all pairs

# Schedules: sample sizes r_1 < r_2 < ... < r_T (section 4 of the paper)

Schedule: TypeAlias = "Iterable[int] | Literal['all'] | None"


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Sizes that double from `first` and end with `last`: doubling(8, 256) = (8, 16, 32, 64, 128, 256)."""
    if not 1 <= first <= last:
        raise UserError(f"schedule doubling({first}, {last}): needs 1 <= first <= last")
    sizes = list(itertools.takewhile(lambda size: size < last, (first << step for step in itertools.count())))
    return (*sizes, last)


def is_all(schedule: Schedule) -> bool:
    """Whether a schedule uses all pseudo-references."""
    return isinstance(schedule, str) and schedule == "all"  # comparing an array gives an array


def check_schedule(sizes: Iterable[int] | str) -> tuple[int, ...]:
    """`sizes` as a tuple, refused unless they are whole numbers that increase from at least 1."""
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        raise SettingError("schedule", sizes, 'give growing whole numbers, or "all"')
    sizes = tuple(sizes)
    if set(map(type, sizes)) != {int} and not (sizes and all(map(_is_whole, sizes))):
        raise SettingError("schedule", list(sizes), "give whole numbers, such as 16,32,64,128,256")
    if sizes[0] < 1 or sorted(set(sizes)) != list(sizes):
        raise SettingError("schedule", list(sizes), "sizes must increase and start at 1 or more")
    return tuple(map(int, sizes))


def _is_whole(size: object) -> bool:
    try:
        return not isinstance(size, (bool, str)) and int(size) == size  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return False


def steps(schedule: Schedule, default: tuple[int, ...], *, growing: bool) -> Iterator[int]:
    """The sample sizes of a race's time steps. "all" doubles without end: a race stops when its references run out.

    Without pruning the steps in between do not change the answer, so unless `growing` there is only the last one.
    """
    if schedule == "all":
        return (default[0] << step for step in itertools.count()) if growing else iter([1 << 62])
    sizes = check_schedule(default if schedule is None else schedule)
    return iter(sizes if growing else sizes[-1:])


def largest(schedule: Schedule, default: tuple[int, ...]) -> int | None:
    """The largest number of pseudo-references that a schedule draws; None if there is no limit."""
    return None if schedule == "all" else check_schedule(default if schedule is None else schedule)[-1]


# Draws


@dataclass(frozen=True)
class Receipt:
    """What draws cost: tokens in and out, requests, draws, and of those: cut at max_tokens, blank,
    without the answer that a vote looks for. `denied` draws were not paid for; `untold` answers did not say their
    tokens; `seconds` were spent waiting."""

    tokens_in: int = 0
    tokens_out: int = 0
    requests: int = 0
    draws: int = 0
    cut: int = 0
    blank: int = 0
    unmatched: int = 0
    denied: int = 0
    untold: int = 0
    seconds: float = field(default=0.0, compare=False)

    def __add__(self, other: Receipt) -> Receipt:
        return Receipt(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


class Draws(NamedTuple):
    """Pseudo-references as drawn, repeated ones included, and their log-probabilities where the source knows them.

    `unusable` draws were made and are no candidates, such as outputs that were cut: they use up draws of the schedule.
    `receipt` is what they cost, where that is counted.
    """

    texts: Sequence[str]
    logprobs: Sequence[float] | None = None
    unusable: int = 0
    failure: Exception | None = None  # the source failed: its sentence has no answer, the others continue
    receipt: Receipt | None = None


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
        texts, logprobs = draws.texts, draws.logprobs
        if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
            raise records[want.sentence].error(f"sampler: expected Draws of a list of strings, got {kind(texts)}")
        if len(texts) + draws.unusable > want.count:
            raise records[want.sentence].error(f"sampler: asked for {want.count} draws, got {len(texts)}")
        if logprobs is not None and len(logprobs) != len(texts):
            raise records[want.sentence].error(
                f"sampler: {len(logprobs)} logprobs for {len(texts)} draws; give one for each"
            )
    return drawn


# A record's own pseudo-references


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
        return FunctionDrawer(lambda wants: [_attempt(sources[want.sentence], want) for want in wants])

    def _source(self, record: Record) -> Callable[[Want], Draws]:
        """A function that answers what is wanted for one record."""
        given = record.listed()
        assert given is not None  # only a live source has none
        if not isinstance(given, Sequence):
            ask = given.reader() if isinstance(given, ReplayableSource) else partial(_ask, record, function_of(given))
            return lambda want: Draws(ask(want.count))
        # by position, whatever the labels of a pandas Series are
        draws = Draws(given, None if record.logprobs is None else list(record.logprobs))
        if self._shuffle and len(given) > 1:
            draws = _in_order(draws, generator(self._seed, record.id, "shuffle").permutation(len(given)).tolist())
        if self._cover:
            order = covering_order(draws.texts[:MOST_COVERED]).tolist()
            draws = _in_order(draws, [*order, *range(MOST_COVERED, len(given))])
        return partial(_part, draws)


def check_cover(record: Record) -> None:
    """Refuse a record whose pseudo-references cannot be put into an order that covers them."""
    if not isinstance(record.listed(), Sequence):
        raise record.error(
            "pseudo_references: cover needs a list; draws of an iterator or a function cannot be reordered"
        )


def _ask(record: Record, ask: Callable[[int], Sequence[str]], count: int) -> list[str]:
    """The next `count` draws of a function, checked; fewer if it has no more."""
    texts = ask(count)
    if isinstance(texts, str | Set | Mapping) or not isinstance(texts, Iterable):  # sets are in any order
        got = "None" if texts is None else f"a {type(texts).__name__}"
        raise record.error(f"pseudo_references: expected a list of strings, got {got}")
    texts = list(texts)
    if len(texts) > count:
        raise record.error(f"pseudo_references: asked for {count} more, got {len(texts)}")
    return texts


def _attempt(source: Callable[[Want], Draws], want: Want) -> Draws:
    """What is wanted of a record's own source; if it fails, that is the record's fault."""
    try:
        return source(want)
    except ServiceError:
        raise
    except Exception as error:
        return Draws([], failure=error)


def _in_order(draws: Draws, order: Sequence[int]) -> Draws:
    texts, logprobs = draws.texts, draws.logprobs
    return Draws(
        list(map(texts.__getitem__, order)), None if logprobs is None else list(map(logprobs.__getitem__, order))
    )


def _part(draws: Draws, want: Want) -> Draws:
    part = slice(want.first, want.first + want.count)
    return Draws(draws.texts[part], None if draws.logprobs is None else draws.logprobs[part])


def function_of(source: Iterator[str] | Callable[[int], Sequence[str]]) -> Callable[[int], Sequence[str]]:
    """A function that returns n more: the source itself, or one that takes the next n of an iterator."""
    return source if callable(source) else lambda count: list(itertools.islice(source, count))


class ReplayableSource:
    """The iterator or function of a record; it remembers what that gave and raised, so that a race can be run again
    over the same draws. It is asked only for draws that no earlier race has seen."""

    def __init__(self, record: Record, source: Iterator[str] | Callable[[int], Sequence[str]]) -> None:
        self.is_function = callable(source)
        self._ask = partial(_ask, record, function_of(source))
        self._texts: list[str] = []
        self._ended = False
        self._failure: Exception | None = None

    def reader(self) -> Callable[[int], list[str]]:
        """A new function that returns n more, beginning with the first draw."""
        position = 0

        def more(count: int) -> list[str]:
            nonlocal position
            missing = position + count - len(self._texts)
            if missing > 0 and not self._ended:
                self._draw(missing)
            found = self._texts[position : position + count]
            if len(found) < count and self._failure is not None:
                raise self._failure
            position += len(found)
            return found

        return more

    def _draw(self, count: int) -> None:
        texts = []
        try:
            texts = self._ask(count)
        except Exception as error:
            self._failure = error
        self._texts += texts
        self._ended = len(texts) < count


def replayable(record: Record) -> Record:
    """The record, so that it can be raced several times even if its pseudo-references are an iterator or a function."""
    given = record.pseudo_references
    if given is None or isinstance(given, Sequence):
        return record
    return replace(record, pseudo_references=cast(Any, ReplayableSource(record, given)))


def is_function(source: object) -> bool:
    """Whether a source of pseudo-references is a function that is asked for n more."""
    return source.is_function if isinstance(source, ReplayableSource) else callable(source)
