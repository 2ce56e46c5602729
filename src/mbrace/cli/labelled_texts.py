"""Texts next to their labels, as the demos print them."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text


def print_labelled(console: Any, *lines: tuple[str, str, str | None, str]) -> None:
    """Print lines of (label, style, text, style). Texts are printed word for word, and wrap next to their labels."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, label_style, text, style in lines:
        grid.add_row(Text(label, label_style), Text(text or "", style))
    console.print()
    console.print(grid)
