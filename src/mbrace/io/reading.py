"""Opens any input, compressed or remote, and reads its lines and JSON values."""

from __future__ import annotations

import codecs
import contextlib
import fnmatch
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

import orjson

from mbrace.errors import RecordError, UserError, require, warn
from mbrace.io.compression import packing_of, unpacked, without_packing
from mbrace.records import Location

Row = TypeVar("Row")


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """A file for reading bytes: `-` is stdin; packed files are unpacked; URLs are read through pyarrow."""
    try:
        if path == "-":
            if sys.stdin is None:
                raise UserError("standard input: is closed; give a file")
            yield sys.stdin.buffer
            return
        with open_url(path) if "://" in path else open(path, "rb") as file:
            yield unpacked(file, packing_of(path)) if packing_of(path) else file
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{error.filename or path}: {error.strerror}; give a file that can be read") from error
    except UserError:
        raise
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:  # an error of the operating system, not of unpacking
            raise
        raise UserError(f"{path}: damaged or cut off ({error}); make the file again") from error


def byte_lines(path: str) -> Generator[bytes]:
    """The lines of any input, each with its line feed. A byte order mark is not part of the first."""
    with open_input(path) as file:
        for line in file:
            yield line.removeprefix(codecs.BOM_UTF8)
            break
        yield from file


def is_blank(row: object) -> bool:
    """Whether a row is a blank line."""
    return isinstance(row, bytes) and (not row or row.isspace())  # strip() would copy the row


def without_blank_end(rows: Iterable[Row], is_blank: Callable[[Row], bool] = is_blank) -> Iterator[Row]:
    """The rows without blank ones at the end; those between other rows stay."""
    blank: list[Row] = []
    for row in rows:
        if is_blank(row):
            blank.append(row)
        else:
            yield from blank
            blank.clear()
            yield row


def read_lines(path: str) -> Iterator[str]:
    """Lines of a text file. Only a line feed ends a line (a carriage return before it is dropped)."""
    with contextlib.closing(byte_lines(path)) as lines:
        for number, line in enumerate(lines, 1):
            yield decode_line(line, Location(shown_path(path), number)).removesuffix("\n").removesuffix("\r")


def decode_line(line: bytes, where: object) -> str:
    """UTF-8 bytes as text, or an error that says where they were read."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(where, f"invalid UTF-8 at byte {error.start}; convert the file to UTF-8") from None


def count_lines(path: str) -> int:
    """How many lines a file has."""
    with open_input(path) as file:
        return sum(1 for _ in file)


def shown_path(path: str) -> str:
    """A path as messages show it: "-" is <stdin>."""
    return "<stdin>" if path == "-" else path


def filesystem_of(url: str) -> tuple[Any, str]:
    """pyarrow's file system for a URL, and the path in it."""
    fs = require("pyarrow.fs", extra="parquet")
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except Exception as error:
        raise UserError(f"{url}: not a URL that pyarrow reads ({error}); give one such as s3://bucket/file") from error
    return filesystem, path


def expand_url(pattern: str) -> list[str]:
    """The URLs that match a pattern, sorted."""
    fs = require("pyarrow.fs", extra="parquet")
    filesystem, path = filesystem_of(pattern)
    folder = path[: min(path.index(c) for c in "*?[" if c in path)].rpartition("/")[0]
    try:
        infos = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    except OSError as error:
        raise UserError(f"{pattern}: cannot be listed ({error}); check the address and your rights there") from error
    start = pattern[: len(pattern) - len(path)] if pattern.endswith(path) else pattern.partition("://")[0] + "://"
    return sorted(start + i.path for i in infos if i.type == fs.FileType.File and fnmatch.fnmatch(i.path, path))


@contextlib.contextmanager
def open_url(url: str) -> Iterator[BinaryIO]:
    """A stream of the bytes at a URL."""
    filesystem, path = filesystem_of(url)
    try:
        with filesystem.open_input_stream(path, compression=None) as stream:
            yield io.BufferedReader(stream)
    except (UserError, GeneratorExit):
        raise
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{url}: cannot be read ({error}); check the address and your rights there") from error


def parse_json(line: bytes, where: object) -> Any:
    """One JSON value. Lone surrogates are allowed: what orjson refuses, the standard library's parser tries."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        text = decode_line(line, where)
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RecordError(where, f"not JSON ({error}); give one JSON object per line") from None


def is_json_line(line: bytes, file: str, fields: Collection[str]) -> bool:
    """Whether a line is JSON: by the name of its file or, where that does not say it, as on standard input, because it
    is an object with one of these fields. A .txt file holds text."""
    name = without_packing(file).lower()
    if name.endswith((".txt", ".jsonl", ".ndjson", ".json")):
        return not name.endswith(".txt")
    try:
        found = parse_json(line, file) if line.lstrip().startswith(b"{") else None
    except RecordError:
        return False
    return isinstance(found, dict) and not found.keys().isdisjoint(fields)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def to_json(value: Any) -> bytes:
    """A value as JSON without a line feed; lone surrogates are written as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_line(value: Any) -> bytes:
    """A value as one line of JSON Lines."""
    return to_json(value) + b"\n"


def valid_unicode(text: str, medium: str) -> str:
    """The text for a format that cannot hold lone surrogates: they are replaced by U+FFFD, with a warning."""
    replaced = re.sub("[\ud800-\udfff]", "\ufffd", text)
    if replaced != text:
        warn(f"{medium} cannot hold lone surrogates: U+FFFD is written for them")
    return replaced
