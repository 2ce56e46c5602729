"""Outputs of `mbrace decode`: the fields of an answer, plain text, n-best, and files that are never lost by mistake."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cli_helpers import Row, decode, lines, start


def test_each_line_has_the_fields_of_the_contract_in_order(answers: bytes, small_rows: list[Row]) -> None:
    found = [json.loads(line) for line in answers.splitlines()]
    assert [answer["id"] for answer in found] == [row["id"] for row in small_rows]
    fields = ["id", "text", "index", "utility", "utility_calls", "pairs_scored", "strings", "pseudo_references"]
    fields.append("survivors")
    for answer, row in zip(found, small_rows, strict=True):
        assert list(answer) == fields
        assert row["hypotheses"][answer["index"]] == answer["text"]


@pytest.mark.parametrize("option", [["--window", "1"], ["--window", "1000"], ["--threads", "1"], ["--threads", "2"]])
def test_window_and_threads_change_no_byte(option: list[str], candidates: Path, answers: bytes, tmp_path: Path) -> None:
    assert decode(candidates, "-o", tmp_path / "out.jsonl", *option) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == answers


def test_text_is_one_line_a_source_whatever_the_hypotheses_hold(tmp_path: Path) -> None:
    rows = [{"hypotheses": ["one\ntwo\r\nthree"], "pseudo_references": ["x"]}] * 2
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.txt", "--text") == 0
    assert (tmp_path / "out.txt").read_bytes() == b"one two  three\n" * 2


def test_text_output_is_valid_unicode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.txt"
    source.write_bytes(lines([{"hypotheses": ["a \ud800 b"], "pseudo_references": ["a"]}] * 2))
    assert decode(source, "-o", out, "--text") == 0
    assert out.read_text(encoding="utf-8") == "a \ufffd b\n" * 2
    assert capsys.readouterr().err.count("warning: Plain text cannot hold lone surrogates") == 1


def test_parquet_output_keeps_mixed_ids_and_missing_utilities(tmp_path: Path) -> None:
    import pyarrow.parquet

    rows = [{"id": n if n < 1500 else f"s{n}", "hypotheses": ["a"], "pseudo_references": ["b"]} for n in range(2500)]
    rows += [{"id": 2**64 - 1, "hypotheses": ["a b", "a c"], "pseudo_references": ["a b", "\ud800"]}]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["id"] for row in table] == [str(row["id"]) for row in rows]
    assert [row["utility"] is None for row in table] == [True] * 2500 + [False]


def test_a_reader_that_goes_away_is_no_error(small_rows: list[Row]) -> None:
    run = start("-", "-o", "-", "--window", "1", stdout=subprocess.PIPE)
    assert run.stdin is not None
    assert run.stdout is not None
    run.stdin.write(lines(small_rows[:3]))
    run.stdin.flush()
    assert json.loads(run.stdout.readline())["id"] == small_rows[0]["id"]
    run.stdout.close()  # what follows is written to a pipe that nobody reads, however large the pipe is
    _, errors = run.communicate(lines(small_rows[3:9]))
    assert run.returncode == 141
    assert b"Traceback" not in errors
