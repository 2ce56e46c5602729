"""How many ratings there are, in the terminal while the page is served."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from mbrace.judge.store import Store
from mbrace.wording import counted

SECONDS = 1.0  # between two looks at the ratings


def progress(store: Store) -> dict[int, tuple[int, int]]:
    """How many items each rater has done, and of how many."""
    turns = {rater: store.turn(rater) for rater in store.tokens}
    return {rater: (turn.position, turn.total) for rater, turn in turns.items()}


def count_line(done: dict[int, tuple[int, int]]) -> str:
    """One line: all ratings, then each rater's; of many raters, those who have finished."""
    ratings, wanted = (sum(numbers) for numbers in zip(*done.values(), strict=True))
    line = f"{ratings:,} of {counted(wanted, 'rating')}"
    if len(done) <= 4:
        return line + ": " + ", ".join(f"rater {rater} {own} of {total}" for rater, (own, total) in done.items())
    finished = sum(own == total for own, total in done.values())
    return f"{line}; {finished} of {counted(len(done), 'rater')} finished"


class LiveCount:
    """While in its `with` block, keeps the count in one line of a terminal; elsewhere prints nothing."""

    def __init__(self, store: Store, out: TextIO | None = None) -> None:
        self._store, self._out = store, sys.stdout if out is None else out
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._shown = ""

    def __enter__(self) -> LiveCount:
        if self._out.isatty():
            self._thread = threading.Thread(target=self._run, name="live count", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._out.write("\n")
            self._out.flush()

    def _run(self) -> None:
        while True:
            line = count_line(progress(self._store))
            if line != self._shown:
                blank = " " * max(0, len(self._shown) - len(line))  # what is left of a longer line
                self._out.write(f"\r{line}{blank}")
                self._out.flush()
                self._shown = line
            if self._ended.wait(SECONDS):
                return
