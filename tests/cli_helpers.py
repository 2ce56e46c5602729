"""What the tests of the command line share: rows as JSON lines, and commands run here or in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mbrace.cli import main

Row = dict[str, Any]

COMMAND = [sys.executable, "-m", "mbrace"]

GOOD = {"hypotheses": ["a b", "a c"], "pseudo_references": ["a b", "d"]}


def lines(rows: Iterable[Any]) -> bytes:
    """Rows as JSON Lines; bytes are lines already."""
    return b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


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
    for _ in range(600):
        if any(path.exists() and path.stat().st_size >= size for path in (out, Path(f"{out}.part"))):
            return
        assert run.poll() is None, run.stderr.read() if run.stderr else ""
        time.sleep(0.05)
    raise AssertionError("the run wrote nothing")
