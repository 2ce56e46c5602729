"""Keeps the answers of a server on disk, by request: a file of JSON lines that grows as answers arrive.

Each line is written by one call, so that a killed process leaves complete lines and at most one that is cut off, which
the next run skips. Several processes may append to one file.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mbrace.errors import ServiceError, UserError, warn
from mbrace.io.atomic import OPEN, read_at


class AnswerFile:
    """Answers by key. Only the keys and the positions of their lines are in memory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._lines: dict[bytes, tuple[int, int]] = {}  # the offset and length of each key's line
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | OPEN, 0o644)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be opened for answers ({error.strerror}); give a file that can be written"
            ) from error
        self._read()

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, key: bytes, read: Callable[[dict[str, Any]], Any] = dict) -> Any:
        """What `read` makes of the answer kept under this key; None if there is none."""
        with self._lock:
            found = self._lines.get(key)
        if found is None:
            return None
        offset, length = found
        try:
            return read(json.loads(read_at(self._descriptor, length, offset))["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path}: a kept answer is not of this kind of request; give another file") from error

    def put(self, key: bytes, answer: dict[str, Any]) -> None:
        """Append an answer; it is in the file when this returns."""
        line = json.dumps({"key": key.hex(), "answer": answer}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                written = os.write(self._descriptor, line)  # with O_APPEND, whole and after all others
            except OSError as error:
                raise ServiceError(
                    f"{self.path}: cannot be written ({error.strerror}); free disk space and run again"
                ) from error
            if written < len(line):
                raise ServiceError(f"{self.path}: cannot be written (the disk is full); free disk space and run again")
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            self._lines[key] = end - len(line), len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _read(self) -> None:
        offset = cut_off = 0
        line = b""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):  # a process was killed while it wrote this line
                    cut_off += 1
                else:
                    self._lines[self._key(found, number)] = offset, len(line)
                offset += len(line)
        if line and not line.endswith(b"\n"):
            os.write(self._descriptor, b"\n")  # so that the next answer begins a line
        if cut_off:
            lines = "1 line was" if cut_off == 1 else f"{cut_off} lines were"
            warn(f"{self.path}: {lines} cut off when a run was killed; asked for again")

    def _key(self, found: Any, number: int) -> bytes:
        try:
            if isinstance(found["answer"], dict):
                return bytes.fromhex(found["key"])
        except (KeyError, TypeError, ValueError):
            pass
        raise UserError(f"{self.path}: line {number}: is not a kept answer; give another file, or remove this one")


def key_of(asked: Any) -> bytes:
    """A digest of a request, which may be any JSON value."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).digest()
