"""Several searches at once: while one waits for the host, a GPU works for another."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from mbrace.models import recorded
from mbrace.models.choice import kernels_for
from mbrace.models.streams import on_own_stream

# Seconds that Python lets a thread go on before it gives another one a turn, while threads give work to a GPU, which
# waits for them. Python's usual 0.005 seconds are too long for that.
SHORT_TURN = 0.0005

Found = TypeVar("Found")
Written = TypeVar("Written")


def run_searches(
    count: int,
    search: Callable[[int], Found],
    write: Callable[[int, Found], Written],
    device: torch.device,
    at_once: int = 1,
) -> list[Written]:
    """What `write` makes of what `search` finds, for numbers from 0 to count - 1; it writes while the next one runs.

    `at_once` searches run at the same time, each on a stream of its own. One for which the GPU has too little memory
    beside the others is run again, without others.
    """
    with ThreadPoolExecutor(1) as writer:
        if min(at_once, count) < 2:
            written = [writer.submit(write, number, search(number)) for number in range(count)]
            return [each.result() for each in written]
        begun = _run_together(count, search, lambda number, found: writer.submit(write, number, found), device, at_once)
        for number, each in enumerate(begun):
            if each is None:
                recorded.empty_cache()
                begun[number] = writer.submit(write, number, search(number))
        return [each.result() for each in begun if each is not None]


def _run_together(
    count: int,
    search: Callable[[int], Found],
    write: Callable[[int, Found], Future[Written]],
    device: torch.device,
    at_once: int,
) -> list[Future[Written] | None]:
    """The same for several searches at once; None where there was too little memory."""
    try_out(device)
    here: Any = torch.cuda.current_stream(device) if device.type == "cuda" else None
    numbers, thread = itertools.count(), threading.local()

    def begin_thread() -> None:
        thread.number = next(numbers)

    def work(number: int) -> Future[Written] | None:
        with on_own_stream(device, f"search {thread.number}", after=here):
            try:
                found = search(number)
            except torch.OutOfMemoryError:
                return None
        return write(number, found)

    searchers = ThreadPoolExecutor(at_once, initializer=begin_thread)
    try:
        with _short_turns():
            found = list(searchers.map(work, range(count)))
    except Exception:
        searchers.shutdown(cancel_futures=True)
        raise
    except BaseException:  # such as Ctrl-C: whatever still runs ends later
        searchers.shutdown(wait=False, cancel_futures=True)
        raise
    searchers.shutdown()
    return found


def try_out(device: torch.device) -> None:
    """Find out now what can be used on a device, before several threads need to know."""
    kernels_for(device)
    recorded.usable(device)


@contextmanager
def _short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(SHORT_TURN, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
