"""Tables in memory: the same answers as for records, in every library's own kind of table."""

from __future__ import annotations

from typing import Any

import pytest

import mbrace
from mbrace.errors import UserError
from mbrace.records import Record

pyarrow = pytest.importorskip("pyarrow")

ROWS: list[dict[str, Any]] = [
    {
        "id": f"s{n}",
        "source": f"Satz {n}",
        "reference": None if n == 1 else f"sentence {n}",
        "hypotheses": [f"a b {n}", f"a b c {n}", f"d {n}"][: 3 - n % 2],
        "pseudo_references": [f"a b c {m % (n + 2)}" for m in range(20)],
        "score": n / 2,
    }
    for n in range(5)
]
NAMES = ("text", "utility", "index", "utility_calls", "pairs_scored", "strings", "pseudo_references", "survivors")
COLUMNS = {f"mbr_{name}" for name in NAMES}


def answers(rows: list[dict[str, Any]], **options: Any) -> list[mbrace.Decoded]:
    records = [
        Record(row["hypotheses"], row["pseudo_references"], row.get("id", n), row["source"], row["reference"])
        for n, row in enumerate(rows)
    ]
    return list(mbrace.decode_corpus(records, **options))


def without_ids() -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "id"} for row in ROWS]


def pandas_table(rows: list[dict[str, Any]]) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(rows, index=[f"row {n}" for n in range(len(rows))])


def polars_table(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(rows)


def dataset(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(rows)


class Capsule:
    """Any other library's table: all that is known of it is Arrow's interface."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._table = pyarrow.Table.from_pylist(rows)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


KINDS = [pyarrow.Table.from_pylist, pandas_table, polars_table, dataset, Capsule]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("rows", [ROWS, without_ids()], ids=["ids", "no ids"])
def test_a_table_has_the_answers_to_its_records(make: Any, rows: list[dict[str, Any]]) -> None:
    assert list(mbrace.decode_corpus(mbrace.table_records(make(rows)), seed=3)) == answers(rows, seed=3)


def pylist(table: Any) -> list[dict[str, Any]]:
    if hasattr(table, "to_pylist"):
        return table.to_pylist()
    return pyarrow.table(table.data.table if hasattr(table, "data") else table).to_pylist()


@pytest.mark.parametrize("make", KINDS)
def test_a_table_comes_back_as_its_own_kind_with_the_answers_beside_its_rows(make: Any) -> None:
    table = make(ROWS)
    decoded = mbrace.decode_table(table, seed=3)
    assert type(decoded) is (pyarrow.Table if make is Capsule else type(table))
    rows = pylist(decoded)
    for row, given, answer in zip(rows, ROWS, answers(ROWS, seed=3), strict=True):
        assert {name: row[name] for name in given} == given
        assert (row["mbr_text"], row["mbr_index"], row["mbr_utility"]) == (answer.text, answer.index, answer.utility)
        assert (row["mbr_utility_calls"], row["mbr_pairs_scored"]) == (answer.utility_calls, answer.pairs_scored)
        assert (row["mbr_strings"], row["mbr_pseudo_references"]) == (answer.strings, answer.pseudo_references)
        assert list(row["mbr_survivors"]) == [step.survivors for step in answer.steps]
        assert set(row) - set(given) - {"__index_level_0__"} == COLUMNS
    if make is pandas_table:
        assert list(decoded.index) == [f"row {n}" for n in range(5)]
        assert "mbr_text" not in table.columns
        assert decoded["mbr_utility_calls"].dtype == "int64"


@pytest.mark.parametrize("make", KINDS)
def test_an_empty_table_gets_empty_columns(make: Any) -> None:
    if make is Capsule:
        table: Any = pyarrow.Table.from_pylist(ROWS)[:0]
    elif make is dataset:
        table = dataset(ROWS).select([])
    else:
        table = make(ROWS)[:0]
    decoded = mbrace.decode_table(table)
    assert len(decoded) == 0
    assert set(decoded.column_names if hasattr(decoded, "column_names") else decoded.columns) == COLUMNS | set(ROWS[0])


def test_an_nbest_list_is_a_column_of_lists() -> None:
    decoded = mbrace.decode_table(pyarrow.Table.from_pylist(ROWS), nbest=2, prune=None).to_pylist()
    for row, answer in zip(decoded, answers(ROWS, nbest=2, prune=None), strict=True):
        assert row["mbr_nbest"] == [{"text": c.text, "index": c.index, "utility": c.utility} for c in answer.nbest]


def test_a_map_gives_the_same_answers_whatever_the_batches() -> None:
    datasets = pytest.importorskip("datasets")
    expected = [(answer.text, answer.utility, answer.utility_calls) for answer in answers(ROWS, seed=2)]
    table = datasets.Dataset.from_list(ROWS).with_format("arrow")
    options = {"batched": True, "fn_kwargs": {"seed": 2}, "load_from_cache_file": False}
    for size in (1, 2, 5):
        mapped = table.map(mbrace.decode_table, batch_size=size, **options).with_format(None)
        found = [(row["mbr_text"], row["mbr_utility"], row["mbr_utility_calls"]) for row in mapped]
        assert found == expected
    assert mapped["mbr_survivors"][0] == [step.survivors for step in answers(ROWS, seed=2)[0].steps]


def test_a_row_that_fails_is_told_of_and_stays_empty() -> None:
    rows = [*ROWS[:2], {**ROWS[2], "hypotheses": []}, {**ROWS[3], "hypotheses": None}, ROWS[4]]
    table = pyarrow.Table.from_pylist(rows)
    with pytest.raises(UserError, match="row:2: hypotheses: empty; give at least one string"):
        mbrace.decode_table(table)
    told = []
    decoded = mbrace.decode_table(table, on_error=lambda record, error: told.append((record.id, str(error))))
    assert told == [
        ("s2", "row:2: hypotheses: empty; give at least one string"),
        ("s3", "row:3: hypotheses: missing; give a list of strings"),
    ]
    assert [row["mbr_text"] for row in decoded.to_pylist()] == [
        None if n in (2, 3) else answer.text for n, answer in enumerate(answers(ROWS))
    ]


def test_a_lazy_frame_is_refused_with_the_remedy() -> None:
    polars = pytest.importorskip("polars")
    with pytest.raises(UserError, match=r"give table\.collect\(\)"):
        mbrace.decode_table(polars.DataFrame(ROWS).lazy())


def test_another_prefix_gives_other_names() -> None:
    decoded = mbrace.decode_table(pyarrow.Table.from_pylist(ROWS), prefix="choice_")
    assert "choice_text" in decoded.column_names
    assert "mbr_text" not in decoded.column_names
