"""A progress bar on stderr, only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(description: str, total: int | None, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of sentences done; it does nothing unless stderr is a terminal."""
    if not (shown and sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sentences, {task.fields[rate]} per second"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, rate="-")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].speed
            if speed:
                bar.update(task, rate=f"{speed:,.1f}")

        yield advance


@contextlib.contextmanager
def share_progress_bar(description: str, *, shown: bool = True) -> Iterator[Callable[[int, float], None]]:
    """Yields a function to call with the number of sentences done since its last call, and the share of all the work
    done so far."""
    if not (shown and sys.stderr.isatty()):
        yield lambda count, share: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[done]:,} sentences, {task.fields[rate]:,.1f} per second"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=1.0, done=0, rate=0.0)
        done = 0
        started = time.monotonic()

        def advance(count: int, share: float) -> None:
            nonlocal done
            done += count
            rate = done / max(1e-9, time.monotonic() - started)
            bar.update(task, completed=min(share, 1.0), done=done, rate=rate)

        yield advance
