"""How many cores this process may use, and how many threads work next to a utility that has none of its own."""

from __future__ import annotations

import os


def cores() -> int:
    """The number of cores this process may run on (a container or `taskset` may allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_most_helpers: int | None = None  # None: as many as there are cores


def limit_helpers(threads: int | None) -> None:
    """Let `helper_threads` return at most `threads` from now on (None: all cores)."""
    global _most_helpers
    _most_helpers = threads


def helper_threads() -> int:
    """Threads for the work around a utility that has no threads of its own: pruning, forecasts and tokenising."""
    return cores() if _most_helpers is None else min(cores(), _most_helpers)
