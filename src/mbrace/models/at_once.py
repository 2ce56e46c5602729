"""Several searches at once: while one waits for the host, a GPU works for another."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from mbrace.models import recorded
from mbrace.models.choice import kernels_for
from mbrace.models.streams import on_own_stream

Found = TypeVar("Found")
Written = TypeVar("Written")


def searched(
    count: int,
    search: Callable[[int], Found],
    write: Callable[[int, Found], Written],
    device: torch.device,
    at_once: int = 1,
) -> list[Written]:
    """What `write` makes of what `search` finds, for numbers from 0 to count - 1; it writes while the next one runs.

    `at_once` searches run at the same time, each on a stream of its own. One for which the GPU has too little memory
    beside the others is run again, alone.
    """
    at_once = min(at_once, count)
    with ThreadPoolExecutor(1) as behind:
        if at_once < 2:
            written = [behind.submit(write, number, search(number)) for number in range(count)]
            return [each.result() for each in written]
        kernels_for(device)  # both are tried out here, before several threads need them
        recorded.usable(device)
        threads, own = itertools.count(), threading.local()

        def name_thread() -> None:
            own.name = f"search {next(threads)}"

        def work(number: int) -> Future[Written] | None:
            with on_own_stream(device, own.name):
                try:
                    found = search(number)
                except torch.OutOfMemoryError:
                    return None
            return behind.submit(write, number, found)

        with ThreadPoolExecutor(at_once, initializer=name_thread) as searchers:
            begun = list(searchers.map(work, range(count)))
        written = []
        for number, each in enumerate(begun):
            if each is None:
                torch.cuda.empty_cache()
                each = behind.submit(write, number, search(number))
            written.append(each)
        return [each.result() for each in written]
