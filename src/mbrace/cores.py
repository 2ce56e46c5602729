"""How many cores there are to work with, and how many threads to use where a utility has none of its own."""

from __future__ import annotations

import os


def cores() -> int:
    """Those this process may run on, where the system says so (containers and `taskset` give fewer); else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_most_helpers: int | None = None


def limit_helpers(threads: int | None) -> None:
    """Use at most so many threads from now on where a utility has no threads of its own (None: all cores)."""
    global _most_helpers
    _most_helpers = threads


def helper_threads() -> int:
    """Threads for what goes on beside such a utility: choosing who stays, forecasts, texts to tokens and back."""
    return cores() if _most_helpers is None else min(cores(), _most_helpers)
