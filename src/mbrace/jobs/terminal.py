"""What a run shares with its terminal: a progress bar on stderr, and signals.

SIGINT and SIGTERM let the current window finish and be written; a second signal ends the run at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

from mbrace.errors import counted, visible

Value = TypeVar("Value")
log = logging.getLogger("mbrace")


@contextlib.contextmanager
def progress_bar(description: str, total: int | None = None, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of sentences done; it does nothing unless stderr is a terminal."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.fields[done]:,} sentences, {task.fields[rate]:,.1f} per second")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), text, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(visible(description), total=total, done=0, rate=0.0)
        done, started = 0, time.monotonic()

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar.update(task, completed=done, done=done, rate=done / max(1e-9, time.monotonic() - started))

        yield advance


class _Interrupted(Exception):  # noqa: N818
    pass


class Stop:
    """In its `with` block, the first signal is stored in `signal`, ends a wait for input, and calls `interrupt`, which
    ends waits for a server. A line on stderr says how many sentences, `under_way()`, are still to be finished."""

    def __init__(self, interrupt: Callable[[], None] | None = None) -> None:
        self.signal: int | None = None
        self.under_way: Callable[[], int] = lambda: 0
        self._interrupt = interrupt
        self._reading = False
        self._old: dict[int, Any] = {}

    def read(self, source: Iterator[Value]) -> Value | None:
        """The next value of `source`; None at its end, or once a signal has come."""
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
        _say_what_is_left(self.under_way())
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


def _say_what_is_left(count: int) -> None:
    """Not with `print`: the signal may have interrupted another `print`, inside which it cannot be called again."""
    if not count or not log.isEnabledFor(logging.WARNING):
        return
    under_way = f"{counted(count, 'sentence')} that {'is' if count == 1 else 'are'} under way"
    message = f"mbrace: finishing {under_way}; Ctrl-C again stops at once\n"
    with contextlib.suppress(OSError):
        os.write(2, f"{chr(10) if os.isatty(2) else ''}{message}".encode())  # after ^C, or in a progress bar
