"""Items made by a thread ahead of their use, so that the device that uses them need not wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

Made = TypeVar("Made")


def made_ahead(items: Iterable[Made], *, most: int = 4, name: str = "mbrace-batches") -> Generator[Made]:
    """The items, read by a thread called `name` at most `most` items ahead. Its exceptions are raised here."""
    ready: queue.Queue[tuple[Made | None, BaseException | None]] = queue.Queue(maxsize=most)
    stop = threading.Event()

    def hand_over(entry: tuple[Made | None, BaseException | None]) -> None:
        while not stop.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                hand_over((item, None))
                if stop.is_set():
                    return
            hand_over((None, None))
        except BaseException as error:  # handed over whatever it is, or the reader would wait for ever
            hand_over((None, error))

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stop.set()
        thread.join()
