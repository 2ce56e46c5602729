"""What an earlier run left: the complete lines of its output, and OUT.run.json with its settings and digests of its
inputs. A run continues only with the same settings and the same records."""

from __future__ import annotations

import dataclasses
import os
import time
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mbrace.errors import FORCE, UserError
from mbrace.io.atomic import read_at, replace_file
from mbrace.io.candidates import lines_of
from mbrace.io.compression import packing_of
from mbrace.io.reading import json_line, parse_json, to_json
from mbrace.records import Record

CHUNK_BYTES = 1 << 20
LINE_START = b'{"id":'  # the beginning of every line of JSON that we write
SUFFIX = ".run.json"
DIGESTS = "input_digests"
OPTIONS = "options"
COMMON = len(dataclasses.fields(Record))  # the fields of a record of any job
SYNC_SECONDS = 2.0  # how often the file is synced to the disk during a run
EARLY_NAMES = {"length_penalty": "length_alpha"}  # the names of settings in files of early versions


class WrittenLines:
    """The complete lines of an earlier run in a file, in order: `line` is the next one, None after the last; `kept`
    counts those before it. Without a file there are none."""

    def __init__(self, descriptor: int = -1) -> None:
        self.line: bytes | None = None
        self.kept = self._end = 0
        self._descriptor, self._lines = descriptor, _lines(descriptor)
        self._advance()

    def keep(self) -> None:
        """Keep this line and go to the next."""
        assert self.line is not None
        self.kept += 1
        self._end += len(self.line)
        self._advance()

    def drop_rest(self) -> None:
        """Remove the lines not kept from the file, where writing continues."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, self._end)
            os.lseek(self._descriptor, self._end, os.SEEK_SET)

    def _advance(self) -> None:
        self.line = next(self._lines, None)


def begins_like_our_output(descriptor: int, *, text: bool) -> bool:
    """Whether a file begins as our output does, however short it is; any other must not be cut off and continued."""
    head = read_at(descriptor, len(LINE_START), 0)
    return head != LINE_START if text else head == LINE_START[: len(head)]


def whole_lines(path: str) -> Iterator[bytes]:
    """The complete lines of a table or of a packed file, also of one that an early version of mbrace did not finish."""
    found = False
    try:
        for line in lines_of(path):
            if line.endswith(b"\n"):
                yield line
                found = True
    except UserError as error:
        if not (packing_of(path) and (found or os.path.exists(path + SUFFIX))):  # ours, however early it was cut off
            remedy = f"it is not an answer of mbrace that can be continued: use {FORCE} to start over"
            raise UserError(f"{error.message}; {remedy}") from error


def _lines(descriptor: int) -> Iterator[bytes]:
    position, rest = 0, b""
    while descriptor >= 0 and (chunk := read_at(descriptor, CHUNK_BYTES, position)):
        position += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"


class InputDigest:
    """A checksum of the content of the records answered so far, in order: it notices a wrong input, at little cost.

    It is remembered after 1, 2, 4, 8, ... records, after the last one answered, and after each that may be answered
    next: so however a run ends, the next one can check all records whose answers it finds. Records set aside do not
    count: they may be fixed.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        self._before = before or {}
        self._now = _Checksum()
        self._kept: list[_Checksum] = []
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
        self._now = self._expected.popleft()[1] if self.expects(record) else self._now.after(record)
        if self._now.number & (self._now.number - 1) == 0:
            self._kept.append(self._now)
        return self._before.get(str(self._now.number)) in (None, str(self._now))

    def finish(self) -> None:
        """No more answers follow."""
        self._expected.clear()

    def describe(self) -> dict[str, str]:
        """The remembered checksums, by the number of records."""
        last = [self._now] if self._now.number else []
        checksums = (*self._kept, *last, *(checksum for _, checksum in self._expected))
        return {str(checksum.number): str(checksum) for checksum in checksums}


class _Checksum(NamedTuple):
    """A checksum of the first `number` records, and how many bytes they have."""

    crc: int = 0
    size: int = 0
    number: int = 0

    def after(self, record: Record) -> _Checksum:
        """The checksum with one record more."""
        lists = map(_as_list, (record.hypotheses, record.pseudo_references, record.logprobs))
        more = [
            repr(getattr(record, each.name)) for each in dataclasses.fields(record)[COMMON:]
        ]  # such as a prompt's turns
        content = to_json([record.id, record.source, record.reference, *lists, *more])
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
