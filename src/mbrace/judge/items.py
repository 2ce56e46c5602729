"""What is judged: two systems' predictions paired by id, the equal ones counted, the others sampled and arranged. And
how it is shown: words that differ are marked, invisible or misleading characters are shown by name."""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

import orjson

from mbrace.errors import Parameter, UserError
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
    are_answers: bool = False  # to prompts; else they are translations

    @property
    def total(self) -> int:
        return len(self.different) + self.equal


def read_prediction_pairs(a: str, b: str, source: str | None = None) -> PredictionPairs:
    """Pair two outputs of `mbrace decode`, JSON Lines with id and text or plain lines, with their sources; those of
    `mbrace answer` have their prompts."""
    check_stdin([a, b, source or ""])
    texts_a, texts_b = read_texts(a, "text"), read_texts(b, "text")
    if source is None and (a == "-" or not texts_a.are_answers):
        raise UserError(f"{a}: no file of answers with their prompts; give {Parameter('source', 'FILE')}")
    sources = read_texts(source or a, "source")
    ids, (of_a, of_b, of_source) = align_texts([texts_a, texts_b], [sources])
    items = [PredictionPair(*map(_storable, row)) for row in zip(ids, of_source, of_a, of_b, strict=True)]
    different = [item for item in items if _seen(item.a) != _seen(item.b)]
    digests = {"A": _digest(texts_a), "B": _digest(texts_b), "source": _digest(sources)}
    return PredictionPairs(different, len(items) - len(different), digests, texts_a.are_answers)


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


# How texts are shown

# Characters that reorder, hide or break text: C0/C1 controls (except tab and newline), zero-width space, word
# joiner and invisible operators, bidirectional embeddings, overrides and isolates, interlinear marks, byte order mark.
# The joiners U+200C/D and the marks U+200E/F, U+061C stay: some scripts need them, and texts are isolated.
_HIDDEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
_CONTROL = re.compile(f"([{_HIDDEN}])")
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_PUNCTUATION = "!-/:-@\\[-`{-~\u00a1\u00ab\u00bb\u00bf\u2010-\u2027\u2030-\u205e\u3001-\u303f\uff01-\uff0f\uff1a-\uff20"
_LETTER = f"[^\\s{_CJK}{_PUNCTUATION}{_HIDDEN}]"
_TOKEN = re.compile(f"\\s+|[{_CJK}]|{_LETTER}+(?:['’-]{_LETTER}+)*|[{_PUNCTUATION}{_HIDDEN}]")
# For each run of words that it finds, SequenceMatcher may look at all words and at each pair of equal ones again: with
# more steps than these, half a second, everything between common start and end is marked.
_STEPS = 3_000_000


@dataclass(frozen=True)
class Piece:
    """A piece of text, changed or not; if `control`, `text` is the name of an invisible character."""

    text: str
    changed: bool = False
    control: bool = False


def pieces(text: str) -> list[Piece]:
    """The pieces of a single text, with nothing to compare."""
    return list(_named(text, False))


def differences(left: str, right: str) -> tuple[list[Piece], list[Piece]]:
    """Both texts in pieces; words that do not match the other text are marked as changed. Spacing is ignored."""
    tokens = [_TOKEN.findall(text) for text in (left, right)]
    words = [[token for token in side if not token.isspace()] for side in tokens]
    changed = _changed(*words)
    return _joined(tokens[0], changed[0]), _joined(tokens[1], changed[1])


def _changed(left: Sequence[str], right: Sequence[str]) -> tuple[list[bool], list[bool]]:
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    flags = ([False] * len(left), [False] * len(right))
    middle = left[start : len(left) - end], right[start : len(right) - end]
    codes: Sequence[tuple[str, int, int, int, int]] = [("replace", 0, len(middle[0]), 0, len(middle[1]))]
    counts = Counter(middle[1])
    pairs = sum(counts[word] for word in middle[0])
    if min(pairs, len(middle[0]), len(middle[1])) * (len(middle[0]) + pairs) <= _STEPS:
        codes = SequenceMatcher(None, *middle, autojunk=False).get_opcodes()
    for code, i1, i2, j1, j2 in codes:
        if code != "equal":
            flags[0][start + i1 : start + i2] = [True] * (i2 - i1)
            flags[1][start + j1 : start + j2] = [True] * (j2 - j1)
    return flags


def _joined(tokens: Sequence[str], changed: Sequence[bool]) -> list[Piece]:
    """Join tokens into changed and unchanged pieces; a space between two changed words counts as changed."""
    flags: list[bool] = []
    word = 0
    for token in tokens:
        if token.isspace():
            flags.append(0 < word < len(changed) and changed[word - 1] and changed[word])
        else:
            flags.append(changed[word])
            word += 1
    found: list[Piece] = []
    for flag, run in groupby(zip(tokens, flags, strict=True), key=lambda pair: pair[1]):
        found += _named("".join(token for token, _ in run), flag)
    return found


def _named(text: str, changed: bool) -> Iterator[Piece]:
    for number, part in enumerate(_CONTROL.split(text)):
        if number % 2:
            yield Piece(f"U+{ord(part):04X}", changed, control=True)
        elif part:
            yield Piece(part, changed)
