"""Reading candidates: which files, and JSON Lines, Parquet or flat text files as one record per source."""

from __future__ import annotations

import collections
import glob
import itertools
import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from mbrace.errors import RecordError, UserError, check_whole, plain
from mbrace.io.folders import Manifest
from mbrace.io.parquet import parquet_rows
from mbrace.io.reading import (
    byte_lines,
    expand_url,
    json_line,
    parse_json,
    read_lines,
    shown_path,
    without_blank_end,
)
from mbrace.records import Location, Record, digest, record_from

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


class Bad(NamedTuple):
    """An input line without an answer, and why."""

    location: Location
    id: str | int | None
    reason: str

    def error(self) -> UserError:
        """The error to raise where it stops a run."""
        return RecordError(self.location, self.reason)

    def to_line(self) -> bytes:
        """Its line in OUT.errors.jsonl."""
        fields = {"file": self.location.file, "line": self.location.line, "id": self.id, "reason": plain(self.reason)}
        return json_line(fields)


Item: TypeAlias = "Record | Bad"
Row: TypeAlias = "bytes | dict[str, Any]"  # a line of JSON Lines or text, or a row of Parquet


def location_of(item: Item) -> Location:
    """Where an item was read; for a record that a caller made, its id and line 0."""
    return item.location or Location(f"record {item.id!r}", 0)


def bad_from(record: Record, error: Exception) -> Bad:
    """What to set aside for a record that failed with `error`."""
    if isinstance(error, RecordError):
        return Bad(location_of(record), record.id, error.args[1])
    reason = error.message if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return Bad(location_of(record), record.id, reason)


def repeated_id(location: Location, identity: str | int | None) -> Bad:
    """What to set aside for a record whose id an earlier one has."""
    return Bad(location, identity, f"id: {identity!r} is not unique; give each record its own id")


class SeenIds:
    """The ids so far: a repeated one is an error, since random numbers and resuming depend on the id.

    Numbers that count up (line numbers are the default) take no memory. Of others, a 64-bit digest is kept, in a hash
    table that is at most half full: among a hundred million ids, the chance that any two are mistaken for equal is
    below one in a thousand.
    """

    def __init__(self) -> None:
        self._first, self._next = 0, 0  # ids first, first + 1, ..., next - 1 were seen
        self._table = array("Q", bytes(8 * 1024))  # open addressing; 0 marks a free slot
        self._count = 0

    def add(self, identity: str | int) -> bool:
        """Whether the id is new."""
        if isinstance(identity, int):
            if self._first == self._next:
                self._first = self._next = identity
            if self._first <= identity < self._next:
                return False
            if identity == self._next:
                self._next += 1
                return not (self._count and self._table[self._slot(digest(identity) or 1)])
        value = digest(identity) or 1
        slot = self._slot(value)
        if self._table[slot]:
            return False
        self._table[slot] = value
        self._count += 1
        if 2 * self._count > len(self._table):
            self._grow()
        return True

    @property
    def bytes(self) -> int:
        """The memory that its table takes."""
        return len(self._table) * self._table.itemsize

    def _slot(self, value: int) -> int:
        """The slot that holds the digest, or the free one where it belongs."""
        table, mask = self._table, len(self._table) - 1
        slot = value & mask
        while table[slot] not in (0, value):
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        old, self._table = self._table, array("Q", bytes(16 * len(self._table)))
        for value in old:
            if value:
                self._table[self._slot(value)] = value


def item_from(row: Row, file: str, number: int, prefix: str = "") -> Item:
    """The record of a row, or what is wrong with it; `prefix` begins an id that the row does not give."""
    location = Location(file, number)
    identity = None
    try:
        if isinstance(row, bytes) and row.isspace():
            raise RecordError(location, "empty line; give one JSON object per line")
        fields = parse_json(row, location) if isinstance(row, bytes) else row
        if isinstance(fields, dict) and type(fields.get("id")) in (str, int):
            identity = fields["id"]
        return record_from(fields, location=location, default_id=f"{prefix}{number}" if prefix else number)
    except RecordError as error:
        return Bad(location, identity, error.reason)


def read_items(
    paths: Sequence[str], make_item: Callable[[Row, str, int, str], Item] = item_from, *, records: bool = True
) -> Iterator[Item]:
    """Records of files, one after another, checked as they are read; a bad one is a `Bad`.

    An id that is not given is the line number, or FILE:LINE where there are several files. `make_item` makes an item of
    a row: the method of a job, or by default a candidate record. Without `records`, rows are lines of text, and blank
    ones at the end of a file count.
    """
    seen = SeenIds()
    for path, prefix in zip(paths, id_prefixes(paths), strict=True):
        rows = _without_draws(without_blank_end(rows_of(path)), path) if records else rows_of(path)
        for number, row in enumerate(rows, 1):
            item = make_item(row, shown_path(path), number, prefix)
            yield item if isinstance(item, Bad) or seen.add(item.id) else repeated_id(location_of(item), item.id)


# How a line of `--save-draws` begins, also one that was cut off when a run was killed.
_DRAWS = re.compile(rb'\{"key":"[0-9a-f]*(?:$|"(?:$|,"answer":))')


def _without_draws(rows: Iterator[Row], path: str) -> Iterator[Row]:
    """The rows of a file. A file of paid draws (`--save-draws`) becomes a record for each prompt, whose samples are the
    whole answers among its draws."""
    first = next(rows, None)
    if first is None:
        return
    rows = itertools.chain([first], rows)
    if not (isinstance(first, bytes) and _DRAWS.match(first)):
        yield from rows
        return
    found: dict[str | int, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows, 1):
        try:
            saved = json.loads(bytes(row))["answer"]  # type: ignore[arg-type]
            saved["choices"] = [(str(each["text"]), bool(each["is_cut"]), each["logprob"]) for each in saved["choices"]]
            saved["first"] = int(saved["first"])
            found.setdefault(saved["id"], []).append(saved | {"source": saved["source"]})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if not isinstance(error, json.JSONDecodeError):  # a line that was cut off
                where = Location(shown_path(path), number)
                raise RecordError(
                    where, "not saved draws, though the file begins with them; remove this line"
                ) from None
    for name, draws in found.items():
        draws.sort(key=lambda saved: saved["first"])
        usable = [each for saved in draws for each in saved["choices"] if each[0] and not each[1]]
        fields = {"id": name, "source": draws[0]["source"], "samples": [text for text, _, _ in usable]}
        if usable and all(logprob is not None for _, _, logprob in usable):
            fields["logprobs"] = [logprob for _, _, logprob in usable]
        yield json_line(fields)


def read_records(path: str) -> Iterator[Record]:
    """Records of one file; a bad one is an error."""
    for item in read_items([path]):
        if isinstance(item, Bad):
            raise item.error()
        yield item


def rows_of(path: str) -> Iterator[Row]:
    """The lines of a JSON Lines or text file as bytes, or the rows of a Parquet file."""
    return parquet_rows(path) if path.endswith(".parquet") else byte_lines(path)


def lines_of(path: str) -> Iterator[bytes]:
    """The lines of a JSON Lines file, or the rows of a Parquet file as such lines."""
    return (row if isinstance(row, bytes) else json_line(row) for row in rows_of(path))


def id_prefixes(paths: Sequence[str]) -> list[str]:
    """What default ids start with: nothing for one file; for several, each file's path below the folder they share."""
    if len(paths) == 1:
        return [""]
    names = [path.replace("://", "/") for path in paths]
    if len(set(map(os.path.isabs, names))) > 1:  # relative and absolute paths, or paths and URLs
        names = [
            "/" + name if "://" in path else os.path.abspath(name) for path, name in zip(paths, names, strict=True)
        ]
    folder = os.path.commonpath([os.path.dirname(name) or "." for name in names])
    return [os.path.relpath(name, folder) + ":" for name in names]


def read_flat(
    hypotheses: str, references: str | None, *, num_candidates: int, num_references: int | None, source: str | None
) -> Iterator[Record]:
    """Records of flat text files: `num_candidates` lines per source in one file, `num_references` in the other.

    Without a file of references, the hypotheses are also the pseudo-references.
    """
    per_source = num_candidates if num_references is None else num_references
    for name, value in (("num_candidates", num_candidates), ("num_references", per_source)):
        check_whole(name, value, least=1)
    files = [(hypotheses, num_candidates), (references, per_source), (source, 1)]
    given = [(path, size) for path, size in files if path is not None]
    sources: Iterable[Sequence[list[str]]] = _sources(given)
    if all(os.path.isfile(path) for path, _ in given):  # wrong numbers of lines are refused before the first answer
        collections.deque(_sources(given), maxlen=0)
    else:  # a stream is read only once
        sources = list(sources)
    for number, groups in enumerate(sources, 1):
        pool = groups[0] if references is None else groups[1]
        text = None if source is None else groups[-1][0]
        location = Location(hypotheses, (number - 1) * num_candidates + 1)
        yield Record(groups[0], pool, id=number, source=text, location=location)


def _sources(files: Sequence[tuple[str, int]]) -> Iterator[Sequence[list[str]]]:
    """For each source, its lines in every file, which must have as many sources as the first."""
    together = itertools.zip_longest(*itertools.starmap(_groups, files))
    for number, groups in enumerate(without_blank_end(together, _all_blank), 1):
        for (path, _), group in zip(files[1:], groups[1:], strict=True):
            first = files[0][0]
            if groups[0] is not None and group is None:
                raise UserError(f"{path}: ends before source {number}, which {first} has; give both for every source")
            if groups[0] is None and group is not None:
                raise UserError(
                    f"{path}: has more sources than {first}, which has {number - 1}; give both for every source"
                )
        yield groups


def _all_blank(groups: Sequence[Sequence[str] | None]) -> bool:
    """Whether all files have only blank lines, or no lines, for a source."""
    return not any(line.strip() for group in groups for line in group or ())


def _groups(path: str, size: int) -> Iterator[list[str]]:
    lines, number = read_lines(path), 0
    while group := list(itertools.islice(lines, size)):
        number += 1
        if len(group) < size:
            if not any(map(str.strip, group)):  # blank lines at the end
                return
            line = (number - 1) * size + len(group)
            raise UserError(f"{path}:{line}: ends inside source {number}; lines must be a multiple of {size}")
        yield group


def expand(patterns: Paths) -> list[str]:
    """The files that patterns match, those of each pattern sorted by name; for a folder of shards, those in its
    manifest."""
    paths: list[str] = []
    for given in [patterns] if isinstance(patterns, str | os.PathLike) else patterns:
        pattern = os.fspath(given)
        if pattern == "-" or (os.path.exists(pattern) and not os.path.isdir(pattern)):
            found = [pattern]
        elif os.path.isdir(pattern):
            found = list(Manifest.read(pattern).paths(complete=True))
        elif not any(character in pattern for character in "*?["):
            found = [pattern]  # opening it says what is wrong
        elif "://" in pattern:
            found = expand_url(pattern)
        else:
            found = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
        if not found:
            raise UserError(f"{pattern}: no file matches; give a file or a pattern that matches some")
        paths += found
    repeated = next((path for path in paths if paths.count(path) > 1), None) if len(set(paths)) < len(paths) else None
    if repeated is not None:
        raise UserError(f"{repeated}: given twice; give each input once")
    return paths


def check_stdin(paths: Iterable[str]) -> None:
    """Refuse to read standard input as two inputs: each would get a part of its lines."""
    if sum(path == "-" for path in paths) > 1:
        raise UserError("-: standard input is given twice; give a file for one of them")
