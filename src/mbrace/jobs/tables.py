"""Decodes tables in memory: pandas, polars, Hugging Face datasets, anything that can be turned into Arrow.

A row has the fields of a record in a file (docs/formats.md); the new columns are the fields of an answer, with the
prefix `mbr_`, since a table already has `pseudo_references`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
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
    race: Race | None = options.get("race")
    nbest = options.get("nbest", 1) if race is None else race.nbest
    for name in ("text", "utility", *NUMBERS, "survivors", "nbest"):
        if f"{prefix}{name}" in arrow.column_names:
            raise UserError(f"column {prefix}{name}: exists; give another prefix than {prefix!r} for the new columns")
    given = options.pop("on_error", None)
    left_out: set[int] = set()

    def on_error(record: Record, error: Exception) -> None:
        assert record.location is not None
        left_out.add(record.location.line)
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


def _answers_table(answers: Sequence[Decoded | None], nbest: int, prefix: str) -> Any:
    """A table of pyarrow with a row per answer; nulls where there is no answer."""
    pyarrow = require("pyarrow", extra="parquet")
    whole, text, number = pyarrow.int64(), pyarrow.string(), pyarrow.float64()
    types = {"text": text, "utility": number, **dict.fromkeys(NUMBERS, whole), "survivors": pyarrow.list_(whole)}
    types["nbest"] = pyarrow.list_(pyarrow.struct([("text", text), ("index", whole), ("utility", number)]))
    rows: list[dict[str, Any]] = []
    for answer in answers:
        fields = {} if answer is None else parse_json(answer_line(answer, text=False, nbest=nbest), "answer")
        rows.append(fields and {**fields, "text": valid_unicode(fields["text"], "Arrow")})
    columns = {name: [row.get(name) for row in rows] for name in types}
    return pyarrow.table(
        {
            f"{prefix}{name}": pyarrow.array(values, type=types[name])
            for name, values in columns.items()
            if name not in OPTIONAL or any(value is not None for value in values)
        }
    )


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
