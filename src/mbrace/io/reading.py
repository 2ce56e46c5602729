"""Opening any input, packed or remote, and reading its lines."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from mbrace.errors import RecordError, UserError
from mbrace.io.packing import unpacker
from mbrace.io.remote import open_url
from mbrace.records import Location

OPENERS: dict[str, Any] = {"gz": gzip.open, "xz": lzma.open, "bz2": bz2.open}


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """A file for reading bytes: `-` is stdin; `.gz`, `.xz`, `.bz2` are unpacked; URLs are read through pyarrow."""
    try:
        if path == "-":
            yield sys.stdin.buffer
        elif "://" in path:
            with open_url(path) as remote:
                yield remote
        elif path.endswith((".gz", ".xz", ".bz2")):
            with OPENERS[path.rpartition(".")[2]](path) as file:
                yield io.BufferedReader(file)
        else:
            with open(path, "rb") as plain:
                yield plain
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{error.filename or path}: {error.strerror}; give a file that can be read") from error
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:  # the system's, not the unpacker's
            raise
        raise UserError(f"{path}: damaged or cut off ({error}); make the file again") from error


def read_lines(path: str) -> Iterator[str]:
    """Lines of a text file. Only a line feed ends a line (a carriage return before it is dropped)."""
    with open_input(path) as file:
        for number, line in enumerate(file, 1):
            yield decode_line(line, Location(name_of(path), number)).removesuffix("\n").removesuffix("\r")


def decode_line(line: bytes, where: object) -> str:
    """UTF-8 bytes as text, or an error that names the location."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(where, f"invalid UTF-8 at byte {error.start}; convert the file to UTF-8") from None


def count_lines(path: str) -> int:
    """How many lines a file has."""
    with open_input(path) as file:
        return sum(1 for _ in file)


def name_of(path: str) -> str:
    """A path as messages show it."""
    return "<stdin>" if path == "-" else path


def estimated_bytes(path: str) -> int:
    """About how many bytes a local file has unpacked (0: not known), judged by its first quarter megabyte."""
    if not os.path.isfile(path):
        return 0
    size = os.path.getsize(path)
    if not path.endswith((".gz", ".xz")):
        return size
    with open(path, "rb") as file:
        start = file.read(1 << 18)
    try:
        unpack = unpacker(path[-2:])
        unpacked = len(unpack.decompress(start))
    except (zlib.error, lzma.LZMAError):
        return 0
    used = len(start) - len(unpack.unused_data)
    return size * unpacked // max(1, used)
