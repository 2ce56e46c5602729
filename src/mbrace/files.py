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

from mbrace.errors import UserError
from mbrace.records import Record, kind, record_from


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """A file for reading bytes: `-` is stdin; `.gz`, `.xz`, `.bz2` are unpacked; URLs are read through pyarrow."""
    try:
        if path == "-":
            yield sys.stdin.buffer
        elif "://" in path:
            from mbrace.storage import open_url

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


def decode_line(line: bytes, where: str) -> str:
    """UTF-8 bytes as text, or an error that names the place."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: invalid UTF-8 at byte {error.start}; convert the file to UTF-8") from None


def name_of(path: str) -> str:
    """A path as messages show it."""
    return "<stdin>" if path == "-" else path


def parse_json(line: bytes, where: str) -> Any:
    """One JSON value. orjson refuses lone surrogates, which are legal here: the standard parser has the last word."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        text = decode_line(line, where)
        try:
            return json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not JSON ({error}); give one JSON object a line") from None


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

    file: str
    line: int
    id: str | int | None
    reason: str

    def error(self) -> UserError:
        """The same as an error that stops a run."""
        return UserError(f"{self.file}:{self.line}: {self.reason}")

    def to_line(self) -> bytes:
        """Its line in OUT.errors.jsonl."""
        return to_json({"file": self.file, "line": self.line, "id": self.id, "reason": self.reason}) + b"\n"


Item: TypeAlias = "Record | Bad"


def place_of(item: Item) -> tuple[str, int]:
    """The file and line an item comes from."""
    if isinstance(item, Bad):
        return item.file, item.line
    file, _, line = item.where.rpartition(":")
    return file, int(line) if line.isdigit() else 0


def bad_from(record: Record, error: Exception) -> Bad:
    """A record that failed with `error`."""
    reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return Bad(*place_of(record), record.id, reason.removeprefix(f"{record.where}: "))


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
        return Bad(*place_of(item), item.id, f"id: {item.id!r} is not unique; give each record its own id")

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
        from mbrace.storage import parquet_rows

        yield from parquet_rows(path)
    else:
        with open_input(path) as file:
            yield from file


def item_from(row: bytes | dict[str, Any], file: str, number: int, *, prefix: str = "", live: bool = False) -> Item:
    """The record of a row, or what is wrong with it."""
    where = f"{file}:{number}"
    identity = None
    try:
        if isinstance(row, bytes) and row.isspace():
            raise UserError(f"{where}: empty line; give one JSON object a line")
        fields = parse_json(row, where) if isinstance(row, bytes) else row
        if isinstance(fields, dict) and type(fields.get("id")) in (str, int):
            identity = fields["id"]
        return record_from(fields, where=where, default_id=f"{prefix}{number}" if prefix else number, live=live)
    except UserError as error:
        return Bad(file, number, identity, str(error).removeprefix(f"{where}: "))


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
        where = f"{hypotheses}:{(number - 1) * num_candidates + 1}"
        yield Record(candidates, candidates if pool is None else pool, id=number, source=text, where=where)


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


@dataclass(frozen=True)
class Texts:
    """One text a source, as a file has them; `ids` is None where it has none and its lines are meant in order."""

    path: str
    texts: Sequence[str]
    ids: Sequence[str] | None = None


def read_texts(path: str, field: str) -> Texts:
    """The lines of a text file, or `field` and `id` of the records of a JSON Lines or Parquet file.

    A byte order mark is no part of the first text. `.gz`, `.xz` and `.bz2` are unpacked.
    """
    name = name_of(path)
    if path.endswith(".parquet"):
        from mbrace.storage import parquet_rows

        rows: list[tuple[int, Any]] = list(enumerate(parquet_rows(path, ["id", field]), 1))
    else:
        lines = list(read_lines(path))
        if lines:
            lines[0] = lines[0].removeprefix("\ufeff")
            if not _is_json(path, lines[0], field):
                return Texts(name, lines)
        rows = [(n, parse_json(line.encode(), f"{name}:{n}")) for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UserError(f"{name}: the file is empty; give one line a source")
    texts = [_text_of(row, field, f"{name}:{number}") for number, row in rows]
    return Texts(name, texts, _ids_of(rows, name))


def _is_json(path: str, first: str, field: str) -> bool:
    name, ending = os.path.splitext(path)
    if (name if ending in (".gz", ".xz", ".bz2") else path).endswith((".jsonl", ".ndjson", ".json")):
        return True
    try:  # a text whose first line is such an object is JSON Lines under another name, or from a pipe
        row = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and field in row


def _text_of(row: Any, field: str, where: str) -> str:
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object with `{field}`, got {kind(row)}")
    text = row.get(field)
    if text is None:
        raise UserError(f"{where}: {field}: missing; give records with a string `{field}`")
    if not isinstance(text, str):
        raise UserError(f"{where}: {field}: expected a string, got {kind(text)}")
    return text


def _ids_of(rows: Sequence[tuple[int, Any]], name: str) -> list[str] | None:
    """The ids as strings, each found once; None where no record has one."""
    if all(row.get("id") is None for _, row in rows):
        return None
    first: dict[str, int] = {}
    for number, row in rows:
        identity = row.get("id")
        if identity is None:
            raise UserError(f"{name}:{number}: id: missing, though other records have one; give all or none")
        if type(identity) not in (str, int):
            raise UserError(f"{name}:{number}: id: expected a string or a whole number, got {kind(identity)}")
        if str(identity) in first:
            raise UserError(f"{name}:{number}: id: {identity!r} is already the id of line {first[str(identity)]}")
        first[str(identity)] = number
    return list(first)


def align_texts(outputs: Sequence[Texts], others: Sequence[Texts]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """The ids, and the texts of all files in their order: by id where a file has ids, line by line where it has none.

    `outputs` must have the same ids; `others`, such as references and sources, may have more.
    """
    files = [*outputs, *others]
    leader = next((file for file in files if file.ids is not None), files[0])
    ids = leader.ids or [str(number) for number in range(1, len(leader.texts) + 1)]
    for file in files:
        if file.ids is None and len(file.texts) != len(ids):
            raise UserError(
                f"{file.path}: {len(file.texts)} lines, but {leader.path} has {len(ids)}; give one for each"
            )
        _check_ids(leader, file)
    for file in outputs:
        _check_ids(file, leader)
    wanted = set(ids)
    moved = [file.path for file in files if file.ids and [i for i in file.ids if i in wanted] != list(ids)]
    lines = [file.path for file in files if file.ids is None]
    if moved and lines:
        raise UserError(
            f"{lines[0]}: has no ids, and {leader.path} and {moved[0]} have theirs in different orders; "
            "give it as JSON Lines with id, or put them in one order"
        )
    return ids, [_in_order(file, ids) for file in files]


def _check_ids(one: Texts, other: Texts) -> None:
    """All ids of one file must be in the other."""
    missing = [] if one.ids is None or other.ids is None else sorted(set(one.ids) - set(other.ids))
    if missing:
        raise UserError(
            f"{other.path}: {len(missing)} ids of {one.path} are missing (the first: {missing[0]!r}); "
            "give files of the same sources"
        )


def _in_order(file: Texts, ids: Sequence[str]) -> Sequence[str]:
    if file.ids is None:
        return file.texts
    by_id = dict(zip(file.ids, file.texts, strict=True))
    return [by_id[identity] for identity in ids]
