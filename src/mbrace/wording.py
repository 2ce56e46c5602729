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
