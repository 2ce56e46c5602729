"""SIGINT and SIGTERM let the current window finish and be written; a second signal ends the run at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

Value = TypeVar("Value")


class _Interrupted(Exception):  # noqa: N818
    pass


class Stop:
    """In its `with` block, the first signal is noted in `signal`, ends a wait for input, and calls `interrupt`, which
    ends waits for a server."""

    def __init__(self, interrupt: Callable[[], None] | None = None) -> None:
        self.signal: int | None = None
        self._interrupt = interrupt
        self._reading = False
        self._old: dict[int, Any] = {}

    def read(self, source: Iterator[Value]) -> Value | None:
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
