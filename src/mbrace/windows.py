"""Records stream through in windows: answers in order, and a record that fails loses only its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mbrace.decoded import Decoded
from mbrace.errors import ServiceError, UserError
from mbrace.groups import run_group, take
from mbrace.records import Record
from mbrace.remembered import remember

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor
    from queue import SimpleQueue

OnError: TypeAlias = Callable[[Record, Exception], None]
Run: TypeAlias = Callable[[Sequence[Record]], list[Decoded]]  # the race of a group of records

Argument = TypeVar("Argument")
Value = TypeVar("Value")

HEAVY = 1 << 20  # pairs of a record from which all threads work on it together


def stream(
    records: Iterable[Record],
    run: Run,
    *,
    window: int,
    group_size: int,
    run_single_threaded: Run | None = None,
    threads: int = 1,
    calls: CallerCalls | None = None,
    check: Callable[[Record], None],
    on_error: OnError | None = None,
) -> Iterator[Decoded]:
    """The answers to records; `window` of them are read, then answered, before the next is read.

    `run` races `group_size` of them at a time. `run_single_threaded` is the same race on one thread, where several may
    run at once: then groups race on `threads` threads from the moment they are read, so that no group waits for the
    Python code of another. What those races hand to `calls` is called in the caller's thread.
    """
    source = _checked(records, check, on_error)
    failure: Exception | None = None
    with ExitStack() as stack:
        lanes: ThreadPoolExecutor | None = None
        if run_single_threaded is not None and 1 < threads <= window:
            from concurrent.futures import ThreadPoolExecutor

            calls = calls or CallerCalls()
            lanes = stack.enter_context(ThreadPoolExecutor(threads, initializer=calls.begin_thread))
            stack.callback(calls.close)
        ended = False
        while not ended:
            started: list[tuple[Sequence[Record], Sequence[Record], Callable[[], list[Decoded]]]] = []
            for wanted in group_sizes(window, group_size, threads if lanes else 1):
                group, failure = take(source, wanted)
                rerunnable = [remember(record) for record in group]
                ended = len(group) < wanted
                if not group:
                    break
                only_group = ended and not started
                if lanes and calls and run_single_threaded and not only_group and all(map(_is_light, group)):
                    started.append((group, rerunnable, partial(calls.wait, lanes.submit(run_single_threaded, group))))
                else:
                    started.append((group, rerunnable, partial(run, rerunnable)))
                if ended:
                    break
            for as_given, as_run, answers in started:
                yield from _answers(as_given, as_run, answers, run, on_error)
    if failure is not None:
        raise failure


def group_sizes(window: int, size: int, threads: int) -> Iterator[int]:
    """The sizes of the groups of a window, at most `size` and with several threads `window // threads`.

    Small groups come last, so that all threads are done at about the same time: the next window waits for them.
    """
    size = min(size, window // threads)
    small = [part for part in (size // 2, size // 4) if threads > 1 < part for _ in range(threads)]
    if 4 * sum(small) > window:
        small = []  # many groups would be small, and a small group takes longer per record
    whole, left = divmod(window - sum(small), size)
    return chain(repeat(size, whole), [left] if left else [], small)


class CallerCalls:
    """Functions that races on other threads hand to the caller's thread, which calls them while it waits for the races:
    what a user gave may not expect to be called from several threads."""

    def __init__(self) -> None:
        from queue import SimpleQueue

        self._waiting: SimpleQueue[tuple[Callable[[], None], Future[Any]] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.local()

    def begin_thread(self) -> None:
        """Called in every thread that is not the caller's."""
        self._thread.is_other = True

    def wrap(self, function: Callable[[Argument], Value]) -> Callable[[Argument], Value]:
        """The function, called in the caller's thread from whatever thread it is used."""

        def call(argument: Argument) -> Value:
            if not getattr(self._thread, "is_other", False):
                return function(argument)
            from concurrent.futures import Future

            answer: Future[Value] = Future()
            self._waiting.put((lambda: answer.set_result(function(argument)), answer))
            if self._closed:
                self.close()
            return answer.result()

        return call

    def wait(self, race: Future[Value]) -> Value:
        """The result of a race on another thread; meanwhile, call what is handed over."""
        race.add_done_callback(lambda _: self._waiting.put(None))
        while not race.done():
            handed = self._waiting.get()
            if handed is not None:
                make_call, answer = handed
                try:
                    make_call()
                except BaseException as error:
                    answer.set_exception(error)
        return race.result()

    def close(self) -> None:
        """Nobody waits any more: races that still want a call fail."""
        from concurrent.futures import CancelledError

        self._closed = True
        while not self._waiting.empty():
            handed = self._waiting.get()
            if handed is not None:
                handed[1].set_exception(CancelledError())


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
    """Whether one thread does for it. What is asked for more pseudo-references is asked in the caller's thread."""
    given = record.pseudo_references
    return isinstance(given, Sequence) and len(record.hypotheses) * len(given) <= HEAVY


def _answers(
    group: Sequence[Record],
    rerunnable: Sequence[Record],
    answers: Callable[[], list[Decoded]],
    run: Run,
    on_error: OnError | None,
) -> Iterator[Decoded]:
    """The answers to a group; `answers` runs it as a whole, and `run` runs its records one by one if that fails."""
    results = run_group(rerunnable, lambda part: answers() if part is rerunnable else run(part))
    for record, result in zip(group, results, strict=True):
        if not isinstance(result, Exception):
            yield result
        elif on_error is None:
            raise result
        else:
            on_error(record, result)
