"""What an earlier run left: the complete lines of its output, and OUT.run.json with its settings and digests of its
inputs. A run continues only with the same settings and the same records."""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mbrace.errors import FORCE, UserError
from mbrace.io.atomic import read_at, replace_file
from mbrace.io.compression import FIRST_BYTES, LINES_PER_MEMBER, DamagedError, Unpacker
from mbrace.io.parquet import parquet_rows
from mbrace.io.reading import json_line, parse_json, to_json
from mbrace.records import Record

CHUNK_BYTES = 1 << 20
LINE_START = b'{"id":'  # the beginning of every line of JSON that we write
SUFFIX = ".run.json"
DIGESTS = "input_digests"
OPTIONS = "options"
SYNC_SECONDS = 2.0  # how often the file is synced to the disk while a run goes on
EARLY_NAMES = {"length_penalty": "length_alpha"}  # the names of settings in files of early versions


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


class InputDigest:
    """A checksum of the content of the records answered so far, in order: it notices a wrong input, at little cost.

    It is remembered after 1, 2, 4, 8, ... records, after each one whose answer may not be written yet, and after the
    last: so however a run ends, the next one can check all records whose answers it finds. Records set aside do not
    count: they may be fixed.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        self._before = before or {}
        self._now = _Checksum()
        self._kept: list[_Checksum] = []
        self._waiting: deque[_Checksum] = deque()  # of records whose answers may not be written yet
        self._expected: deque[tuple[Record, _Checksum]] = deque()  # of records without an answer

    def expects(self, record: Record) -> bool:
        """Whether this is the next record that `expect` has counted."""
        return bool(self._expected) and self._expected[0][0] is record

    def expect(self, records: Iterable[Record]) -> None:
        """Compute the checksums after the next records, if all of them are answered."""
        self._expected.clear()
        last = self._now
        for record in records:
            last = last.after(record)
            self._expected.append((record, last))

    def add(self, record: Record) -> bool:
        """Count a record; False if an earlier run had other content up to this record."""
        is_new = self.expects(record)
        self._now = self._expected.popleft()[1] if is_new else self._now.after(record)
        self._waiting.append(self._now)
        if not is_new and len(self._waiting) > LINES_PER_MEMBER:  # a compressed file is cut off after a full member
            self._waiting.popleft()
        if self._now.number & (self._now.number - 1) == 0:
            self._kept.append(self._now)
        return self._before.get(str(self._now.number)) in (None, str(self._now))

    def forget(self, *, waiting: int) -> None:
        """The answers to all but the last `waiting` records are written."""
        while self._waiting and self._waiting[0].number < self._now.number - waiting:
            self._waiting.popleft()

    def finish(self) -> None:
        """All answers are written, and no more follow."""
        self.forget(waiting=0)
        self._expected.clear()

    def describe(self) -> dict[str, str]:
        """The remembered checksums, by the number of records."""
        checksums = (*self._kept, *self._waiting, *(checksum for _, checksum in self._expected))
        return {str(checksum.number): str(checksum) for checksum in checksums}


class _Checksum(NamedTuple):
    """A checksum of the first `number` records, and how many bytes they have."""

    crc: int = 0
    size: int = 0
    number: int = 0

    def after(self, record: Record) -> _Checksum:
        """The checksum with one record more."""
        lists = map(_as_list, (record.hypotheses, record.pseudo_references, record.logprobs))
        content = to_json([record.id, record.source, record.reference, *lists])
        return _Checksum(zlib.crc32(content, self.crc), self.size + len(content), self.number + 1)

    def __str__(self) -> str:
        return f"{self.crc:08x}-{self.size:x}"


def _as_list(values: object) -> list[Any] | None:
    if type(values) is list:
        return values
    return list(values) if isinstance(values, Sequence) else None


class RunFile:
    """OUT.run.json of the output `output`: its `settings`, and `inputs`, the digest of the records it answers.

    `options` are those that the command line was given, by name: `--config OUT.run.json` gives them again.
    """

    def __init__(self, output: str, settings: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> None:
        self.path, self.is_ours = output + SUFFIX, False  # whether this run has written it
        self.inputs = InputDigest()
        self._output, self._settings = output, settings
        self._options = {} if options is None else {OPTIONS: dict(options)}
        self._synced = time.monotonic()

    def check(self) -> None:
        """Refuse to continue an output that was made with other settings, or with unknown ones."""
        if not os.path.exists(self.path):
            raise UserError(
                f"{self.path}: missing, so {self._output} cannot be continued: it says what the output was "
                "made with (early versions of mbrace deleted it at the end of a run); "
                f"give another output, or {FORCE} to start over"
            )
        with open(self.path, "rb") as file:
            before = parse_json(file.read(), self.path)
        remedy = f"give the same options, another output, or {FORCE} to start over"
        refuse_other_settings(before, self._settings, file=self._output, remedy=remedy, ignored=(OPTIONS, DIGESTS))
        self._options = {OPTIONS: before[OPTIONS]} if OPTIONS in before else {}  # those it was begun with
        digests = before.get(DIGESTS)
        self.inputs = InputDigest(digests if isinstance(digests, dict) else None)

    def save(self, *, durable: bool = True) -> None:
        """Replace the file in one step. One that need not be `durable` survives the end of the process, and is synced
        to the disk now and then only."""
        durable = durable or time.monotonic() - self._synced > SYNC_SECONDS
        fields = {**self._settings, **self._options, DIGESTS: self.inputs.describe()}
        replace_file(self.path, json_line(fields), durable=durable)
        self.is_ours = True
        if durable:
            self._synced = time.monotonic()


def refuse_other_settings(
    before: Any,
    now: Mapping[str, Any],
    *,
    file: object,
    remedy: str,
    made: str = "was made",
    data: Sequence[str] = (),
    ignored: Collection[str] = (),
) -> None:
    """Refuse to continue `file`, which was made with the settings `before`, if those of `now` are others.

    Settings are compared as JSON values. Those named in `data` are digests or long lists, whose values mean nothing
    to a reader: the message gives only their names. Keys in `ignored` are not compared. An option
    that one of the two lacks, because it is newer or not described where it is not in use, is the same if the other
    does not use it.
    """
    if not isinstance(before, dict):
        raise UserError(f"{file}: not written by mbrace; {remedy}")
    late_names = {early: name for name, early in EARLY_NAMES.items()}
    before = {late_names.get(name, name): value for name, value in before.items() if name not in ignored}
    now = parse_json(to_json(now), file)
    others = [
        f"other data ({name})" if name in data else _difference(name, before, now)
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name) and (name in before or now[name]) and (name in now or before[name])
    ]
    if others:
        more = [f"{len(others) - 3} more"] if len(others) > 3 else []
        raise UserError(f"{file}: {made} with {' and '.join(others[:3] + more)}; {remedy}")


def _difference(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Two values of a setting in words; None is the value of an option that was not given."""
    option = name.replace("_", "-")
    made = f"{option} {before.get(name)!r}" if before.get(name) is not None else f"the default {option}"
    wanted = "the default" if now.get(name) is None else repr(now[name])
    return f"{made if name in before else f'no {option}'}, not {wanted if name in now else 'without it'}"
