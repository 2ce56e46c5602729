"""What is judged: two systems' predictions paired by id, the equal ones counted, the others sampled and arranged."""

from __future__ import annotations

import hashlib
import random
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from mbrace.errors import UserError
from mbrace.files import parse_json, read_lines


@dataclass(frozen=True)
class Item:
    """One source with two different predictions."""

    id: str
    source: str
    a: str
    b: str


@dataclass(frozen=True)
class Pairs:
    """All that two output files hold: the items whose predictions differ, and how many were equal."""

    different: Sequence[Item]
    equal: int
    digests: dict[str, str]  # of what was read ("A", "B", "source"), to recognise the same study again

    @property
    def total(self) -> int:
        return len(self.different) + self.equal


@dataclass(frozen=True)
class _Lines:
    """The texts of one file; `ids` is None when the file has none and its lines are meant in order."""

    path: str
    ids: Sequence[str] | None
    texts: Sequence[str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(orjson.dumps([self.ids, self.texts])).hexdigest()


def read_pairs(a: str, b: str, source: str) -> Pairs:
    """Pair two outputs of `mbrace decode` (JSON Lines with id and text, or a plain line a source) and their sources."""
    lines_a, lines_b, sources = _read(a, "text"), _read(b, "text"), _read(source, "source")
    ids = lines_a.ids or lines_b.ids or sources.ids or [str(number) for number in range(1, len(lines_a.texts) + 1)]
    _refuse_other_ids(lines_a, lines_b)
    texts_a, texts_b, texts_source = (_aligned(lines, ids) for lines in (lines_a, lines_b, sources))
    items = [Item(*row) for row in zip(ids, texts_source, texts_a, texts_b, strict=True)]
    different = [item for item in items if _seen(item.a) != _seen(item.b)]
    digests = {"A": lines_a.digest, "B": lines_b.digest, "source": sources.digest}
    return Pairs(different, len(items) - len(different), digests)


def sample(items: Sequence[Item], count: int | None, seed: int) -> list[Item]:
    """`count` of the items at random (all of them when there are no more, or when count is None), in file order."""
    if count is None or count >= len(items):
        return list(items)
    chosen = random.Random(f"items {seed}").sample(range(len(items)), count)
    return [items[index] for index in sorted(chosen)]


def arrange(count: int, seed: int, rater: int) -> list[tuple[int, bool]]:
    """One rater's order: (item, is A on the left?) for each of `count` items; A is on the left half of the time."""
    chance = random.Random(f"rater {seed} {rater}")
    order = list(range(count))
    chance.shuffle(order)
    odd = chance.getrandbits(1)  # which side gets one more when the count is odd
    sides = [(index + odd) % 2 == 0 for index in range(count)]
    chance.shuffle(sides)
    return list(zip(order, sides, strict=True))


def _seen(text: str) -> str:
    """What a reader sees of a text: spacing and Unicode composition make no difference to the eye."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _read(path: str, field: str) -> _Lines:
    lines = list(read_lines(path))
    if not lines:
        raise UserError(f"{path}: the file is empty; expected one line a source")
    lines[0] = lines[0].removeprefix("\ufeff")
    if not _is_json(path, lines[0], field):
        return _Lines(path, None, lines)
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    records = [(number, *_record(line, field, f"{path}:{number}")) for number, line in numbered]
    ids = _checked_ids(path, [(number, id_) for number, id_, _ in records])
    return _Lines(path, ids, [text for _, _, text in records])


def _is_json(path: str, first: str, field: str) -> bool:
    if path.removesuffix(".gz").removesuffix(".xz").endswith((".jsonl", ".ndjson", ".json")):
        return True
    try:  # a plain text whose first line is such an object would be JSON Lines under another name
        record = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return isinstance(record, dict) and field in record


def _record(line: str, field: str, where: str) -> tuple[str | None, str]:
    record = parse_json(line.encode(), where)
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected an object with id and {field}, found {type(record).__name__}")
    text, id_ = record.get(field), record.get("id")
    if not isinstance(text, str):
        raise UserError(f"{where}: field {field}: expected a string, found {_kind(text)}")
    if id_ is not None and (isinstance(id_, bool) or not isinstance(id_, str | int)):
        raise UserError(f"{where}: field id: expected a string or a whole number, found {_kind(id_)}")
    return None if id_ is None else _storable(str(id_)), _storable(text)


def _storable(text: str) -> str:
    """JSON may hold half a surrogate pair, which no page or database can: it becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def _checked_ids(path: str, ids: Sequence[tuple[int, str | None]]) -> list[str] | None:
    """The ids, each found once; None when no record has one. `ids`: (line number, id)."""
    if all(id_ is None for _, id_ in ids):
        return None
    first: dict[str, int] = {}
    for number, id_ in ids:
        if id_ is None:
            raise UserError(f"{path}:{number}: field id: missing, though other records have one; give all or none")
        if id_ in first:
            raise UserError(f"{path}:{number}: field id: {id_!r} is already the id of line {first[id_]}")
        first[id_] = number
    return list(first)


def _refuse_other_ids(a: _Lines, b: _Lines) -> None:
    if a.ids is None or b.ids is None:
        return
    for one, other in ((a, b), (b, a)):
        missing = sorted(set(one.ids or ()) - set(other.ids or ()))
        if missing:
            raise UserError(
                f"{other.path}: {len(missing)} ids of {one.path} are missing (the first: {missing[0]!r}); "
                "both systems must have decoded the same sources"
            )


def _aligned(lines: _Lines, ids: Sequence[str]) -> Sequence[str]:
    """The texts in the order of `ids`: by id where the file has ids, line by line where it has none."""
    if lines.ids is None:
        if len(lines.texts) != len(ids):
            raise UserError(
                f"{lines.path}: {len(lines.texts)} lines for {len(ids)} sources; expected one line a source"
            )
        return lines.texts
    by_id = dict(zip(lines.ids, lines.texts, strict=True))
    missing = [id_ for id_ in ids if id_ not in by_id]
    if missing:
        raise UserError(f"{lines.path}: no record with id {missing[0]!r} ({len(missing)} ids are missing)")
    return [by_id[id_] for id_ in ids]
