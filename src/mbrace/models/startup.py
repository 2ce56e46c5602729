"""Searches on a GPU start one after another.

Until the steps of a search are recorded, they keep the host busy. Several searches that start together are no sooner
recorded than one after another, and the GPU would wait longer for the first of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_lock = threading.RLock()  # held by the search that is starting
_changed = threading.Condition()
_waiting = 0  # searches that hold the lock, or wait for it


@contextmanager
def startup_lock(device: torch.device) -> Iterator[ExitStack]:
    """Inside, no other search starts on a GPU, until the stack is closed."""
    with ExitStack() as startup:
        if device.type == "cuda":
            startup.enter_context(_counted_lock())
        yield startup


@contextmanager
def _counted_lock() -> Iterator[None]:
    global _waiting
    with _changed:
        _waiting += 1
    try:
        with _lock:
            yield
    finally:
        with _changed:
            _waiting -= 1
            _changed.notify_all()


def wait_for_startups() -> None:
    """Wait until no search is starting, at most a tenth of a second: for work that keeps the host busy, too, and is not
    urgent."""
    with _changed:
        _changed.wait_for(lambda: _waiting == 0, timeout=0.1)
