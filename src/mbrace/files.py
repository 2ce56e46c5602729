"""Reading candidates: JSON Lines with one record a source, or flat text files with N candidates a source."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import itertools
import json
import lzma
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import orjson

from mbrace.errors import UserError
from mbrace.records import Record, record_from


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """A file for reading bytes: `-` is stdin; `.gz`, `.xz` and `.bz2` are unpacked."""
    try:
        if path == "-":
            yield sys.stdin.buffer
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
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError(f"{path}: damaged or cut off ({error}); make the file again") from error


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
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error}); give one JSON object a line") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def to_json(value: Any) -> bytes:
    """One JSON line without its end; lone surrogates are written as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


class Seen:
    """Ids so far: a repeated one is an error, since random numbers and resuming go by id. Keeps 64 bits an id."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def add(self, record: Record) -> None:
        """Refuse the record if its id was there before."""
        mark = hash((type(record.id), record.id))
        if mark in self._hashes:
            raise UserError(f"{record.where}: id: {record.id!r} is not unique; give each record its own id")
        self._hashes.add(mark)


def read_records(path: str, *, live: bool = False) -> Iterator[Record]:
    """Records of a JSON Lines file, checked one by one as they are read; `live` allows no pseudo-references."""
    seen = Seen()
    with open_input(path) as file:
        for number, line in enumerate(file, 1):
            where = f"{name_of(path)}:{number}"
            if line.isspace():
                raise UserError(f"{where}: empty line; give one JSON object a line")
            record = record_from(parse_json(line, where), where=where, default_id=number, live=live)
            seen.add(record)
            yield record


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


def skip(records: Iterable[Record], ids: Iterable[str | int | None]) -> Iterator[Record]:
    """The records after those whose ids were already answered; the two must agree, in order (None: not known)."""
    source = iter(records)
    for done in ids:
        record = next(source, None)
        if record is None:
            raise UserError(
                "--resume: the output has more answers than the input has records; use --force to start over"
            )
        if done is not None and record.id != done:
            raise UserError(
                f"{record.where}: --resume: the output answers record {done!r} where the input has {record.id!r}; "
                "give the input the output was made from, or --force to start over"
            )
    return source
