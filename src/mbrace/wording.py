"""Words for messages and tables: counts with their nouns, names of files, cells."""

from __future__ import annotations

import os


def counted(count: int, thing: str, plural: str | None = None) -> str:
    """A count with its noun, singular or plural: "1 sentence", "1,000 sentences", "2 hypotheses"."""
    return f"{count:,} {thing if count == 1 else plural or thing + 's'}"


def spreadsheet_cell(value: object) -> object:
    """A value for a CSV file: text that a spreadsheet would take for a formula is prefixed with '."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def shown_name(path: str) -> str:
    """The name of a file with escapes such as \\xff for control characters and bytes that are not UTF-8."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


# Control characters (but line feed and tab), which could do anything to a terminal, and those that change the direction
# of a text, so that it reads as another one.
_CONTROLS = [*range(9), *range(11, 32), *range(127, 160)]
_DIRECTIONS = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_VISIBLE = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _DIRECTIONS}


def visible(text: str) -> str:
    """A text for a terminal: control characters are shown as escapes, such as \\x1b."""
    return text.translate(_VISIBLE)
