"""Counts with their nouns, for messages."""

from __future__ import annotations


def counted(count: int, thing: str, plural: str | None = None) -> str:
    """A count with its noun, singular or plural: "1 sentence", "1,000 sentences", "2 hypotheses"."""
    return f"{count:,} {thing if count == 1 else plural or thing + 's'}"


def spreadsheet_cell(value: object) -> object:
    """A value for a CSV file: text that a spreadsheet would take for a formula is prefixed with '."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
