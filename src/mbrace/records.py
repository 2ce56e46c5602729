"""One record a source sentence: its hypotheses and where its pseudo-references come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mbrace.errors import RecordError

PseudoReferences: TypeAlias = Sequence[str] | Iterator[str] | Callable[[int], Sequence[str]]


@dataclass(frozen=True)
class Location:
    """Where a record was read: `line` counts from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Record:
    """What one race starts from.

    `pseudo_references` is a list, an iterator, or a function that is asked for n more; None leaves them to the sampler
    of `decode_corpus` or, without one, makes the hypotheses the pseudo-references too. `logprobs`, one per listed
    pseudo-reference, ask for model-based weights.
    """

    hypotheses: Sequence[str]
    pseudo_references: PseudoReferences | None = None
    id: str | int = 0
    source: str | None = None
    reference: str | None = None
    logprobs: Sequence[float] | None = None
    location: Location | None = None  # None: not read from a file

    @property
    def where(self) -> str:
        """How messages name the record: by its location, or by its id."""
        return f"record {self.id!r}" if self.location is None else str(self.location)

    def error(self, reason: str) -> RecordError:
        """An error about this record."""
        return RecordError(self.where, reason)


def record_from(fields: Mapping[str, Any], *, location: Location, default_id: str | int, live: bool = False) -> Record:
    """A checked record from a JSON object; `live` allows it to have no pseudo-references."""
    where = str(location)
    if not isinstance(fields, dict):
        raise RecordError(
            where, f"expected a JSON object with `hypotheses` and `pseudo_references`, got {kind(fields)}"
        )
    hypotheses = _strings(fields, "hypotheses", where)
    pseudo_references = None
    if not (live and fields.get("pseudo_references") is None):
        pseudo_references = _strings(fields, "pseudo_references", where)
    identity = fields.get("id")
    if identity is None:
        identity = default_id
    elif type(identity) not in (str, int) or (type(identity) is int and not -(2**63) <= identity < 2**64):
        raise RecordError(where, f"id: expected a string or a whole number of 64 bits, got {kind(identity)}")
    return Record(
        hypotheses=hypotheses,
        pseudo_references=pseudo_references,
        id=identity,
        source=_optional_string(fields, "source", where),
        reference=_optional_string(fields, "reference", where),
        logprobs=_logprobs(fields, pseudo_references, where),
        location=location,
    )


def _strings(fields: Mapping[str, Any], field: str, where: str) -> list[str]:
    values = fields.get(field)
    if values is None:
        raise RecordError(where, f"{field}: missing; give a list of strings")
    if not isinstance(values, list):
        raise RecordError(where, f"{field}: expected a list of strings, got {kind(values)}")
    if not values:
        raise RecordError(where, f"{field}: empty; give at least one string")
    if set(map(type, values)) != {str}:
        position, value = next((i, v) for i, v in enumerate(values) if type(v) is not str)
        raise RecordError(where, f"{field}[{position}]: expected a string, got {kind(value)}")
    return values


def _optional_string(fields: Mapping[str, Any], field: str, where: str) -> str | None:
    value = fields.get(field)
    if value is None or isinstance(value, str):
        return value
    raise RecordError(where, f"{field}: expected a string, got {kind(value)}")


def _logprobs(fields: Mapping[str, Any], pseudo_references: list[str] | None, where: str) -> list[float] | None:
    values = fields.get("logprobs")
    if values is None:
        return None
    if not isinstance(values, list) or pseudo_references is None or len(values) != len(pseudo_references):
        raise RecordError(where, "logprobs: expected a list with one number for each pseudo-reference")
    check_logprobs(values, where)
    return values


def check_logprobs(values: Sequence[float], where: str) -> None:
    """Refuse log-probabilities that are not finite numbers."""
    for position, value in enumerate(values):
        try:
            good = not isinstance(value, bool) and math.isfinite(value)
        except (TypeError, OverflowError):
            good = False
        if not good:
            raise RecordError(where, f"logprobs[{position}]: expected a finite number, got {str(value)[:20]}")


def kind(value: Any) -> str:
    """What a JSON value is, in JSON's words."""
    names = {type(None): "null", bool: "true/false", int: "a number", float: "a number", str: "a string"}
    names |= {list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
