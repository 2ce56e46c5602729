"""Continuing an earlier run: which records it answered or set aside, and trying again those that it set aside."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mbrace.errors import FORCE, RESUME, Parameter, UserError
from mbrace.io.atomic import replace_file
from mbrace.io.candidates import Bad, Item, location_of
from mbrace.io.output import Output, OutputFiles
from mbrace.io.reading import json_line, parse_json
from mbrace.io.resume import DIGESTS
from mbrace.records import Location, Record

if TYPE_CHECKING:
    from mbrace.jobs.run import Outcome, Worker


class SetAside(NamedTuple):
    """An item that was set aside, and its position among all items. It may be answered too: if a retry was killed after
    writing the answer and before removing it from the errors."""

    position: int
    item: Item
    is_answered: bool


def skip_answered(
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
                return itertools.chain([item], source)
            errors.keep()
            is_answered = not output.text and _answers(answers.line, item, output)  # a retry was killed
            set_aside(SetAside(position, item, is_answered))
            if output.text:
                answers.keep()
            if not is_answered:
                continue
        if answers.line is None:
            return itertools.chain([item], source)
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


def retry_set_aside(
    worker: Worker,
    items: Iterable[Item],
    output: Output,
    until: Callable[[Iterator[Item]], Iterator[Item]],
) -> int:
    """Give what `output` has set aside to a worker again; returns how many of them it answered.

    `until` ends the items early. The files are replaced by those that a run without the failures would have written;
    `output` itself is only read. `items` are read twice: once here, and once by the run that continues.
    """
    if iter(items) is items:
        raise UserError(f"{Parameter('on_error', 'retry')}: reads the input twice; give a file, not standard input")
    set_aside: list[SetAside] = []
    skip_answered(items, output, set_aside.append)
    if not set_aside:
        return 0
    to_retry = [each for each in set_aside if not each.is_answered]
    results: dict[int, Outcome] = {}
    failure: UserError | None = None
    try:
        made = worker(until(each.item for each in to_retry), skip=True)
        for each, outcome in zip(to_retry, made, strict=False):
            results[each.position] = outcome
    except UserError as error:  # raised below, after the answers made so far are saved
        failure = error
    files, text, kept = output.files, output.text, output.written.kept
    errors = list(_errors(files, set_aside, results))
    _forget_digests(files)
    with open(files.lines, "rb") as file:
        before = itertools.islice(file, kept)
        output.rewrite(_merged(before, {each.position for each in to_retry}, results, text=text))
    if errors:
        replace_file(files.errors, b"".join(errors))
    else:
        os.unlink(files.errors)
    if failure is not None:
        raise failure
    return sum(bad is None for _, bad in results.values())


def _merged(
    lines: Iterator[bytes], set_aside: set[int], results: Mapping[int, Outcome], *, text: bool
) -> Iterator[bytes]:
    """The lines of an output, with those of new results at their positions. Text output has a line for each record
    set aside."""
    last = max(set_aside, default=-1)
    for position in itertools.count():
        line = None if position in set_aside and not text else next(lines, None)
        if position in results:
            line = results[position][0]
        if line is not None:
            yield line
        elif position > last:
            return


def _errors(files: OutputFiles, set_aside: Sequence[SetAside], results: Mapping[int, Outcome]) -> Iterator[bytes]:
    """The lines about records that stay set aside."""
    with open(files.errors, "rb") as file:
        for each, line in zip(set_aside, file, strict=False):
            if each.position in results:
                bad = results[each.position][1]
                if bad is not None:
                    yield bad.to_line()
            elif not each.is_answered:  # the run ended before it was tried
                yield line


def _forget_digests(files: OutputFiles) -> None:
    """Delete the input digests, since other records are answered now: the run that continues computes them again."""
    file = Path(files.run_file)
    if file.exists():
        settings = parse_json(file.read_bytes(), file)
        if isinstance(settings, dict) and settings.pop(DIGESTS, None) is not None:
            replace_file(file, json_line(settings))
