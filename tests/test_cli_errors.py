"""Bad records and utilities that fail: named in one line, or set aside with --on-error skip."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import GOOD, Row, decode, lines

import mbrace

# Other bad lines are rows of hostile.jsonl
BAD_LINES: dict[str, tuple[bytes, str]] = {
    "nested too deeply": (b"[" * 100_000, "not JSON"),
    "log-probabilities out of range": (
        b'{"hypotheses": ["a"], "pseudo_references": ["a"], "logprobs": [1' + b"0" * 400 + b"]}",
        "logprobs[0]: expected a finite number",
    ),
    "an empty line": (b"", "empty line"),
    "an id twice": (b'{"id": 1, "hypotheses": ["a"], "pseudo_references": ["a"]}', "id: 1 is not unique"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_record_is_named_by_file_line_and_field_and_answers_before_it_stay(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, message = BAD_LINES[name]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines([GOOD] * 5) + line + b"\n" + lines([GOOD]))
    assert decode(source, "-o", out, "--window", "4") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mbrace: error: {source}:6: {message}")
    assert error.count("\n") == 1
    assert [json.loads(answer)["id"] for answer in out.read_bytes().splitlines()] == [1, 2, 3, 4, 5]


def test_a_mistake_in_the_first_record_leaves_no_output_behind(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"{")
    assert decode(tmp_path / "in", "-o", tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()


UTILITIES: dict[str, tuple[Any, str]] = {
    "nan": (mbrace.Pairwise(lambda h, r: float("nan"), name="mine"), "utility mine returned nan"),
    "shape": (mbrace.Pairwise(lambda h, r: [1.0], name="mine", batch=True), "utility mine: returned shape (1,)"),
    "a word": (mbrace.Pairwise(lambda h, r: "good", name="mine"), "utility mine: returned 'good'"),  # type: ignore[arg-type,return-value]
    "raises": (mbrace.Pairwise(lambda h, r: 1 / 0, name="mine"), "ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("name", UTILITIES)
def test_a_utility_that_fails_is_named_with_the_record(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    utility, message = UTILITIES[name]
    monkeypatch.setattr("mbrace.jobs.decode.UtilitySettings.load", lambda settings, threads: utility)
    source = tmp_path / "in.jsonl"
    lone = {"hypotheses": ["needs no utility"], "pseudo_references": ["x"]}
    source.write_bytes(lines([lone, lone, GOOD]))
    assert decode(source, "-o", tmp_path / "out") == 2
    assert capsys.readouterr().err.startswith(f"mbrace: error: {source}:3: {message}")
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2


def broken(rows: list[Row], positions: Sequence[int]) -> bytes:
    return b"".join(b"{torn\n" if number in positions else lines([row]) for number, row in enumerate(rows))


@pytest.mark.parametrize("positions", [[0], [3], [9], [0, 1, 2], [4, 9], list(range(10))])
def test_bad_records_are_set_aside_wherever_they_are(
    positions: list[int], tmp_path: Path, small_rows: list[Row]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(broken(small_rows[:10], positions))
    assert decode(source, "-o", out, "--on-error", "skip", "--window", "4") == 0
    good = [row["id"] for number, row in enumerate(small_rows[:10]) if number not in positions]
    assert [json.loads(line)["id"] for line in out.read_bytes().splitlines()] == good
    aside = [json.loads(line) for line in (tmp_path / "out.errors.jsonl").read_bytes().splitlines()]
    assert [(row["file"], row["line"], row["id"]) for row in aside] == [(str(source), p + 1, None) for p in positions]
    assert all(row["reason"].startswith("not JSON") for row in aside)


def test_a_record_whose_utility_raises_is_set_aside_between_those_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_rows: list[Row]
) -> None:
    def picky(hypothesis: str, reference: str) -> float:
        if hypothesis == "poison":
            raise RuntimeError("no thanks")
        return float(hypothesis == reference)

    monkeypatch.setattr("mbrace.jobs.decode.UtilitySettings.load", lambda *args: mbrace.Pairwise(picky))
    rows: list[Any] = [{**row, "hypotheses": row["hypotheses"][:3]} for row in small_rows[:9]]
    rows[2]["hypotheses"] = rows[6]["hypotheses"] = ["poison", "b"]
    rows[4] = rows[7] = 17
    (tmp_path / "in").write_bytes(lines(rows))
    for window in ("1", "3", "64"):
        assert decode(tmp_path / "in", "-o", tmp_path / f"out{window}", "--on-error", "skip", "--window", window) == 0
        aside = [json.loads(line) for line in (tmp_path / f"out{window}.errors.jsonl").read_bytes().splitlines()]
        assert [(row["line"], row["id"]) for row in aside] == [
            (3, rows[2]["id"]),
            (5, None),
            (7, rows[6]["id"]),
            (8, None),
        ]
        assert aside[0]["reason"] == "RuntimeError: no thanks"
        assert (tmp_path / f"out{window}").read_bytes() == (tmp_path / "out1").read_bytes()


def test_text_has_an_empty_line_for_a_record_set_aside(tmp_path: Path, small_rows: list[Row]) -> None:
    (tmp_path / "in").write_bytes(broken(small_rows[:4], [1]))
    assert decode(tmp_path / "in", "-o", tmp_path / "out", "--text", "--on-error", "skip") == 0
    assert [bool(line) for line in (tmp_path / "out").read_bytes().split(b"\n")[:-1]] == [True, False, True, True]
