"""Threads that wait for a server, and that a program which ends does not wait for."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

Value = TypeVar("Value")
_Task: TypeAlias = "tuple[Future[Any], Callable[[], Any]] | None"  # None: the thread ends


class RequestThreads:
    """Up to `count` threads that run submitted functions. (Python waits at exit for those of `concurrent.futures`.)"""

    def __init__(self, count: int) -> None:
        self._count, self._started = count, 0
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end_all, self._tasks, count)

    def submit(self, function: Callable[[], Value]) -> Future[Value]:
        """Run a function in a thread; its result will be in the future."""
        future: Future[Value] = Future()
        self._tasks.put((future, function))
        with self._lock:
            if self._started < self._count:
                self._started += 1
                name = f"mbrace-server-{self._started}"
                threading.Thread(target=_run_all, args=(self._tasks,), name=name, daemon=True).start()
        return future

    def close(self) -> None:
        """Cancel functions that have not started."""
        try:
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task[0].cancel()
        except Empty:
            pass
        self._end()


def _run_all(tasks: SimpleQueue[_Task]) -> None:
    while (task := tasks.get()) is not None:
        future, function = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        del task, future, function  # a thread that waits keeps nothing alive


def _end_all(tasks: SimpleQueue[_Task], count: int) -> None:
    for _ in range(count):
        tasks.put(None)
