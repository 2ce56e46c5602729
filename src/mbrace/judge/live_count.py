"""How many ratings there are, in the terminal while the page is served."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from mbrace.judge.store import Store
from mbrace.wording import counted

SECONDS = 1.0  # between two looks at the ratings


def progress(store: Store) -> dict[int, tuple[int, int]]:
    """How many items each rater has done, and of how many."""
    turns = {rater: store.turn(rater) for rater in store.tokens}
    return {rater: (turn.position, turn.total) for rater, turn in turns.items()}


def count_line(done: dict[int, tuple[int, int]]) -> str:
    """One line: all ratings, then those of each rater, or, of many raters, how many have finished."""
    ratings, wanted = (sum(numbers) for numbers in zip(*done.values(), strict=True))
    line = f"{ratings:,} of {counted(wanted, 'rating')}"
    if len(done) <= 4:
        return line + ": " + ", ".join(f"rater {rater} {own} of {total}" for rater, (own, total) in done.items())
    finished = sum(own == total for own, total in done.values())
    return f"{line}; {finished} of {counted(len(done), 'rater')} finished"


@contextmanager
def live_count(store: Store, out: TextIO | None = None) -> Iterator[None]:
    """Inside the block, keep the count in one line of a terminal; elsewhere print nothing."""
    terminal = sys.stdout if out is None else out
    if not terminal.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show_counts, args=(store, terminal, ended), name="live count", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        print(file=terminal, flush=True)


def _show_counts(store: Store, terminal: TextIO, ended: threading.Event) -> None:
    shown = ""
    while True:
        line = count_line(progress(store))
        if line != shown:
            print(f"\r{line:<{len(shown)}}", end="", file=terminal, flush=True)  # covers a longer line
            shown = line
        if ended.wait(SECONDS):
            return
