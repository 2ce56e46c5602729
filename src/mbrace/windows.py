"""Records stream through in windows: answers in order, and a record that fails costs no answer but its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias, TypeVar

from mbrace.errors import UserError
from mbrace.race import Decoded
from mbrace.records import Record

OnError: TypeAlias = Callable[[Record, Exception], None]
Run: TypeAlias = Callable[[Sequence[Record]], list[Decoded]]  # the race of a group of records

Thing = TypeVar("Thing")

HEAVY = 1 << 20  # pairs of a record for which all threads had better work together


def stream(
    records: Iterable[Record],
    run: Run,
    *,
    window: int,
    together: int,
    beside: Run | None = None,
    threads: int = 1,
    check: Callable[[Record], None],
    on_error: OnError | None = None,
) -> Iterator[Decoded]:
    """The answers to records; `window` of them are read, then answered, before the next is read.

    `run` races so many of them `together`. `beside` is the same race on one thread, where it may go on beside others:
    then groups race on `threads` threads from the moment they are read, so that none waits for another's Python.
    """
    source = _checked(records, check, on_error)
    size = min(together, window)
    failure: Exception | None = None
    with ExitStack() as stack:
        lanes: ThreadPoolExecutor | None = None
        if beside is not None and 1 < threads <= window:
            lanes = stack.enter_context(ThreadPoolExecutor(threads))
            size = min(size, window // threads)
        ended = False
        while not ended:
            started: list[tuple[Sequence[Record], Callable[[], list[Decoded]]]] = []
            held = 0
            while held < window and not ended:
                wanted = min(size, window - held)
                group, failure = take(source, wanted)
                held += len(group)
                ended = len(group) < wanted
                if not group:
                    break
                alone = ended and not started
                if lanes is not None and beside is not None and not alone and all(map(_is_light, group)):
                    started.append((group, lanes.submit(beside, group).result))
                else:
                    started.append((group, partial(run, group)))
            for records_of, answers in started:
                yield from _answers(records_of, answers, run, on_error)
    if failure is not None:
        raise failure


def _checked(records: Iterable[Record], check: Callable[[Record], None], on_error: OnError | None) -> Iterator[Record]:
    for record in records:
        try:
            check(record)
        except UserError as error:
            if on_error is None:
                raise
            on_error(record, error)
        else:
            yield record


def take(source: Iterator[Thing], count: int) -> tuple[list[Thing], Exception | None]:
    """So many of a source, or those before the end, or before reading failed and why."""
    group: list[Thing] = []
    try:
        while len(group) < count:
            group.append(next(source))
    except StopIteration:
        pass
    except Exception as error:
        return group, error
    return group, None


def _is_light(record: Record) -> bool:
    """Whether one thread does for it. What is asked for more pseudo-references is asked in the caller's thread."""
    given = record.pseudo_references
    return isinstance(given, Sequence) and len(record.hypotheses) * len(given) <= HEAVY


def _answers(
    group: Sequence[Record], answers: Callable[[], list[Decoded]], run: Run, on_error: OnError | None
) -> Iterator[Decoded]:
    try:
        results = answers()
    except Exception as error:
        if len(group) > 1 and all(_can_run_again(record) for record in group):
            yield from _one_by_one(group, run, on_error, error)
        elif len(group) == 1 and on_error is not None:
            on_error(group[0], error)
        else:
            raise
    else:
        yield from results


def _can_run_again(record: Record) -> bool:
    """Not if an iterator or a function was already asked: what it gave is gone."""
    return record.pseudo_references is None or isinstance(record.pseudo_references, Sequence)


def _one_by_one(group: Sequence[Record], run: Run, on_error: OnError | None, failure: Exception) -> Iterator[Decoded]:
    """A group failed: decode its records alone, so that only the one at fault is without an answer."""
    fault_found = False
    for record in group:
        try:
            results = run([record])
        except Exception as error:
            fault_found = True
            if on_error is None:
                raise
            on_error(record, error)
        else:
            yield from results
    if not fault_found:  # memory, most likely; the answers stand, but such a group costs time
        warnings.warn(f"{len(group)} sentences together failed ({failure!r}), one by one did not", stacklevel=2)
