"""Packed files. Output is a sequence of members with a fixed number of lines each: gzip members, xz or bzip2 streams,
Zstandard frames. So the bytes are the same wherever they are made."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from mbrace.errors import UserError, require

LINES_PER_MEMBER = 64
PACKED = (".gz", ".xz", ".bz2", ".zst")  # read and written


def packing_of(path: str) -> str:
    """How a file is packed, by the end of its name: "gz", "xz", "bz2", "zst", or "" for not at all."""
    ending = os.path.splitext(path)[1]
    return ending[1:] if ending in PACKED else ""


def without_packing(path: str) -> str:
    """The name without the suffix of its packing."""
    packing = packing_of(path)
    return path.removesuffix(f".{packing}") if packing else path


def unpacked(file: BinaryIO, packing: str) -> BinaryIO:
    """What is in a packed file, to be read."""
    openers: dict[str, Any] = {"gz": gzip.open, "xz": lzma.open, "bz2": bz2.open, "zst": _ZstandardFile}
    return io.BufferedReader(openers[packing](file))


class _ZstandardFile(io.RawIOBase):
    """Reads a file of Zstandard frames. Unlike the package's own reader it notices if the last frame is cut off."""

    def __init__(self, file: BinaryIO) -> None:
        self._zstandard = require("zstandard", extra="zstd")
        self._file = file
        self._frame: Any = None  # None: between frames
        self._packed, self._rest = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            packed = self._packed or self._file.read(1 << 17)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the file ends inside a frame")
                return 0
            self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
            try:
                self._rest = self._frame.decompress(packed)
            except self._zstandard.ZstdError as error:
                raise OSError(str(error)) from error
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _pack(lines: Sequence[bytes], packing: str) -> bytes:
    """Lines, packed as one member of a file; members one after another are a whole file."""
    data = b"".join(lines)
    if packing == "xz":
        return lzma.compress(data)
    if packing == "bz2":
        return bz2.compress(data)
    if packing == "zst":
        return bytes(require("zstandard", extra="zstd").ZstdCompressor(level=9).compress(data))
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(data) + packer.flush()


def in_members(lines: Iterable[bytes], packing: str) -> Iterator[bytes]:
    """The pieces of a whole file: its members (one at least), or the lines themselves if they are not packed."""
    if not packing:
        yield from lines
        return
    left = iter(lines)
    member = list(itertools.islice(left, LINES_PER_MEMBER))
    yield _pack(member, packing)
    while member := list(itertools.islice(left, LINES_PER_MEMBER)):
        yield _pack(member, packing)


def check_packing(output: str, known: Sequence[str]) -> None:
    """Refuse an output name whose suffix promises a packing that is not one of the `known` suffixes."""
    if output.endswith((*PACKED, ".zip")) and not output.endswith(tuple(known)):
        names = f"{', '.join(known[:-1])} or {known[-1]}"
        raise UserError(
            f"{output}: this packing is not supported; give a name that ends in {names}, or in none of them"
        )
    if output.endswith(".zst"):
        require("zstandard", extra="zstd")
