"""Parquet files: reads their rows, a few at a time, and writes JSON lines as rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mbrace.errors import UserError, require
from mbrace.io.atomic import AnyPath, replacing
from mbrace.io.reading import filesystem_of, parse_json, valid_unicode

ROWS_AT_A_TIME = 64
ROWS_PER_TABLE = 1000


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
                filesystem, inner = filesystem_of(path)
                source = stack.enter_context(filesystem.open_input_file(inner))
            file = stack.enter_context(parquet.ParquetFile(source))
            for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=columns):
                yield from batch.to_pylist()
    except FileNotFoundError as error:
        raise UserError(f"{path}: No such file or directory; give a file that can be read") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file that can be read ({error}); make the file again") from error


def write_parquet(lines: Callable[[], Iterable[bytes]], path: AnyPath) -> None:
    """Write JSON lines as a Parquet file, whole or not at all; the lines are read twice."""
    pyarrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    schema: Any = None
    for table in _tables(pyarrow, lines()):
        schema = table.schema if schema is None else _unify(pyarrow, schema, table.schema)
    with replacing(path) as temporary, parquet.ParquetWriter(temporary, schema or pyarrow.schema([])) as writer:
        for table in _tables(pyarrow, lines()):
            writer.write_table(_with_schema(pyarrow, table, schema))


def _tables(pyarrow: Any, lines: Iterable[bytes]) -> Iterator[Any]:
    """Tables whose ids have one type: numbers, or strings if any id is a string (or does not fit into 64 bits)."""
    parsed = (_valid_unicode(parse_json(line, f"answer {number}")) for number, line in enumerate(lines, 1))
    while rows := list(itertools.islice(parsed, ROWS_PER_TABLE)):
        if any(isinstance(row.get("id"), str) or abs(row.get("id", 0)) >= 2**63 for row in rows):
            rows = [{**row, "id": str(row["id"])} for row in rows]
        yield pyarrow.Table.from_pylist(rows)


def _unify(pyarrow: Any, one: Any, other: Any) -> Any:
    if {one.field("id").type, other.field("id").type} == {pyarrow.int64(), pyarrow.string()}:
        one, other = (s.set(s.get_field_index("id"), pyarrow.field("id", pyarrow.string())) for s in (one, other))
    return pyarrow.unify_schemas([one, other], promote_options="permissive")


def _with_schema(pyarrow: Any, table: Any, schema: Any) -> Any:
    for name in set(schema.names) - set(table.column_names):
        table = table.append_column(name, pyarrow.nulls(len(table)))
    return table.select(schema.names).cast(schema)


def _valid_unicode(value: Any) -> Any:
    """Parquet holds valid Unicode only."""
    if isinstance(value, str):
        return valid_unicode(value, "Parquet")
    if isinstance(value, list):
        return [_valid_unicode(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _valid_unicode(entry) for name, entry in value.items()}
    return value
