"""Skips the records that an earlier run answered or set aside; its files must match the input, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mbrace.errors import FORCE, RESUME, UserError
from mbrace.io.candidates import Bad, Item, location_of
from mbrace.io.output import Output
from mbrace.io.reading import parse_json
from mbrace.records import Location, Record


class SetAside(NamedTuple):
    """An item that was set aside, and its position among all items. It may be answered too: if a retry was killed after
    writing the answer and before removing it from the errors."""

    position: int
    item: Item
    is_answered: bool


def unanswered(
    items: Iterable[Item], output: Output, set_aside: Callable[[SetAside], None] = lambda item_set_aside: None
) -> Iterator[Item]:
    """The items after those that an earlier run answered or set aside; the files must match the input, in order.

    `set_aside` is called for each item that was set aside.
    """
    source = iter(items)
    answers, errors = output.written, output.written_errors
    if answers.line is None and errors.line is None:
        return source
    for position, item in enumerate(source):
        if errors.line is not None and _location(errors.line, output) == location_of(item):
            if output.text and answers.line is None:
                return _after(item, source)
            errors.keep()
            is_answered = not output.text and _answers(answers.line, item, output)  # a retry was killed
            set_aside(SetAside(position, item, is_answered))
            if output.text:
                answers.keep()
            if not is_answered:
                continue
        if answers.line is None:
            return _after(item, source)
        _check_same(item, answers.line, answers.kept + 1, output)
        if isinstance(item, Record) and not output.note_answered(item):
            raise UserError(
                f"{item.where}: {RESUME}: {output.path} was made from other records up to here, with the same "
                f"ids but another content; give the input the output was made from, or {FORCE} to start over"
            )
        answers.keep()
    if answers.line is not None:
        raise UserError(
            f"{output.path}: {RESUME}: has more answers than the input has records; "
            f"give the input it was made from, or {FORCE} to start over"
        )
    return source


def _answers(line: bytes | None, item: Item, output: Output) -> bool:
    """Whether a line of JSON is the answer to an item."""
    if line is None or not isinstance(item, Record):
        return False
    fields = parse_json(line, output.path)
    return isinstance(fields, dict) and fields.get("id") == item.id


def _after(item: Item, source: Iterator[Item]) -> Iterator[Item]:
    yield item
    yield from source


def _check_same(item: Item, line: bytes, number: int, output: Output) -> None:
    if output.text and isinstance(item, Record):
        return
    where = f"{output.path}:{number}"
    fields = {} if output.text else parse_json(line, where)
    identity = fields.get("id") if isinstance(fields, dict) else None
    if not output.text and not isinstance(identity, (str, int)):
        raise UserError(f"{where}: {RESUME}: not an answer of mbrace; use {FORCE} to replace the file")
    theirs = item.id if isinstance(item, Record) else None
    if identity != theirs and not (output.path.endswith(".parquet") and str(identity) == str(theirs)):
        if identity == 0 and theirs == 1:
            raise UserError(
                f"{where}: {RESUME}: made by an earlier version of mbrace, which numbered sources from 0, not 1; "
                f"finish it with that version, or use {FORCE} to start over"
            )
        raise UserError(
            f"{location_of(item)}: {RESUME}: {where} answers record {identity!r} where the input has "
            f"{'a bad record' if isinstance(item, Bad) else repr(theirs)}; "
            f"give the input the output was made from, or {FORCE} to start over"
        )
    made_of = (fields["source"], fields.get("reference")) if "source" in fields else None  # only candidate files say
    if made_of is not None and isinstance(item, Record) and made_of != (item.source, item.reference):
        raise UserError(f"{where}: {RESUME}: not made of {item.where}; give the same sources, or {FORCE} to start over")


def _location(line: bytes, output: Output) -> Location:
    where = output.files.errors
    fields = parse_json(line, where)
    if not isinstance(fields, dict):
        raise UserError(f"{where}: {RESUME}: not written by mbrace; use {FORCE} to start over")
    return Location(str(fields.get("file")), int(fields.get("line") or 0))
