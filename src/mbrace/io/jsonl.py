"""JSON Lines: one JSON value per line, parsed strictly except that lone surrogates are allowed."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from mbrace.errors import RecordError, warn
from mbrace.io.reading import decode_line


def parse_json(line: bytes, where: object) -> Any:
    """One JSON value. Lone surrogates are allowed: what orjson refuses, the standard library's parser tries."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        text = decode_line(line, where)
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RecordError(where, f"not JSON ({error}); give one JSON object per line") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def to_json(value: Any) -> bytes:
    """A value as JSON without a line feed; lone surrogates are written as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_line(value: Any) -> bytes:
    """A value as one line of JSON Lines."""
    return to_json(value) + b"\n"


def valid_unicode(text: str, medium: str) -> str:
    """The text for a format that cannot hold lone surrogates: they are replaced by U+FFFD, with a warning."""
    replaced = re.sub("[\ud800-\udfff]", "\ufffd", text)
    if replaced != text:
        warn(f"{medium} cannot hold lone surrogates: U+FFFD is written for them")
    return replaced
