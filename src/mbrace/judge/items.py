"""What is judged: two systems' predictions paired by id, the equal ones counted, the others sampled and arranged."""

from __future__ import annotations

import hashlib
import random
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from mbrace.io.candidates import check_stdin
from mbrace.io.texts import Texts, align_texts, read_texts


@dataclass(frozen=True)
class PredictionPair:
    """One source with two different predictions."""

    id: str
    source: str
    a: str
    b: str


@dataclass(frozen=True)
class PredictionPairs:
    """All that two output files hold: the items whose predictions differ, and how many were equal."""

    different: Sequence[PredictionPair]
    equal: int
    digests: dict[str, str]  # of what was read ("A", "B", "source"), to recognise the same study again

    @property
    def total(self) -> int:
        return len(self.different) + self.equal


def read_prediction_pairs(a: str, b: str, source: str) -> PredictionPairs:
    """Pair two outputs of `mbrace decode`, JSON Lines with id and text or plain lines, with their sources."""
    check_stdin([a, b, source])
    texts_a, texts_b, sources = read_texts(a, "text"), read_texts(b, "text"), read_texts(source, "source")
    ids, (of_a, of_b, of_source) = align_texts([texts_a, texts_b], [sources])
    items = [PredictionPair(*map(_storable, row)) for row in zip(ids, of_source, of_a, of_b, strict=True)]
    different = [item for item in items if _seen(item.a) != _seen(item.b)]
    digests = {"A": _digest(texts_a), "B": _digest(texts_b), "source": _digest(sources)}
    return PredictionPairs(different, len(items) - len(different), digests)


def sample(items: Sequence[PredictionPair], count: int | None, seed: int) -> list[PredictionPair]:
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


def _storable(text: str) -> str:
    """JSON may hold half a surrogate pair, which no page or database can: it becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _digest(texts: Texts) -> str:
    ids = None if texts.ids is None else [_storable(identity) for identity in texts.ids]
    return hashlib.sha256(orjson.dumps([ids, [_storable(text) for text in texts.texts]])).hexdigest()
