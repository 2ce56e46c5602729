"""Reads the complete lines that an interrupted run has written, and drops what comes after the lines that are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mbrace.io.jsonl import to_json
from mbrace.io.packing import FIRST_BYTES, DamagedError, Unpacker
from mbrace.io.parquet import parquet_rows
from mbrace.io.system import read_at

CHUNK_BYTES = 1 << 20
LINE_START = b'{"id":'  # the beginning of every line of JSON that we write


class WrittenLines:
    """Lines of an earlier run, in order: `line` is the next one, None after the last; `kept` counts those before it.

    This class itself has no lines; there is a subclass for each kind of file.
    """

    line: bytes | None = None
    kept = 0

    def keep(self) -> None:
        """Keep this line and go to the next."""
        assert self.line is not None
        self.kept += 1
        self._advance()

    def drop_rest(self) -> list[bytes]:
        """Remove the lines not kept from the file; returns kept lines that had to be removed too and must be added."""
        return []

    def _advance(self) -> None:
        raise NotImplementedError


class PlainLines(WrittenLines):
    """Lines of a plain file; an incomplete last line is left out."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._end = descriptor, 0
        self._lines = _lines(_chunks(descriptor))
        self._advance()

    def _advance(self) -> None:
        self._end += len(self.line or b"")
        self.line = next(self._lines, None)

    def drop_rest(self) -> list[bytes]:
        """Remove the lines not kept."""
        _cut(self._descriptor, self._end)
        return []


class PackedLines(WrittenLines):
    """Lines of a packed file: members of a fixed number of lines, of which the last may be shorter or cut off.

    The last member with a kept line is packed again, so that members end where those of an uninterrupted run do.
    """

    def __init__(self, descriptor: int, packing: str) -> None:
        self._descriptor, self._packing = descriptor, packing
        self._lines = self._read()
        self._member = self._next_member = 0  # where the members of the last kept line and of `line` begin
        self._kept_of_member: list[bytes] = []
        self._advance()

    def _advance(self) -> None:
        if self.line is not None:
            if self._next_member != self._member:
                self._member, self._kept_of_member = self._next_member, []
            self._kept_of_member.append(self.line)
        self._next_member, self.line = next(self._lines, (0, None))

    def drop_rest(self) -> list[bytes]:
        """Remove the lines not kept, and the last member, whose kept lines are returned."""
        _cut(self._descriptor, self._member)
        return self._kept_of_member

    def _read(self) -> Iterator[tuple[int, bytes | None]]:
        """(the offset of its member, line) for each complete line."""
        member, position, rest = 0, 0, b""
        unpack = Unpacker(self._packing)
        for chunk in _chunks(self._descriptor):
            position += len(chunk)
            while chunk:
                try:
                    unpacked = unpack.decompress(chunk)
                except DamagedError:
                    return
                *lines, rest = (rest + unpacked).split(b"\n")
                for line in lines:
                    yield member, line + b"\n"
                chunk = unpack.unused_data
                if unpack.eof:
                    if rest:
                        return
                    member = position - len(chunk)
                    unpack = Unpacker(self._packing)


class ParquetLines(WrittenLines):
    """The rows of a finished Parquet file, as lines with their ids only. No row is ever removed."""

    def __init__(self, path: str) -> None:
        self._rows = parquet_rows(path, columns=["id"])
        self._advance()

    def _advance(self) -> None:
        row = next(self._rows, None)
        self.line = None if row is None else to_json(row)


def written_lines(descriptor: int, packing: str) -> WrittenLines:
    """The complete lines of a file with this packing ("": none)."""
    return PackedLines(descriptor, packing) if packing else PlainLines(descriptor)


def begins_like_our_output(descriptor: int, *, packing: str, text: bool) -> bool:
    """Whether a file begins as our output does, however short it is; any other must not be cut off and continued."""
    head = read_at(descriptor, 1 << 16, 0)
    if packing:
        start = FIRST_BYTES[packing]
        if head[: len(start)] != start[: len(head)]:
            return False
        try:
            head = Unpacker(packing).decompress(head)[: len(LINE_START)]
        except DamagedError:
            return False
    return not head.startswith(LINE_START) if text else head[: len(LINE_START)] == LINE_START[: len(head)]


def _cut(descriptor: int, size: int) -> None:
    """Cut the file off after `size` bytes, where writing continues."""
    os.ftruncate(descriptor, size)
    os.lseek(descriptor, size, os.SEEK_SET)


def _chunks(descriptor: int) -> Iterator[bytes]:
    position = 0
    while chunk := read_at(descriptor, CHUNK_BYTES, position):
        position += len(chunk)
        yield chunk


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
