"""SIGINT and SIGTERM end a run in order: the current window is finished and written. A second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

Thing = TypeVar("Thing")


class _Interrupted(Exception):  # noqa: N818
    pass


class Stop:
    """While it is entered, the first signal is remembered in `signal`; waiting for input is broken off, and `interrupt`
    is called, which is to end waits for a server."""

    def __init__(self, interrupt: Callable[[], None] | None = None) -> None:
        self.signal: int | None = None
        self._interrupt = interrupt
        self._reading = False
        self._old: dict[int, Any] = {}

    def read(self, source: Iterator[Thing]) -> Thing | None:
        """The next of `source`; None at its end, or once a signal came."""
        try:
            self._reading = True
            try:
                return None if self.signal is not None else next(source, None)
            finally:
                self._reading = False
        except _Interrupted:
            return None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        if self._interrupt is not None:
            self._interrupt()
        if self._reading:
            raise _Interrupted

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
