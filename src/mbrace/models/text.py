"""Parallel text in: two files of lines, or one of tab-separated columns; plain, .gz, .bz2 or .xz by suffix."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, cast

from mbrace.errors import UserError

OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def open_text(path: str | Path, mode: str = "r") -> IO[str]:
    """Open UTF-8 text by its suffix; `-` is a pipe."""
    if str(path) == "-":
        return io.TextIOWrapper((sys.stdin if mode == "r" else sys.stdout).buffer, encoding="utf-8", newline="\n")
    opener = OPENERS.get(Path(path).suffix, open)
    try:
        return cast("IO[str]", opener(path, mode + "t", encoding="utf-8", newline="\n"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a file, without their ends."""
    with open_text(path) as file:
        for line in file:
            yield line.rstrip("\r\n")


def read_pairs(*paths: str | Path, origins: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Pairs (source, target) from SOURCE TARGET, two files of as many lines, or from one TSV file.

    A TSV file has `source TAB target [TAB origin]`; `origins` keeps the pairs of these origins only. Pairs with an
    empty side are left out.
    """
    if len(paths) == 2:
        sides = [list(read_lines(path)) for path in paths]
        if len(sides[0]) != len(sides[1]):
            raise UserError(f"{paths[0]} has {len(sides[0])} lines but {paths[1]} has {len(sides[1])}; they must match")
        pairs = list(zip(*sides, strict=True))
    else:
        pairs = list(_read_tsv(paths[0], origins))
    pairs = [(source, target) for source, target in pairs if source.strip() and target.strip()]
    if not pairs:
        raise UserError(
            f"{' '.join(map(str, paths))}: no sentence pairs" + (f" of origin {origins}" if origins else "")
        )
    return pairs


def _read_tsv(path: str | Path, origins: Collection[str] | None) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split("\t")
        if len(columns) < 2 + bool(origins):
            raise UserError(f"{path}:{number}: {len(columns)} columns; need source TAB target [TAB origin]")
        if not origins or columns[2] in origins:
            yield columns[0], columns[1]
