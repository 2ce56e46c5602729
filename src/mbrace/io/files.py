"""Reading candidates: JSON Lines or Parquet with one record a source, or flat text files with N candidates a source."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import itertools
import json
import lzma
import os
import re
import sys
import warnings
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

import orjson

from mbrace.errors import RecordError, UserError
from mbrace.records import Location, Record, record_from


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """A file for reading bytes: `-` is stdin; `.gz`, `.xz`, `.bz2` are unpacked; URLs are read through pyarrow."""
    try:
        if path == "-":
            yield sys.stdin.buffer
        elif "://" in path:
            from mbrace.io.storage import open_url

            with open_url(path) as remote:
                yield remote
        elif path.endswith(".gz"):
            with gzip.open(path) as file:
                yield io.BufferedReader(file)
        elif path.endswith(".xz"):
            with lzma.open(path) as file:
                yield io.BufferedReader(file)
        elif path.endswith(".bz2"):
            with bz2.open(path) as file:
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


def check_inputs(paths: Iterable[str], output: str) -> None:
    """A file that cannot be read is an error before the output is made, and so is an output that is an input."""
    for path in paths:
        if path == "-" or "://" in path:
            continue
        with open_input(path):
            pass
        if os.path.exists(output) and os.path.samefile(path, output):
            raise UserError(f"{output}: is an input too; give another output")


def read_lines(path: str) -> Iterator[str]:
    """Lines of a text file. Only a line feed ends a line (a carriage return before it is dropped)."""
    with open_input(path) as file:
        for number, line in enumerate(file, 1):
            yield decode_line(line, f"{name_of(path)}:{number}").removesuffix("\n").removesuffix("\r")


def decode_line(line: bytes, where: object) -> str:
    """UTF-8 bytes as text, or an error that names the place."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(where, f"invalid UTF-8 at byte {error.start}; convert the file to UTF-8") from None


def name_of(path: str) -> str:
    """A path as messages show it."""
    return "<stdin>" if path == "-" else path


def parse_json(line: bytes, where: object) -> Any:
    """One JSON value. orjson refuses lone surrogates, which are legal here: the standard parser has the last word."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        text = decode_line(line, where)
        try:
            return json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise RecordError(where, f"not JSON ({error}); give one JSON object per line") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def valid_unicode(text: str, medium: str) -> str:
    """The text for a medium that cannot hold lone surrogates: U+FFFD is there instead, and a warning says so."""
    replaced = re.sub("[\ud800-\udfff]", "\ufffd", text)
    if replaced != text:
        warnings.warn(f"{medium} cannot hold lone surrogates: U+FFFD is written for them", stacklevel=2)
    return replaced


def to_json(value: Any) -> bytes:
    """One JSON line without its end; lone surrogates are written as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


@dataclass(frozen=True)
class Bad:
    """An input line without an answer, and why."""

    location: Location
    id: str | int | None
    reason: str

    def error(self) -> UserError:
        """The same as an error that stops a run."""
        return RecordError(self.location, self.reason)

    def to_line(self) -> bytes:
        """Its line in OUT.errors.jsonl."""
        fields = {"file": self.location.file, "line": self.location.line, "id": self.id, "reason": self.reason}
        return to_json(fields) + b"\n"


Item: TypeAlias = "Record | Bad"


def location_of(item: Item) -> Location:
    """Where an item was read; a record made by a caller has the location of no line."""
    return item.location or Location(f"record {item.id!r}", 0)


def bad_from(record: Record, error: Exception) -> Bad:
    """A record that failed with `error`."""
    reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return Bad(location_of(record), record.id, error.reason if isinstance(error, RecordError) else reason)


class Seen:
    """Ids so far: a repeated one is an error, since random numbers and resuming go by id.

    Numbers that count up (line numbers are the default) cost nothing. Others cost 64 bits of their hash, in a table at
    most half full; two of a hundred million ids are then mistaken for equal with a chance below one in a thousand.
    """

    def __init__(self) -> None:
        self._first, self._next = 0, 0  # ids first, first + 1, ..., next - 1 were seen
        self._table = array("Q", bytes(8 * 1024))  # open addressing; 0 marks a free place
        self._count = 0

    def check(self, item: Item) -> Item:
        """The item, or a `Bad` one if its id was there before."""
        if isinstance(item, Bad) or self.add(item.id):
            return item
        return Bad(location_of(item), item.id, f"id: {item.id!r} is not unique; give each record its own id")

    def add(self, identity: str | int) -> bool:
        """Whether the id is new."""
        if isinstance(identity, int):
            if self._first == self._next:
                self._first = self._next = identity
            if self._first <= identity < self._next:
                return False
            if identity == self._next:
                self._next += 1
                return not (self._count and self._table[self._place(_mark(identity))])
        mark = _mark(identity)
        place = self._place(mark)
        if self._table[place]:
            return False
        self._table[place] = mark
        self._count += 1
        if 2 * self._count > len(self._table):
            self._grow()
        return True

    @property
    def bytes(self) -> int:
        """Memory its table takes."""
        return len(self._table) * self._table.itemsize

    def _place(self, mark: int) -> int:
        """Where the mark is, or the free place where it belongs."""
        table, mask = self._table, len(self._table) - 1
        place = mark & mask
        while table[place] not in (0, mark):
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        old, self._table = self._table, array("Q", bytes(16 * len(self._table)))
        for mark in old:
            if mark:
                self._table[self._place(mark)] = mark


def _mark(identity: str | int) -> int:
    # The hash of its text: that of a number repeats every 2**61 - 1, and -1 and -2 share one.
    return (hash(f"{type(identity).__name__} {identity}") & 0xFFFFFFFFFFFFFFFF) or 1


def read_items(paths: Sequence[str], *, live: bool = False) -> Iterator[Item]:
    """Records of JSON Lines and Parquet files, one after another, checked as they are read; a bad one is a `Bad`.

    An id that is not given is the line number, or FILE:LINE where there are several files. `live` allows records
    without pseudo-references.
    """
    seen = Seen()
    for path, prefix in zip(paths, id_prefixes(paths), strict=True):
        for number, row in enumerate(rows_of(path), 1):
            yield seen.check(item_from(row, name_of(path), number, prefix=prefix, live=live))


def read_records(path: str, *, live: bool = False) -> Iterator[Record]:
    """Records of one file; a bad one is an error."""
    return only_records(read_items([path], live=live))


def only_records(items: Iterable[Item]) -> Iterator[Record]:
    """The items as long as they are records; a bad one is an error."""
    for item in items:
        if isinstance(item, Bad):
            raise item.error()
        yield item


def rows_of(path: str) -> Iterator[bytes | dict[str, Any]]:
    """The lines of a JSON Lines file as bytes, or the rows of a Parquet file."""
    if path.endswith(".parquet"):
        from mbrace.io.storage import parquet_rows

        yield from parquet_rows(path)
    else:
        with open_input(path) as file:
            yield from file


def item_from(row: bytes | dict[str, Any], file: str, number: int, *, prefix: str = "", live: bool = False) -> Item:
    """The record of a row, or what is wrong with it."""
    location = Location(file, number)
    identity = None
    try:
        if isinstance(row, bytes) and row.isspace():
            raise RecordError(location, "empty line; give one JSON object per line")
        fields = parse_json(row, location) if isinstance(row, bytes) else row
        if isinstance(fields, dict) and type(fields.get("id")) in (str, int):
            identity = fields["id"]
        return record_from(fields, location=location, default_id=f"{prefix}{number}" if prefix else number, live=live)
    except RecordError as error:
        return Bad(location, identity, error.reason)


def id_prefixes(paths: Sequence[str]) -> list[str]:
    """What default ids start with: nothing for one file; for several, their names below the folder they share."""
    if len(paths) == 1:
        return [""]
    places = [path.replace("://", "/") for path in paths]
    if len(set(map(os.path.isabs, places))) > 1:  # some from here, some from the root or from elsewhere
        places = [
            "/" + place if "://" in path else os.path.abspath(place) for path, place in zip(paths, places, strict=True)
        ]
    folder = os.path.commonpath([os.path.dirname(place) or "." for place in places])
    return [os.path.relpath(place, folder) + ":" for place in places]


def read_flat(
    hypotheses: str,
    references: str | None,
    *,
    num_candidates: int,
    num_references: int | None = None,
    source: str | None = None,
) -> Iterator[Record]:
    """Records of flat files: `num_candidates` lines a source in one file, `num_references` in the other.

    Without a reference file the hypotheses are the pseudo-references too.
    """
    per_source = num_candidates if num_references is None else num_references
    for option, value in (("--num-candidates", num_candidates), ("--num-references", per_source)):
        if value < 1:
            raise UserError(f"{option} {value}: must be 1 or more")
    groups = _groups(hypotheses, num_candidates)
    pools = itertools.repeat(None) if references is None else _groups(references, per_source)
    sources = itertools.repeat(None) if source is None else read_lines(source)
    missing = object()
    for number in itertools.count(1):
        candidates: Any = next(groups, missing)
        pool: Any = next(pools, missing)
        text: Any = next(sources, missing)
        if candidates is missing:
            for path, extra in ((references, pool), (source, text)):
                if path is not None and extra is not missing:
                    raise UserError(f"{path}: has more sources than {hypotheses}, which has {number - 1}")
            return
        for path, value in ((references, pool), (source, text)):
            if value is missing:
                raise UserError(f"{path}: ends before source {number}, which {hypotheses} has")
        location = Location(hypotheses, (number - 1) * num_candidates + 1)
        yield Record(candidates, candidates if pool is None else pool, id=number, source=text, location=location)


def _groups(path: str, size: int) -> Iterator[list[str]]:
    lines = read_lines(path)
    for group in itertools.count(1):
        lines_of_group = list(itertools.islice(lines, size))
        if not lines_of_group:
            return
        if len(lines_of_group) < size:
            line = (group - 1) * size + len(lines_of_group)
            raise UserError(f"{path}:{line}: ends inside source {group}; lines must be a multiple of {size}")
        yield lines_of_group
