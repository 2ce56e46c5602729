"""Records are answered in windows, in order, and a record that fails loses only its own answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TypeAlias, TypeVar

from mbrace.errors import Parameter, ServiceError, UserError, counted, warn
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.sampler import replayable

OnError: TypeAlias = Callable[[Record, Exception], None]
# Races a group of records: the answer to each, or the error that it alone caused.
Run: TypeAlias = Callable[[Sequence[Record]], "list[Decoded | Exception]"]
Answers: TypeAlias = Callable[[], "list[Decoded | Exception]"]  # waits for the race of a group

Item = TypeVar("Item")
Result = TypeVar("Result")

HEAVY = 1 << 20  # a record with more pairs is raced by all threads together, not by one


def stream(
    records: Iterable[Record],
    run: Run,
    *,
    window: int,
    group_size: int,
    run_single_threaded: Run | None = None,
    threads: int = 1,
    check: Callable[[Record], None],
    on_error: OnError | None = None,
) -> Iterator[Decoded]:
    """The answers to records. `window` records are read and answered before the next one is read.

    `run` races `group_size` of them at a time. `run_single_threaded` is the same race on one thread; if it is given,
    several groups race at the same time on `threads` threads, each from the moment it is read, so that no group waits
    for the Python code of another.
    """
    source = _checked(records, check, on_error)
    other_threads: AbstractContextManager[Callable[[Sequence[Record]], Answers] | None] = nullcontext()
    if run_single_threaded is not None and 1 < threads <= window:
        other_threads = _race_on_threads(run_single_threaded, threads)
    failure: Exception | None = None
    with other_threads as start:
        ended = False
        while not ended:
            started: list[tuple[Sequence[Record], Sequence[Record], Answers]] = []
            for wanted in group_sizes(window, group_size, 1 if start is None else threads):
                group, failure = take(source, wanted)
                rerunnable = [replayable(record) for record in group]
                ended = len(group) < wanted
                if not group:
                    break
                only_group = ended and not started
                if start is not None and not only_group and all(map(_is_light, group)):
                    answers = start(group)
                else:
                    answers = partial(run, rerunnable)
                started.append((group, rerunnable, answers))
                if ended:
                    break
            for as_given, as_run, answers in started:
                yield from _answers(as_given, as_run, answers, run, on_error)
    if failure is not None:
        raise failure


@contextmanager
def _race_on_threads(run: Run, threads: int) -> Iterator[Callable[[Sequence[Record]], Answers]]:
    """A function that starts the race of a group on another thread and returns its answers, which wait for the race."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        yield lambda group: pool.submit(run, group).result


def group_sizes(window: int, size: int, threads: int) -> list[int]:
    """The sizes of the groups of a window: at most `size`, and at least a group per thread."""
    size = min(size, window // threads)
    whole, left = divmod(window, size)
    return [size] * whole + ([left] if left else [])


def _checked(records: Iterable[Record], check: Callable[[Record], None], on_error: OnError | None) -> Iterator[Record]:
    for record in records:
        try:
            check(record)
        except UserError as error:
            if on_error is None or isinstance(error, ServiceError):
                raise
            on_error(record, error)
        else:
            yield record


def _is_light(record: Record) -> bool:
    """Whether one thread can race it: it is small enough, and has a list (sources are asked in the caller's thread)."""
    given = record.pseudo_references
    return isinstance(given, Sequence) and len(record.hypotheses) * len(given) <= HEAVY


def _answers(
    group: Sequence[Record],
    rerunnable: Sequence[Record],
    answers: Answers,
    run: Run,
    on_error: OnError | None,
) -> Iterator[Decoded]:
    """The answers to a group: `answers` races the whole group; if it fails, `run` races record by record."""
    results = run_group(rerunnable, lambda part: answers() if part is rerunnable else run(part))
    for record, result in zip(group, results, strict=True):
        if not isinstance(result, Exception):
            yield result
        elif on_error is None:
            raise result
        else:
            on_error(record, result)


# Groups of any items


def take(source: Iterator[Item], count: int) -> tuple[list[Item], Exception | None]:
    """The next `count` items of a source (fewer at its end), and the error if reading failed after them."""
    group: list[Item] = []
    try:
        while len(group) < count:
            group.append(next(source))
    except StopIteration:
        pass
    except Exception as error:
        return group, error
    return group, None


def in_groups(
    items: Iterable[Item], size: int, counts: Callable[[Item], bool] = lambda item: True
) -> Iterator[list[Item]]:
    """The items, `size` of those that count at a time, and the others among them. If reading fails, the items read
    before the error are given first."""
    source = iter(items)
    failure: Exception | None = None
    ended = False
    while not ended:
        group: list[Item] = []
        missing = size
        while missing and not ended:
            some, failure = take(source, missing)
            ended = len(some) < missing
            group += some
            missing -= sum(map(counts, some))
        if group:
            yield group
    if failure is not None:
        raise failure


def run_group(items: Sequence[Item], run: Callable[[Sequence[Item]], Iterable[Result]]) -> Iterator[Result | Exception]:
    """The result of `run` for each item, in order. If it fails for the group, the items that have no result yet are run
    one by one, so that only an item that fails by itself gets an exception instead of a result. A ServiceError is not
    an item's fault, so it is raised."""
    if not items:
        return
    done = 0
    try:
        for result in run(items):
            done += 1
            yield result
        return
    except ServiceError:
        raise
    except Exception as error:
        failure = error
    if len(items) == 1:
        yield failure
        return
    fault_found = False
    for item in items[done:]:
        try:
            (result,) = run([item])
        except ServiceError:
            raise
        except Exception as error:
            fault_found = True
            yield error
        else:
            yield result
    if not fault_found:  # most likely out of memory; the results are good, but took longer
        warn(
            f"{counted(len(items), 'sentence')} failed as a batch ({failure!r}), but succeeded one by one; a smaller "
            f"{Parameter('window')} may help"
        )
