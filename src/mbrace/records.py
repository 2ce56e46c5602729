"""A record per source sentence: its hypotheses and where its pseudo-references come from, checked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import RecordError, UserError, counted

PseudoReferences: TypeAlias = Sequence[str] | Iterator[str] | Callable[[int], Sequence[str]]


class Location(NamedTuple):
    """Where a record was read: `line` counts from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Record:
    """The input of one race.

    `pseudo_references` is a list, an iterator, or a function that is asked for n more; None leaves them to the sampler
    of `decode_corpus` or, without one, makes the hypotheses the pseudo-references too. `logprobs`, one per listed
    pseudo-reference, ask for model-based weights; if copies of a string have different ones, their average counts.
    """

    hypotheses: Sequence[str]
    pseudo_references: PseudoReferences | None = None
    id: str | int = 0
    source: str | None = None
    reference: str | None = None
    logprobs: Sequence[float] | None = None
    location: Location | None = None  # None: not read from a file
    others: Mapping[str, Any] | None = None  # the other fields of its line

    @property
    def where(self) -> str:
        """How messages name the record: by its location, or by its id."""
        return f"record {self.id!r}" if self.location is None else str(self.location)

    def listed(self, *, live: bool = False) -> PseudoReferences | None:
        """Its own pseudo-references, or else its hypotheses; None if it has none and a `live` source draws them."""
        return self.hypotheses if self.pseudo_references is None and not live else self.pseudo_references

    def error(self, reason: str) -> RecordError:
        """An error about this record."""
        return RecordError(self.where, reason)


# Other names of `hypotheses` in files. `samples` is one list whose strings are both hypotheses and pseudo-references.
HYPOTHESES_ALIASES = ("candidates", "samples")
FIELDS = {"id", "source", "reference", "hypotheses", *HYPOTHESES_ALIASES, "pseudo_references", "references", "logprobs"}


def record_from(fields: Any, *, location: Location, default_id: str | int) -> Record:
    """A checked record from a JSON object; the hypotheses may have another name (`HYPOTHESES_ALIASES`)."""
    if not isinstance(fields, dict):
        reason = f"expected a JSON object with `hypotheses` and `pseudo_references`, got {kind(fields)}"
        raise RecordError(location, reason)
    name = _hypotheses_name(fields, location)
    hypotheses = check_strings(fields.get(name), name, location)
    pseudo_references = fields.get("pseudo_references")
    if pseudo_references is not None:
        check_strings(pseudo_references, "pseudo_references", location)
    elif fields.get("references") is not None:
        raise RecordError(
            location,
            "references: could be the pseudo-references of the race or translations by people; "
            "call them `pseudo_references`, or `reference` if it is one translation to compare with",
        )
    identity = fields.get("id")
    if identity is None:
        identity = default_id
    elif type(identity) not in (str, int) or (type(identity) is int and not -(2**63) <= identity < 2**64):
        raise RecordError(location, f"id: expected a string or a whole number of 64 bits, got {kind(identity)}")
    for field in ("source", "reference"):
        if not isinstance(fields.get(field), str | None):
            raise RecordError(location, f"{field}: expected a string, got {kind(fields[field])}")
    source, reference, logprobs = (fields.get(field) for field in ("source", "reference", "logprobs"))
    others = {name: value for name, value in fields.items() if name not in FIELDS} or None
    record = Record(hypotheses, pseudo_references, identity, source, reference, logprobs, location, others)
    _check_logprobs_of(record, record.listed(), values=True)
    return record


def _hypotheses_name(fields: dict[str, Any], location: Location) -> str:
    """The name that an object uses for its hypotheses."""
    given = [name for name in ("hypotheses", *HYPOTHESES_ALIASES) if fields.get(name) is not None]
    if "samples" in given and (len(given) > 1 or fields.get("pseudo_references") is not None):
        raise RecordError(location, "samples: are hypotheses and pseudo-references at once; leave those out")
    if len(given) > 1:
        raise RecordError(location, f"{given[0]} and {given[1]}: two names of one field; give one of them")
    return given[0] if given else "hypotheses"


def check_record(record: Record, *, pool: bool = False, live: bool = False) -> None:
    """Refuse a record that cannot be raced. The strings and numbers of a record from a file were checked when read.

    With `pool` only what is drawn live races: there must be no hypotheses and no list of pseudo-references. A `live`
    source draws where none are listed.
    """
    if not isinstance(record, Record):
        raise _no_records(record)
    # random numbers come from the id, in this process and in others
    if isinstance(record.id, bool) or not isinstance(record.id, str | Integral):
        raise record.error(f"id: expected a string or a whole number, got {kind(record.id)}")
    for field in ("source", "reference"):
        if not isinstance(value := getattr(record, field), str | None):
            raise record.error(f"{field}: expected a string, got {kind(value)}")
    if record.location is None and not pool:
        check_strings(record.hypotheses, "hypotheses", record.where)
    given = record.listed(live=live)
    if not (given is None or isinstance(given, (Sequence, Iterator)) or callable(given)):
        raise record.error(
            f"pseudo_references: expected a list, an iterator or a function that is asked for "
            f"more, got {type(given).__name__}; list(...) makes one"
        )
    if pool and (record.hypotheses or isinstance(given, Sequence)):
        raise record.error("pool: only valid for draws of a live source, without hypotheses: each draw becomes one")
    if record.location is None and isinstance(given, Sequence):
        check_strings(given, "pseudo_references", record.where)
    _check_logprobs_of(record, given, values=record.location is None)


def checked_records(records: Iterable[Record | list[str]]) -> Iterator[Record]:
    """The records of a corpus as they are read; a list of strings is one too, whose id is its position."""
    if not isinstance(records, Iterable) or isinstance(records, str | bytes | Mapping):
        raise _no_records(records)
    return (Record(each, id=n) if isinstance(each, list) else each for n, each in enumerate(records))


def _no_records(given: object) -> UserError:
    made = "; mbrace.Record(**fields) makes one of a dict" if isinstance(given, Mapping) else ""
    return UserError(f"records: expected objects of mbrace.Record or lists of strings, got {kind(given)}{made}")


def check_strings(values: Any, field: str, where: object) -> Sequence[str]:
    """The values, refused unless they are a sequence of at least one string."""
    if values is None:
        raise RecordError(where, f"{field}: missing; give a list of strings")
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        made = "; list(...) makes one" if isinstance(values, Iterable) and not isinstance(values, str | bytes) else ""
        raise RecordError(where, f"{field}: expected a list of strings, got {kind(values)}{made}")
    if not values:
        raise RecordError(where, f"{field}: empty; give at least one string")
    if set(map(type, values)) != {str}:
        for position, value in enumerate(values):
            if not isinstance(value, str):
                raise RecordError(where, f"{field}[{position}]: expected a string, got {kind(value)}")
    return values


def _check_logprobs_of(record: Record, given: PseudoReferences | None, *, values: bool) -> None:
    """Refuse log-probabilities unless there is one per listed pseudo-reference; with `values`, check each number."""
    if record.logprobs is None:
        return
    if not isinstance(given, Sequence):
        raise record.error("logprobs: only valid with a list of pseudo-references; a live source brings its own")
    if isinstance(record.logprobs, str | bytes | bytearray | Mapping | Set) or not isinstance(record.logprobs, Sized):
        raise record.error(f"logprobs: expected a list of numbers, got {kind(record.logprobs)}")
    if len(record.logprobs) != len(given):
        raise record.error(
            f"logprobs: {len(record.logprobs)} for {counted(len(given), 'pseudo-reference')}; give one for each"
        )
    if values:
        check_logprobs(record.logprobs, record.where)


def check_logprobs(values: Sequence[float], where: object) -> None:
    """Refuse log-probabilities that are not finite numbers."""
    for position, value in enumerate(values):
        try:
            good = not isinstance(value, bool | np.bool_) and math.isfinite(value)
        except (TypeError, OverflowError):
            good = False
        if not good:
            raise RecordError(where, f"logprobs[{position}]: expected a finite number, got {str(value)[:20]}")


def relative_probabilities(logprobs: Iterable[Sequence[float]]) -> NDArray[np.float64]:
    """The probability of each distinct string, given the log-probabilities of all its copies, of which the average
    counts; divided by the largest."""
    means = np.array([math.fsum(copies) / len(copies) for copies in logprobs])
    return np.asarray(np.exp(means - means.max()))


def kind(value: Any) -> str:
    """The kind of a JSON value, in JSON's terms."""
    names = {type(None): "null", bool: "true/false", int: "a number", float: "a number", str: "a string"}
    names |= {list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


# Random numbers depend on (seed, record id, purpose) alone: not on batches, threads, workers or the order of the corpus


def digest(record_id: str | int, *, seed: int | None = None, purpose: str | None = None) -> int:
    """A 64-bit hash of an id and, where given, a seed and a purpose; the same on every machine. 7 and "7" differ."""
    name = f"{'str' if isinstance(record_id, str) else 'int'}\0{record_id}"  # NumPy's are the same as Python's
    if seed is not None:
        name = f"{seed}\0{name}"
    if purpose is not None:
        name = f"{name}\0{purpose}"
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def key(seed: int, record_id: str | int, purpose: str) -> int:
    """A 64-bit number for this seed, record and purpose."""
    return digest(record_id, seed=seed, purpose=purpose)


def generator(seed: int, record_id: str | int, purpose: str) -> np.random.Generator:
    """A NumPy generator seeded with `key`."""
    # Faster than PCG64(number), which makes the same SeedSequence
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key(seed, record_id, purpose))))
