"""Sentence pairs from two files of lines or one of tab-separated columns: plain or packed, by suffix."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from mbrace.errors import UserError
from mbrace.io.reading import read_lines


def read_pairs(*paths: str | Path, origins: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Pairs (source, target) from two files with the same number of lines, or from one TSV file.

    A TSV file has `source TAB target [TAB origin]`; with `origins`, only pairs of these are kept. Pairs with an empty
    side are left out.
    """
    if len(paths) == 2:
        sides = [list(read_lines(str(path))) for path in paths]
        count = min(map(len, sides))
        if any(line.strip() for side in sides for line in side[count:]):
            raise UserError(f"{paths[0]} has {len(sides[0])} lines but {paths[1]} has {len(sides[1])}; they must match")
        pairs = list(zip(*(side[:count] for side in sides), strict=True))
    else:
        pairs = list(_read_tsv(str(paths[0]), origins))
    pairs = [(source, target) for source, target in pairs if source.strip() and target.strip()]
    if not pairs:
        names = " ".join(map(str, paths))
        wanted = f" of origin {', '.join(origins)}" if origins else ""
        raise UserError(f"{names}: no sentence pairs{wanted}; give files with text on both sides")
    return pairs


def _read_tsv(path: str, origins: Collection[str] | None) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():  # an empty pair, left out as any with an empty side
            continue
        columns = line.split("\t")
        if len(columns) < 2 + bool(origins):
            raise UserError(f"{path}:{number}: {len(columns)} columns; need source TAB target [TAB origin]")
        if not origins or columns[2] in origins:
            yield columns[0], columns[1]
