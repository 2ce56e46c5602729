"""Decodes tables in memory: pandas, polars, Hugging Face datasets, anything that can be turned into Arrow.

A row has the fields of a record in a file (docs/formats.md); the new columns are the fields of an answer, with the
prefix `mbr_`, since a table already has `pseudo_references`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mbrace.api import decode_corpus
from mbrace.errors import UserError, require
from mbrace.io.output import answer_line
from mbrace.io.reading import parse_json, valid_unicode
from mbrace.records import FIELDS, Location, Record, record_from
from mbrace.result import Decoded
from mbrace.settings import Race

ROWS_AT_A_TIME = 64
NUMBERS = ("index", "utility_calls", "pairs_scored", "strings", "pseudo_references", "quality_calls")
OPTIONAL = ("quality_calls", "nbest")  # columns that are added only if some answer has a value


def table_records(table: Any) -> Iterator[Record]:
    """The rows of a table as records, for `decode_corpus`: a DataFrame of pandas or polars, a `datasets.Dataset`, a
    table of pyarrow, or any object with `__arrow_c_stream__`. A row without an id has its number, from 0."""
    for number, fields in enumerate(_rows(arrow_table(table))):
        yield _record(fields, number)


def decode_table(table: Any, *, prefix: str = "mbr_", **options: Any) -> Any:
    """The same table with the answers in new columns: `mbr_text`, `mbr_index`, `mbr_utility` and what it cost.

    `table` is what `table_records` takes, and comes back as the same kind: a DataFrame of pandas (with its index) or
    polars, a `datasets.Dataset`; anything else as a table of pyarrow. `options` are those of `decode_corpus`; a row
    that was passed to `on_error` has nothing in the new columns.
    """
    arrow = arrow_table(table)
    nbest = _nbest(options)
    _refuse_collisions(arrow.column_names, prefix)
    given = options.pop("on_error", None)
    left_out: set[int] = set()

    def on_error(record: Record, error: Exception) -> None:
        left_out.add(_row_of(record))
        given(record, error)

    def records() -> Iterator[Record]:
        for number, fields in enumerate(_rows(arrow)):
            try:
                yield _record(fields, number)
            except UserError as error:
                if given is None:
                    raise
                left_out.add(number)
                given(Record((), id=fields.get("id") or number, location=Location("row", number)), error)

    found = iter(list(decode_corpus(records(), **options, on_error=None if given is None else on_error)))
    aligned = [None if number in left_out else next(found) for number in range(arrow.num_rows)]
    return _joined(table, arrow, _answers_table(aligned, nbest, prefix))


class TableDecoder:
    """For `Dataset.map(TableDecoder(...), batched=True, with_indices=True)`: adds the columns of `decode_table`.

    `options` are those of `decode_corpus`. With an `id` column, `with_indices` is not needed. Answers do not depend on
    the batch size or the number of processes.
    """

    def __init__(self, *, prefix: str = "mbr_", **options: Any) -> None:
        if "on_error" in options:
            raise UserError("on_error: a map needs an answer for every row; use decode_table")
        self._prefix, self._options = prefix, options

    def __call__(self, batch: Mapping[str, Sequence[Any]], indices: Sequence[int] | None = None) -> dict[str, Any]:
        """The new columns of a batch: lists of as many values as it has rows."""
        names = [name for name in batch if name in FIELDS]
        _refuse_collisions(list(batch), self._prefix)
        if "id" not in names and indices is None:
            raise UserError("id: no such column; random numbers depend on it: map(..., with_indices=True), or add one")
        size = len(next(iter(batch.values()))) if batch else 0
        columns = {name: list(batch[name]) for name in names}  # by position: a Series would be indexed by its labels
        numbers = range(size) if indices is None else map(int, indices)
        records = []
        for row, number in enumerate(numbers):
            records.append(_record({name: _plain(column[row]) for name, column in columns.items()}, number))
        answers = decode_corpus(records, **self._options)
        rows = [_answer_fields(answer, _nbest(self._options), self._prefix) for answer in answers]
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _nbest(options: Mapping[str, Any]) -> int:
    race: Race | None = options.get("race")
    return options.get("nbest", 1) if race is None else race.nbest


def arrow_table(table: Any) -> Any:
    """A table of pyarrow with the same rows."""
    pyarrow = require("pyarrow", extra="parquet")
    kind = _kind(table)
    try:
        if isinstance(table, pyarrow.Table):
            return table
        if kind == "datasets":
            return table.with_format("arrow")[:]
        if kind == "pandas":
            return pyarrow.Table.from_pandas(table, preserve_index=False)
        if kind == "polars" and not hasattr(table, "to_arrow"):
            raise UserError("table: a lazy frame has no rows yet; give table.collect()")
        if hasattr(table, "__arrow_c_stream__"):
            return pyarrow.table(table)
    except (pyarrow.ArrowException, TypeError) as error:
        raise UserError(
            f"table: cannot be made an Arrow table ({error}); lists of strings must hold strings alone"
        ) from error
    raise UserError(
        "table: expected a DataFrame of pandas or polars, a datasets.Dataset or an Arrow table, got "
        f"{type(table).__name__}"
    )


def _kind(table: Any) -> str:
    """The name of the library that a table comes from."""
    return type(table).__module__.partition(".")[0]


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow table as dictionaries, a few at a time, with the fields of a record only."""
    names = [name for name in table.column_names if name in FIELDS]
    for batch in table.select(names).to_batches(max_chunksize=ROWS_AT_A_TIME):
        yield from batch.to_pylist()


def _record(fields: dict[str, Any], number: int) -> Record:
    return record_from(fields, location=Location("row", number), default_id=number)


def _row_of(record: Record) -> int:
    assert record.location is not None
    return record.location.line


def _plain(value: Any) -> Any:
    """A value of a batch, with NumPy arrays and Arrow columns as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.as_py() if hasattr(value, "as_py") else value


def _answer_fields(answer: Decoded, nbest: int, prefix: str) -> dict[str, Any]:
    """The fields of an answer, as in files."""
    fields = parse_json(answer_line(answer, text=False, nbest=nbest), "answer")
    fields["text"] = valid_unicode(fields["text"], "Arrow")
    return {f"{prefix}{name}": value for name, value in fields.items() if name != "id"}


def _refuse_collisions(names: Iterable[str], prefix: str) -> None:
    added = {f"{prefix}{name}" for name in ("text", "utility", *NUMBERS, "survivors", "nbest")}
    for name in names:
        if name in added:
            raise UserError(f"column {name}: exists; give another prefix than {prefix!r} for the new columns")


def _answers_table(answers: Sequence[Decoded | None], nbest: int, prefix: str) -> Any:
    """A table of pyarrow with a row per answer; nulls where there is no answer."""
    pyarrow = require("pyarrow", extra="parquet")
    whole, text, number = pyarrow.int64(), pyarrow.string(), pyarrow.float64()
    types = {"text": text, "utility": number, **dict.fromkeys(NUMBERS, whole), "survivors": pyarrow.list_(whole)}
    types["nbest"] = pyarrow.list_(pyarrow.struct([("text", text), ("index", whole), ("utility", number)]))
    rows = [{} if answer is None else _answer_fields(answer, nbest, "") for answer in answers]
    columns = {}
    for name, kind in types.items():
        values = [row.get(name) for row in rows]
        if name not in OPTIONAL or any(value is not None for value in values):
            columns[f"{prefix}{name}"] = pyarrow.array(values, type=kind)
    return pyarrow.table(columns)


def _joined(table: Any, arrow: Any, added: Any) -> Any:
    """The table with the added columns, as the kind of table it was."""
    kind = _kind(table)
    if kind == "pandas":
        out = table.copy(deep=False)
        for name in added.column_names:
            out[name] = added[name].to_pandas().to_numpy()
        return out
    if kind == "polars":
        return table.hstack(importlib.import_module("polars").from_arrow(added))
    if kind == "datasets":
        datasets = importlib.import_module("datasets")
        if arrow.num_rows:
            return datasets.concatenate_datasets([table, datasets.Dataset(added)], axis=1)
        features = datasets.Features({**table.features, **datasets.Dataset(added).features})
        return datasets.Dataset.from_dict({name: [] for name in features}, features=features)  # joining drops these
    for name in added.column_names:
        arrow = arrow.append_column(name, added[name])
    return arrow
