"""What an interrupted run left behind: the complete lines of a file, as a stream, and where to go on after them."""

from __future__ import annotations

import lzma
import os
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from mbrace.io.files import to_json

CHUNK = 1 << 20
STARTS = {"gz": b"\x1f\x8b", "xz": b"\xfd7zXZ\0"}  # of packed files
RECORD = b'{"id":'  # how every line of JSON begins that we write


class Kept(Protocol):
    """Lines of an earlier run. `line` is the next one, None after the last."""

    line: bytes | None
    taken: int

    def take(self) -> None:
        """Keep this line and go to the next."""
        ...

    def cut(self) -> list[bytes]:
        """Drop what was not kept; returns the kept lines that must be written again."""
        ...


class Nothing:
    """A new file."""

    line: bytes | None = None
    taken = 0

    def take(self) -> None:
        """There is no line to keep."""
        raise AssertionError("no line")

    def cut(self) -> list[bytes]:
        """Nothing to drop."""
        return []


class KeptLines:
    """Lines of a plain file; a torn last line is not one of them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines = _lines(_chunks(descriptor))
        self._end = 0
        self.taken = 0
        self.line = next(self._lines, None)

    def take(self) -> None:
        """Keep this line and go to the next."""
        assert self.line is not None
        self._end += len(self.line)
        self.taken += 1
        self.line = next(self._lines, None)

    def cut(self) -> list[bytes]:
        """Drop what was not kept."""
        os.ftruncate(self._descriptor, self._end)
        os.lseek(self._descriptor, self._end, os.SEEK_SET)
        return []


class KeptMembers:
    """Lines of a packed file: members of a fixed number of lines, the last of them perhaps shorter or torn.

    The last member with a kept line is packed again, so that members end where those of an uninterrupted run do.
    """

    def __init__(self, descriptor: int, packing: str) -> None:
        self._descriptor, self._packing = descriptor, packing
        self._lines = self._read()
        self._next_member = 0
        self._member = 0  # where the member of the last kept line begins
        self._tail: list[bytes] = []  # the kept lines of that member
        self.taken = 0
        self.line: bytes | None = None
        self._advance()

    def _advance(self) -> None:
        self._next_member, self.line = next(self._lines, (0, None))

    def take(self) -> None:
        """Keep this line and go to the next."""
        assert self.line is not None
        if self._next_member != self._member:
            self._member, self._tail = self._next_member, []
        self._tail.append(self.line)
        self.taken += 1
        self._advance()

    def cut(self) -> list[bytes]:
        """Drop what was not kept, and the last member; its kept lines are returned."""
        os.ftruncate(self._descriptor, self._member)
        os.lseek(self._descriptor, self._member, os.SEEK_SET)
        return self._tail

    def _read(self) -> Iterator[tuple[int, bytes | None]]:
        """(where its member begins, line) for each complete line."""
        member, position, rest = 0, 0, b""
        unpacker = _unpacker(self._packing)
        for chunk in _chunks(self._descriptor):
            position += len(chunk)
            while chunk:
                try:
                    unpacked = unpacker.decompress(chunk)
                except (zlib.error, lzma.LZMAError):
                    return
                *lines, rest = (rest + unpacked).split(b"\n")
                for line in lines:
                    yield member, line + b"\n"
                chunk = unpacker.unused_data
                if unpacker.eof:
                    if rest:
                        return
                    member = position - len(chunk)
                    unpacker = _unpacker(self._packing)


class KeptRows:
    """The rows of a finished Parquet file, as lines that hold their ids."""

    def __init__(self, path: str) -> None:
        from mbrace.io.storage import parquet_rows

        self._rows = parquet_rows(path, columns=["id"])
        self.taken = -1
        self.line: bytes | None = b""
        self.take()

    def take(self) -> None:
        """Go to the next row."""
        self.taken += 1
        row = next(self._rows, None)
        self.line = None if row is None else to_json(row)

    def cut(self) -> list[bytes]:
        """Nothing can be dropped."""
        return []


def is_ours(descriptor: int, *, packing: str, text: bool) -> bool:
    """Whether a file begins as our output does, so far as it goes; what does not must not be cut off and written on."""
    head = os.pread(descriptor, 1 << 16, 0)
    if packing:
        start = STARTS[packing]
        if head[: len(start)] != start[: len(head)]:
            return False
        try:
            head = _unpacker(packing).decompress(head, len(RECORD))
        except (zlib.error, lzma.LZMAError):
            return False
    return not head.startswith(RECORD) if text else head[: len(RECORD)] == RECORD[: len(head)]


def _unpacker(packing: str) -> Any:
    """Of one gzip member, or of one xz stream."""
    return zlib.decompressobj(wbits=31) if packing == "gz" else lzma.LZMADecompressor(lzma.FORMAT_XZ)


def _chunks(descriptor: int) -> Iterator[bytes]:
    position = 0
    while chunk := os.pread(descriptor, CHUNK, position):
        position += len(chunk)
        yield chunk


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
