"""One text per source, from plain lines, JSON Lines or Parquet, paired by id where files have ids; sentence pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from mbrace.answers import prompt_of
from mbrace.errors import UserError, counted, warn
from mbrace.io.compression import without_packing
from mbrace.io.parquet import parquet_rows
from mbrace.io.reading import parse_json, read_lines, shown_path
from mbrace.records import kind

PROMPTS = ("prompt", "messages")  # fields of a record of an answer, of which one is there


@dataclass(frozen=True)
class Texts:
    """The texts of a file, one per source; `ids` is None where it has none, and its lines are taken in order."""

    path: str
    texts: Sequence[str]
    ids: Sequence[str] | None = None
    are_answers: bool = False  # to prompts, which their records have


def read_texts(path: str, field: str) -> Texts:
    """The lines of a text file, or `field` and `id` of the records of a JSON Lines or Parquet file.

    A byte order mark is not part of the first text. Packed files are unpacked. The `source` of an answer to a prompt is
    its `prompt`, or the last of its `messages`.
    """
    name = shown_path(path)
    if path.endswith(".parquet"):
        rows: list[tuple[int, Any]] = list(enumerate(parquet_rows(path, ["id", field, *PROMPTS]), 1))
    else:
        lines = list(read_lines(path))
        if lines and not _is_json(path, lines[0], field):
            return Texts(name, lines)
        rows = [(n, parse_json(line.encode(), f"{name}:{n}")) for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UserError(f"{name}: the file is empty; give one line per source")
    texts = [_text_of(row, field, f"{name}:{number}") for number, row in rows]
    are_answers = any(row.get(each) is not None for _, row in rows for each in PROMPTS)
    return Texts(name, texts, _ids_of(rows, name), are_answers)


def _is_json(path: str, first: str, field: str) -> bool:
    if without_packing(path).endswith((".jsonl", ".ndjson", ".json")):
        return True
    try:  # a file whose first line is such an object is JSON Lines under another name, or from a pipe
        row = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and field in row


def _text_of(row: Any, field: str, where: str) -> str:
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object with `{field}`, got {kind(row)}")
    text = source_in(row) if field == "source" else row.get(field)
    if text is None:
        raise UserError(f"{where}: {field}: missing; give records with a string `{field}`")
    if not isinstance(text, str):
        raise UserError(f"{where}: {field}: expected a string, got {kind(text)}")
    return text


def source_in(row: Mapping[str, Any]) -> Any:
    """The source of a record; of an answer to a prompt, its `prompt` or the last of its `messages`."""
    found = row.get("source")
    if found is None and isinstance(row.get("messages"), list):
        return prompt_of(row["messages"], 0).source
    return row.get("prompt") if found is None else found


def _ids_of(rows: Sequence[tuple[int, Any]], name: str) -> list[str] | None:
    """The ids as strings, refused if one is repeated; None where no record has one. As elsewhere, a record without one
    has its line number, and 7 and "7" are two ids, of which the second is then shown in quotes."""
    if all(row.get("id") is None for _, row in rows):
        return None
    given = [number if row.get("id") is None else row["id"] for number, row in rows]
    numbers = {str(identity) for identity in given if type(identity) is int}
    first: dict[str, int] = {}
    for (number, _), identity in zip(rows, given, strict=True):
        if type(identity) not in (str, int):
            raise UserError(f"{name}:{number}: id: expected a string or a whole number, got {kind(identity)}")
        shown = repr(identity) if identity in numbers else str(identity)
        if shown in first:
            raise UserError(f"{name}:{number}: id: {identity!r} is already the id of line {first[shown]}")
        first[shown] = number
    return list(first)


def align_texts(outputs: Sequence[Texts], others: Sequence[Texts]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """The ids, and the texts of all files in their order: by id where a file has ids, line by line where it has none.

    `outputs` must have the same ids; `others`, such as references and sources, may have more: a warning says so.
    """
    outputs, others = _without_surplus(outputs, others)
    files = [*outputs, *others]
    leader = next((file for file in files if file.ids is not None), files[0])
    ids = leader.ids or [str(number) for number in range(1, len(leader.texts) + 1)]
    for file in files:
        if file.ids is None and len(file.texts) != len(ids):
            raise UserError(
                f"{file.path}: {counted(len(file.texts), 'line')}, but {leader.path} has {len(ids)}; give one for each"
            )
        _check_ids(leader, file)
    for file in outputs:
        _check_ids(file, leader)
    _warn_of_unused_records(leader, others, len(ids))
    wanted = set(ids)
    reordered = [file.path for file in files if file.ids and [i for i in file.ids if i in wanted] != list(ids)]
    lines = [file.path for file in files if file.ids is None]
    if reordered and lines:
        raise UserError(
            f"{lines[0]}: has no ids, and {leader.path} and {reordered[0]} have theirs in different orders; "
            "give it as JSON Lines with id, or put them in one order"
        )
    return ids, [_in_order(file, ids) for file in files]


def _without_surplus(outputs: Sequence[Texts], others: Sequence[Texts]) -> tuple[list[Texts], list[Texts]]:
    """The files without blank lines at the end that other files do not have; any other empty line is a text."""
    count = min(len(file.texts) for file in (*outputs, *others) if file.ids is None or file in outputs)

    def cut(file: Texts) -> Texts:
        surplus = [] if file.ids is not None else file.texts[count:]
        return replace(file, texts=file.texts[:count]) if surplus and not any(map(str.strip, surplus)) else file

    return [*map(cut, outputs)], [*map(cut, others)]


def _check_ids(one: Texts, other: Texts) -> None:
    """All ids of one file must be in the other."""
    missing = [] if one.ids is None or other.ids is None else sorted(set(one.ids) - set(other.ids))
    if missing:
        raise UserError(
            f"{other.path}: {counted(len(missing), 'id')} of {one.path} not there (the first: {missing[0]!r}); "
            "give files of the same sources"
        )


def _warn_of_unused_records(leader: Texts, others: Sequence[Texts], count: int) -> None:
    """Files of different sources may have the same ids, such as line numbers, and would then be paired wrongly."""
    for file in others:
        if file.ids is not None and len(file.ids) > count:
            left_out = f"{len(file.ids) - count} of its {counted(len(file.ids), 'record')} are not in {leader.path}"
            remedy = "check that the ids are of the same sources"
            warn(f"{file.path}: paired by id, and {left_out} and are left out; {remedy}")


def _in_order(file: Texts, ids: Sequence[str]) -> Sequence[str]:
    if file.ids is None:
        return file.texts
    by_id = dict(zip(file.ids, file.texts, strict=True))
    return [by_id[identity] for identity in ids]


def read_pairs(*paths: str | Path, origins: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Pairs (source, target) from two files with the same number of lines, or from one TSV file.

    A TSV file has `source TAB target [TAB origin]`; with `origins`, only pairs of these are kept. Pairs with an empty
    side are left out.
    """
    if len(paths) == 2:
        sides = [list(read_lines(str(path))) for path in paths]
        count = min(map(len, sides))
        if any(line.strip() for side in sides for line in side[count:]):
            raise UserError(f"{paths[0]} has {len(sides[0])} lines but {paths[1]} has {len(sides[1])}; they must match")
        pairs = list(zip(*(side[:count] for side in sides), strict=True))
    else:
        pairs = list(_read_tsv(str(paths[0]), origins))
    pairs = [(source, target) for source, target in pairs if source.strip() and target.strip()]
    if not pairs:
        names = " ".join(map(str, paths))
        wanted = f" of origin {', '.join(origins)}" if origins else ""
        raise UserError(f"{names}: no sentence pairs{wanted}; give files with text on both sides")
    return pairs


def _read_tsv(path: str, origins: Collection[str] | None) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():  # an empty pair, left out as any with an empty side
            continue
        columns = line.split("\t")
        if len(columns) < 2 + bool(origins):
            raise UserError(f"{path}:{number}: {len(columns)} columns; need source TAB target [TAB origin]")
        if not origins or columns[2] in origins:
            yield columns[0], columns[1]
