"""Which files are read: expands patterns, URLs and folders of shards, and checks that none of them is the output."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from mbrace.errors import UserError
from mbrace.io.manifest import Manifest
from mbrace.io.reading import open_input
from mbrace.io.remote import expand_url

Value = TypeVar("Value")
Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


class Rereadable(Generic[Value]):
    """An iterable that is read again from its beginning each time it is iterated over."""

    def __init__(self, read: Callable[[], Iterator[Value]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Value]:
        return self._read()


def checked_input(read: Callable[[], Iterator[Value]], paths: Sequence[str], *, output: str) -> Iterable[Value]:
    """What `read` reads from the files `paths`, once `check_inputs` has found nothing wrong with them: as often as it
    is iterated over, unless one of them is a stream."""
    check_inputs(paths, output)
    return Rereadable(read) if all(os.path.isfile(path) or "://" in path for path in paths) else read()


def expand(patterns: Paths) -> list[str]:
    """The files that patterns match, those of each pattern sorted by name; for a folder of shards, those in its
    manifest."""
    paths: list[str] = []
    for given in [patterns] if isinstance(patterns, str | os.PathLike) else patterns:
        pattern = os.fspath(given)
        if pattern == "-" or (os.path.exists(pattern) and not os.path.isdir(pattern)):
            found = [pattern]
        elif os.path.isdir(pattern):
            found = list(Manifest.read(pattern).paths(complete=True))
        elif not any(character in pattern for character in "*?["):
            found = [pattern]  # opening it says what is wrong
        elif "://" in pattern:
            found = expand_url(pattern)
        else:
            found = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
        if not found:
            raise UserError(f"{pattern}: no file matches; give a file or a pattern that matches some")
        paths += found
    repeated = next((path for path in paths if paths.count(path) > 1), None) if len(set(paths)) < len(paths) else None
    if repeated is not None:
        raise UserError(f"{repeated}: given twice; give each input once")
    return paths


def check_inputs(paths: Sequence[str], output: str) -> None:
    """Before the output is made, refuse a file that cannot be read, and an output that is also an input."""
    check_stdin(paths)
    for path in paths:
        if path == "-" or "://" in path:
            continue
        if os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path):
            with open_input(path):  # any file but a pipe, which can be opened only once
                pass
        if os.path.exists(output) and os.path.samefile(path, output):
            raise UserError(f"{output}: is an input too; give another output")


def check_stdin(paths: Iterable[str]) -> None:
    """Refuse to read standard input as two inputs: each would get a part of its lines."""
    if sum(path == "-" for path in paths) > 1:
        raise UserError("-: standard input is given twice; give a file for one of them")
