"""What the tests of the command line share: rows as JSON lines, and commands run here or in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mbrace.cli import main

Row = dict[str, Any]

COMMAND = [sys.executable, "-m", "mbrace"]

GOOD = {"hypotheses": ["a b", "a c"], "pseudo_references": ["a b", "d"]}


def lines(rows: Iterable[Any]) -> bytes:
    """Rows as JSON Lines; bytes are lines already."""
    return b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for what must come true, on however slow a machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.01)


def decode(*arguments: str | Path) -> int:
    return main(["decode", *map(str, arguments)])


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "decode", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def feed_and_wait(run: subprocess.Popen[bytes], data: bytes, out: Path, size: int) -> None:
    """Give a part of the input and wait until the output, or OUT.part where its lines are, holds `size` bytes."""
    assert run.stdin is not None
    run.stdin.write(data)
    run.stdin.flush()
    until(
        lambda: (
            any(path.exists() and path.stat().st_size >= size for path in (out, Path(f"{out}.part")))
            or run.poll() is not None
        )
    )
    assert run.poll() is None, run.stderr.read() if run.stderr else ""
