"""Beyond plain local files: globs, URLs that pyarrow reads, and Parquet."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from mbrace.errors import UserError, require
from mbrace.io.files import parse_json, valid_unicode

ROWS_AT_A_TIME = 64


def expand(patterns: Sequence[str]) -> list[str]:
    """The files that patterns name, those of one glob in order of their names; a folder of shards by its manifest."""
    paths: list[str] = []
    for pattern in patterns:
        if pattern == "-" or (os.path.exists(pattern) and not os.path.isdir(pattern)):
            found = [pattern]
        elif os.path.isdir(pattern):
            found = _shards(pattern)
        elif not any(character in pattern for character in "*?["):
            found = [pattern]  # opening it says what is wrong
        elif "://" in pattern:
            found = _expand_url(pattern)
        else:
            found = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
        if not found:
            raise UserError(f"{pattern}: no file matches; give a file or a pattern that matches some")
        paths += found
    repeated = next((path for path in paths if paths.count(path) > 1), None) if len(set(paths)) < len(paths) else None
    if repeated is not None:
        raise UserError(f"{repeated}: given twice; give each input once")
    return paths


def _shards(folder: str) -> list[str]:
    from mbrace.io.manifest import Manifest

    return [str(path) for path in Manifest.read(Path(folder)).paths(complete=True)]


def _filesystem(url: str) -> tuple[Any, str]:
    fs = require("pyarrow.fs", extra="parquet")
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except Exception as error:
        raise UserError(f"{url}: not a URL that pyarrow reads ({error})") from error
    return filesystem, path


def _expand_url(pattern: str) -> list[str]:
    fs = require("pyarrow.fs", extra="parquet")
    filesystem, path = _filesystem(pattern)
    folder = path[: min(path.index(c) for c in "*?[" if c in path)].rpartition("/")[0]
    try:
        infos = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    except OSError as error:
        raise UserError(f"{pattern}: cannot be listed ({error})") from error
    start = pattern[: len(pattern) - len(path)] if pattern.endswith(path) else pattern.partition("://")[0] + "://"
    return sorted(start + i.path for i in infos if i.type == fs.FileType.File and fnmatch.fnmatch(i.path, path))


@contextlib.contextmanager
def open_url(url: str) -> Iterator[BinaryIO]:
    """A stream of the bytes behind a URL, unpacked by suffix."""
    import io
    import lzma

    filesystem, path = _filesystem(url)
    packed = url.endswith(".xz")  # pyarrow knows .gz and others, not .xz
    try:
        with filesystem.open_input_stream(path, compression=None if packed else "detect") as stream:
            raw = io.BufferedReader(stream)
            with contextlib.ExitStack() as stack:
                yield raw if not packed else io.BufferedReader(stack.enter_context(lzma.LZMAFile(raw)))
    except (UserError, GeneratorExit):
        raise
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise UserError(f"{url}: cannot be read ({error})") from error


def parquet_rows(path: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, a few in memory at a time."""
    parquet = require("pyarrow.parquet", extra="parquet")
    pyarrow = require("pyarrow", extra="parquet")
    if path == "-":
        raise UserError("-: Parquet cannot be read from a pipe; give a file")
    try:
        with contextlib.ExitStack() as stack:
            source: Any = path
            if "://" in path:
                filesystem, inner = _filesystem(path)
                source = stack.enter_context(filesystem.open_input_file(inner))
            file = stack.enter_context(parquet.ParquetFile(source))
            for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=columns):
                yield from batch.to_pylist()
    except FileNotFoundError as error:
        raise UserError(f"{path}: No such file or directory; give a file that can be read") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file that can be read ({error})") from error


def to_parquet(journal: str, path: str) -> None:
    """Turn the JSON Lines of `journal` into a Parquet file, which appears under its name only when it is whole."""
    pyarrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    schema: Any = None
    for table in _tables(journal):
        schema = table.schema if schema is None else _unify(pyarrow, schema, table.schema)
    part = path + ".tmp"
    with parquet.ParquetWriter(part, schema or pyarrow.schema([])) as writer:
        for table in _tables(journal):
            writer.write_table(_as_schema(pyarrow, table, schema))
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)


def _tables(journal: str) -> Iterator[Any]:
    """Tables of a thousand rows."""
    pyarrow = require("pyarrow", extra="parquet")
    rows: list[Any] = []
    with open(journal, "rb") as file:
        for number, line in enumerate(file, 1):
            rows.append(_unicode(parse_json(line, f"{journal}:{number}")))
            if len(rows) == 1000:
                yield _table(pyarrow, rows)
                rows = []
    if rows:
        yield _table(pyarrow, rows)


def _table(pyarrow: Any, rows: list[dict[str, Any]]) -> Any:
    """Ids of one kind: numbers, or strings if any is one (or too large)."""
    if any(isinstance(row.get("id"), str) or abs(row.get("id", 0)) >= 2**63 for row in rows):
        rows = [{**row, "id": str(row["id"])} for row in rows]
    return pyarrow.Table.from_pylist(rows)


def _unify(pyarrow: Any, one: Any, other: Any) -> Any:
    if {one.field("id").type, other.field("id").type} == {pyarrow.int64(), pyarrow.string()}:
        one, other = (s.set(s.get_field_index("id"), pyarrow.field("id", pyarrow.string())) for s in (one, other))
    return pyarrow.unify_schemas([one, other], promote_options="permissive")


def _as_schema(pyarrow: Any, table: Any, schema: Any) -> Any:
    missing = [name for name in schema.names if name not in table.column_names]
    for name in missing:
        table = table.append_column(name, pyarrow.nulls(len(table)))
    return table.select(schema.names).cast(schema)


def _unicode(value: Any) -> Any:
    """Parquet holds valid Unicode only."""
    if isinstance(value, str):
        return valid_unicode(value, "Parquet")
    if isinstance(value, list):
        return [_unicode(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _unicode(entry) for name, entry in value.items()}
    return value


def estimated_bytes(path: str) -> int:
    """About how many bytes a local file has unpacked (0: not known), judged by its first quarter megabyte."""
    import lzma
    import zlib

    if not os.path.isfile(path):
        return 0
    size = os.path.getsize(path)
    if not path.endswith((".gz", ".xz")):
        return size
    with open(path, "rb") as file:
        start = file.read(1 << 18)
    try:
        unpacker: Any = zlib.decompressobj(wbits=31) if path.endswith(".gz") else lzma.LZMADecompressor()
        unpacked = len(unpacker.decompress(start))
    except (zlib.error, lzma.LZMAError):
        return 0
    used = len(start) - len(unpacker.unused_data)
    return size * unpacked // max(1, used)
