"""Peak resident memory since a starting point (Linux: from /proc; elsewhere the peak of the whole process)."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _status(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def start() -> int:
    """Reset the peak and return the memory that is resident now."""
    if not STATUS.exists():
        return peak()
    CLEAR.write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The peak since `start`."""
    if STATUS.exists():
        return _status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
