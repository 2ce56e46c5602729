"""Files of sources: one per line, or a TSV with `source TAB reference`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from mbrace.errors import RecordError, UserError
from mbrace.io.candidates import Bad, Item
from mbrace.io.reading import (
    byte_lines,
    count_lines,
    decode_line,
    parse_json,
    read_lines,
    shown_path,
    without_blank_end,
)
from mbrace.records import Location, Record, record_from


def read_sources(path: str) -> Iterator[tuple[str, str | None]]:
    """The sources of a file, each with its reference if there is one."""
    for item in source_items(path, make_item=source_item):
        if isinstance(item, Bad):
            raise item.error()
        yield item.source or "", item.reference


def source_items(
    path: str, references: str | None = None, *, make_item: Callable[[bytes, str, int, str], Item]
) -> Iterator[Item]:
    """Sources as records without candidates, as they are read; `make_item`, a job's method, makes an item of a line."""
    if references is not None and path != "-":
        ours, theirs = (sum(1 for _ in without_blank_end(byte_lines(name))) for name in (path, references))
        if ours > count_lines(references) or theirs > count_lines(path):
            raise UserError(f"{references}: has {theirs} lines but {path} has {ours}; they must match")
    lines = None if references is None else read_lines(references)
    with contextlib.closing(byte_lines(path)) as rows:
        for number, row in enumerate(rows, 1):
            item = make_item(row, shown_path(path), number, "")
            if lines is not None:
                reference = next(lines, None if row.strip() else "")
                if reference is None:
                    raise UserError(f"{references}: ends before line {number}, which {shown_path(path)} has")
                item = item if isinstance(item, Bad) else replace(item, reference=reference)
            yield item


def source_item(row: bytes, file: str, number: int, prefix: str = "", *, columns: bool = True) -> Item:
    """The source on a line; with `columns`, a .tsv has sources in its first column and references in its second.

    Its id is the line number, from 1 as for every other input, after `prefix` if there is one.
    """
    location = Location(file, number)
    jsonl = {".jsonl", ".ndjson"} & set(Path(file).suffixes)
    try:
        line = decode_line(row, location).removesuffix("\n").removesuffix("\r")
    except RecordError as error:
        return Bad(location, None, error.reason)
    if jsonl:
        return _json_source(row, location, f"{prefix}{number}" if prefix else number)
    source, reference = line, ""
    if columns and ".tsv" in Path(file).suffixes:
        source, reference = [*line.split("\t"), ""][:2]
    identity = f"{prefix}{number}" if prefix else number
    return Record((), id=identity, source=source, reference=reference or None, location=location)


def _json_source(row: bytes, location: Location, identity: str | int) -> Item:
    """The source of a line of JSON, with its id and reference where it has them."""
    try:
        fields = parse_json(row, location)
        if not isinstance(fields, dict) or not isinstance(fields.get("source"), str):
            raise RecordError(
                location, "no `source` in this line of JSON; give one, or plain text in a file of that name"
            )
        return replace(
            record_from(fields | {"hypotheses": [""]}, location=location, default_id=identity), hypotheses=()
        )
    except RecordError as error:
        return Bad(location, None, error.reason)
