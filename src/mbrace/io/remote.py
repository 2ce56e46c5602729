"""Files at URLs that pyarrow can read."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import lzma
from collections.abc import Iterator
from typing import Any, BinaryIO

from mbrace.errors import UserError, require


def filesystem_of(url: str) -> tuple[Any, str]:
    """pyarrow's file system for a URL, and the path in it."""
    fs = require("pyarrow.fs", extra="parquet")
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except Exception as error:
        raise UserError(f"{url}: not a URL that pyarrow reads ({error}); give one such as s3://bucket/file") from error
    return filesystem, path


def expand_url(pattern: str) -> list[str]:
    """The URLs that match a pattern, sorted."""
    fs = require("pyarrow.fs", extra="parquet")
    filesystem, path = filesystem_of(pattern)
    folder = path[: min(path.index(c) for c in "*?[" if c in path)].rpartition("/")[0]
    try:
        infos = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    except OSError as error:
        raise UserError(f"{pattern}: cannot be listed ({error}); check the address and your rights there") from error
    start = pattern[: len(pattern) - len(path)] if pattern.endswith(path) else pattern.partition("://")[0] + "://"
    return sorted(start + i.path for i in infos if i.type == fs.FileType.File and fnmatch.fnmatch(i.path, path))


@contextlib.contextmanager
def open_url(url: str) -> Iterator[BinaryIO]:
    """A stream of the bytes at a URL, unpacked by suffix."""
    filesystem, path = filesystem_of(url)
    is_xz = url.endswith(".xz")  # pyarrow unpacks .gz and others, not .xz
    try:
        with filesystem.open_input_stream(path, compression=None if is_xz else "detect") as stream:
            raw = io.BufferedReader(stream)
            with contextlib.ExitStack() as stack:
                yield raw if not is_xz else io.BufferedReader(stack.enter_context(lzma.LZMAFile(raw)))
    except (UserError, GeneratorExit):
        raise
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise UserError(f"{url}: cannot be read ({error}); check the address and your rights there") from error
