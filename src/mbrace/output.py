"""Writing answers so that none is lost: in input order, complete lines only, and continued byte for byte on resume."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mbrace.errors import UserError
from mbrace.files import parse_json, to_json
from mbrace.race import Decoded

# Compressed output is flushed after every so many lines, whatever the window, so that a resumed file is the same file.
LINES_PER_FLUSH = 64


def answer_line(answer: Decoded, *, text: bool, nbest: int) -> bytes:
    """One output line: the text alone, or a JSON object."""
    if text:
        return answer.text.replace("\r", " ").replace("\n", " ").encode("utf-8", "surrogatepass") + b"\n"
    fields: dict[str, Any] = {
        "id": answer.id,
        "text": answer.text,
        "index": answer.index,
        "utility": answer.utility,
        "utility_calls": answer.utility_calls,
        "pairs_scored": answer.pairs_scored,
        "pseudo_references": answer.pseudo_references,
        "survivors": [step.survivors for step in answer.steps],
    }
    if nbest > 1:
        fields["nbest"] = [{"text": c.text, "index": c.index, "utility": c.utility} for c in answer.nbest]
    return to_json(fields) + b"\n"


class Output:
    """A file of answers, `-` for stdout, `.gz` packed. `done` holds the ids found in it on resume."""

    def __init__(self, path: str, *, resume: bool = False, force: bool = False, text: bool = False) -> None:
        self.path = path
        self.done: list[str | int | None] = []
        self._lines = 0
        self._raw: BinaryIO | None = None
        if path == "-":
            if resume:
                raise UserError("--resume: cannot continue standard output; give a file with -o")
            self._file: Any = sys.stdout.buffer
            return
        kept: list[bytes] = []
        if os.path.exists(path):
            if not (resume or force):
                raise UserError(f"{path}: exists; use --resume to continue it or --force to replace it")
            if resume:
                kept = _complete_lines(path)
                self.done = [_id_of(line, path, number, text) for number, line in enumerate(kept, 1)]
        self._begin(kept, resume)

    def _begin(self, kept: list[bytes], resume: bool) -> None:
        """Start or go on. Packed output is packed again from its first line, beside the old file until it is whole."""
        try:
            if not self.path.endswith(".gz"):
                self._file = open(self.path, "ab" if resume else "wb")  # noqa: SIM115
                if resume:
                    self._file.truncate(sum(map(len, kept)))
                self._lines = len(kept)
                return
            beside = Path(self.path + ".part") if kept else Path(self.path)
            self._raw = beside.open("wb")
            self._file = gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, mtime=0)
            for line in kept:
                self.write(line)
            if kept:
                self.flush(wait=True)
                os.replace(beside, self.path)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}; give an output file that can be written") from error

    def write(self, line: bytes) -> None:
        """Append one line."""
        try:
            self._file.write(line)
            self._lines += 1
            if self._raw is not None and self._lines % LINES_PER_FLUSH == 0:
                self._file.flush(zlib.Z_SYNC_FLUSH)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"{self.path}: {error.strerror} after {self._lines} answers; they are kept: make room and use --resume"
            ) from error

    def flush(self, *, wait: bool = False) -> None:
        """Hand what was written to the system; with `wait`, until it is on disk."""
        target = self._raw if self._raw is not None else self._file
        target.flush()
        if wait and self.path != "-":
            os.fsync(target.fileno())

    def close(self) -> None:
        """Write what is left and close."""
        try:
            if self.path == "-":
                self._file.flush()
                return
            self._file.close()
            if self._raw is not None:
                self._raw.close()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"{self.path}: {error.strerror}; answers written before are kept: make room and use --resume"
            ) from error

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _complete_lines(path: str) -> list[bytes]:
    """The lines of a file that end; a torn last line, or a torn end of packed data, is left out."""
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".gz"):
        data = _unpack(data)
    lines = io.BytesIO(data).readlines()
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _unpack(data: bytes) -> bytes:
    unpacked = b""
    while data:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            unpacked += unpacker.decompress(data)
        except zlib.error:
            break
        data = unpacker.unused_data
    return unpacked


def _id_of(line: bytes, path: str, number: int, text: bool) -> str | int | None:
    if text:
        return None
    fields = parse_json(line, f"{path}:{number}")
    identity = fields.get("id") if isinstance(fields, dict) else None
    if not isinstance(identity, (str, int)):
        raise UserError(f"{path}:{number}: --resume: not an answer of `mbrace decode`; use --force to replace the file")
    return identity
