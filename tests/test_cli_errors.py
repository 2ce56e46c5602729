"""Bad records and utilities that fail: named in one line, or set aside with --on-error skip."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import GOOD, Row, decode, lines

import mbrace


def test_answers_before_a_bad_record_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is said of each kind of bad line is in hostile.jsonl."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines([GOOD] * 5) + b'{"id": 1}\n' + lines([GOOD]))
    assert decode(source, "-o", out, "--window", "4") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mbrace: error: {source}:6: hypotheses: missing")
    assert error.count("\n") == 1
    assert [json.loads(answer)["id"] for answer in out.read_bytes().splitlines()] == [1, 2, 3, 4, 5]


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


def test_text_has_an_empty_line_for_a_record_set_aside(tmp_path: Path, small_rows: list[Row]) -> None:
    (tmp_path / "in").write_bytes(broken(small_rows[:4], [1]))
    assert decode(tmp_path / "in", "-o", tmp_path / "out", "--text", "--on-error", "skip") == 0
    assert [bool(line) for line in (tmp_path / "out").read_bytes().split(b"\n")[:-1]] == [True, False, True, True]
