"""OUT.run.json: the settings and inputs of an output, next to OUT, which is continued only with the same ones."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from mbrace.errors import UserError
from mbrace.io.atomic import replace_file
from mbrace.io.jsonl import json_line, parse_json, to_json
from mbrace.io.same_settings import refuse_other_settings
from mbrace.records import Record

SUFFIX = ".run.json"
DIGESTS = "input_digests"
OPTIONS = "options"
SAVE_SECONDS = 2.0  # the least time between two saves while a run goes on


class InputDigest:
    """A checksum of the content of the records answered so far, in order: it notices a wrong input, at little cost.

    It is remembered after 1, 2, 4, 8, ... records and after the last, so that an output that was cut off, or grew after
    the last save, can still be checked up to one of these points. Records set aside do not count: they may be fixed.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        self._before = before or {}
        self._checksum, self._bytes, self._count = 0, 0, 0
        self._remembered: dict[str, str] = {}

    def add(self, record: Record) -> bool:
        """Count a record; False if an earlier run had other content up to this record."""
        listed = [record.hypotheses, record.pseudo_references, record.logprobs]
        lists = [_as_list(values) for values in listed]
        content = to_json([record.id, record.source, record.reference, *lists])
        self._checksum, self._bytes = zlib.crc32(content, self._checksum), self._bytes + len(content)
        self._count += 1
        if self._count & (self._count - 1) == 0:
            self._remembered[str(self._count)] = self._digest()
        before = self._before.get(str(self._count))
        return before is None or before == self._digest()

    def describe(self) -> dict[str, str]:
        """The remembered digests, by the number of records."""
        return {**self._remembered, str(self._count): self._digest()} if self._count else {}

    def _digest(self) -> str:
        return f"{self._checksum:08x}-{self._bytes:x}"


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
        self._saved = time.monotonic()

    def check(self) -> None:
        """Refuse to continue an output that was made with other settings, or with unknown ones."""
        if not os.path.exists(self.path):
            raise UserError(
                f"{self.path}: missing, so {self._output} cannot be continued: it says what the output was "
                "made with (early versions of mbrace deleted it at the end of a run); "
                "give another output, or force=True to start over"
            )
        with open(self.path, "rb") as file:
            before = parse_json(file.read(), self.path)
        remedy = "give the same options, another output, or force=True to start over"
        besides = (OPTIONS, DIGESTS)
        refuse_other_settings(before, self._settings, file=self._output, remedy=remedy, besides=besides)
        self._options = {OPTIONS: before[OPTIONS]} if OPTIONS in before else {}  # those it was begun with
        digests = before.get(DIGESTS)
        self.inputs = InputDigest(digests if isinstance(digests, dict) else None)

    def save(self) -> None:
        """Replace the file in one step."""
        replace_file(self.path, json_line({**self._settings, **self._options, DIGESTS: self.inputs.describe()}))
        self.is_ours, self._saved = True, time.monotonic()

    def save_if_due(self) -> None:
        """Save now and then: after a crash, the input is checked up to the last save."""
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()
