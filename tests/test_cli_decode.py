"""`mbrace decode` as a command: inputs of every format, outputs, bad records, and utilities that fail."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from cli_helpers import COMMAND, GOOD, Row, decode, lines, start

import mbrace
from mbrace.cli import main

# inputs


def test_a_dash_is_standard_input_and_output(candidates: Path, answers: bytes) -> None:
    done = subprocess.run([*COMMAND, "decode", "-", "-o", "-"], input=candidates.read_bytes(), capture_output=True)
    assert (done.returncode, done.stdout) == (0, answers)
    assert b"150 sentences" in done.stderr
    assert b"encode" in done.stderr
    assert b"saved" in done.stderr


def test_flat_text_files_decode_as_the_same_records_in_json(tmp_path: Path, small_rows: list[Row]) -> None:
    rows = [{**row, "id": number} for number, row in enumerate(small_rows[:20], 1)]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    for name, field in (("h.txt", "hypotheses"), ("r.txt", "pseudo_references")):
        (tmp_path / name).write_text("".join(text + "\n" for row in rows for text in row[field]), encoding="utf-8")
    (tmp_path / "s.txt").write_text("".join(row["source"] + "\n" for row in rows), encoding="utf-8")
    flat = ["--hypotheses", tmp_path / "h.txt", "--references", tmp_path / "r.txt", "--source", tmp_path / "s.txt"]
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "json") == 0
    assert decode(*flat, "--num-candidates", "12", "--num-references", "24", "-o", tmp_path / "flat") == 0
    assert (tmp_path / "flat").read_bytes() == (tmp_path / "json").read_bytes()


def test_parquet_in_and_out_holds_what_json_lines_hold(tmp_path: Path, small_rows: list[Row]) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{**row, "id": str(row["id"])} for row in small_rows]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "a.jsonl") == 0
    assert decode(tmp_path / "in.parquet", "-o", tmp_path / "b.jsonl") == 0
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    assert decode(tmp_path / "in.parquet", "-o", tmp_path / "c.parquet", "--nbest", "2") == 0
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "d.jsonl", "--nbest", "2") == 0
    table = pyarrow.parquet.read_table(tmp_path / "c.parquet").to_pylist()
    assert table == [json.loads(line) for line in (tmp_path / "d.jsonl").read_bytes().splitlines()]
    assert sorted(path.name for path in tmp_path.glob("c.*")) == ["c.parquet", "c.parquet.run.json"]


def test_a_pattern_and_a_url_are_read_as_one_corpus(tmp_path: Path, small_rows: list[Row], answers: bytes) -> None:
    (tmp_path / "part-0.jsonl").write_bytes(lines(small_rows[:50]))
    (tmp_path / "part-1.jsonl.gz").write_bytes(gzip.compress(lines(small_rows[50:])))
    assert decode(tmp_path / "part-*", "-o", tmp_path / "a") == 0
    assert decode(tmp_path / "part-0.jsonl", tmp_path / "part-1.jsonl.gz", "-o", tmp_path / "b") == 0
    assert decode(f"file://{tmp_path}/part-*", "-o", tmp_path / "c") == 0
    assert [(tmp_path / name).read_bytes() for name in "abc"] == [answers] * 3


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (["x.jsonl"], [1, 2]),
        (["x.jsonl", "sub/y.jsonl"], ["x.jsonl:1", "x.jsonl:2", "sub/y.jsonl:1", "sub/y.jsonl:2"]),
        (["x.jsonl", "{}/sub/y.jsonl"], ["x.jsonl:1", "x.jsonl:2", "sub/y.jsonl:1", "sub/y.jsonl:2"]),
    ],
)
def test_default_ids_are_line_numbers_and_in_several_files_the_file_and_line(
    given: list[str], ids: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    for name in ("x.jsonl", "sub/y.jsonl"):
        Path(name).write_bytes(lines([{"hypotheses": ["a"], "pseudo_references": ["b"]}] * 2))
    assert decode(*(name.format(tmp_path) for name in given), "-o", "out") == 0
    assert [json.loads(line)["id"] for line in Path("out").read_bytes().splitlines()] == ids


def test_strange_but_legal_strings_go_through(tmp_path: Path) -> None:
    strange = [
        "",
        "\ud800 lone",
        "👩‍👩‍👧 emoji",
        "e\u0301 combining",
        "word " * 20_000,
        " ",
        "\x00",
        "\u2028 line",
        "a\rb",
    ]
    assert max(map(len, strange)) == 100_000
    short = [text for text in strange if len(text) < 100]
    rows = [
        {"id": "\udfff", "hypotheses": strange, "pseudo_references": list(reversed(strange))},
        {"id": "empty", "hypotheses": ["", ""], "pseudo_references": [""]},
        {"id": "👩‍👩‍👧", "hypotheses": short, "pseudo_references": short},
    ]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out", "--nbest", "9", "--prune", "none") == 0
    first, second, third = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert first["id"] == "\udfff"
    assert {entry["text"] for entry in first["nbest"]} == set(strange)
    assert second["text"] == ""
    chrf = sacrebleu.CHRF(word_order=2)
    for entry in third["nbest"]:
        expected = sum(chrf.sentence_score(entry["text"], [r]).score for r in short) / len(short)
        assert entry["utility"] == pytest.approx(expected, abs=1e-4)
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "text", "--text") == 0
    assert (tmp_path / "text").read_bytes().count(b"\n") == 3


def test_an_empty_corpus_gives_an_empty_output(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"")
    for suffix in ("", ".gz"):
        assert decode(tmp_path / "in", "-o", tmp_path / f"out{suffix}") == 0
    assert (tmp_path / "out").read_bytes() == b""
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == b""


def test_a_named_pipe_is_an_input_like_any_other(tmp_path: Path) -> None:
    record = '{"id": 1, "hypotheses": ["a b", "a c"], "pseudo_references": ["a b", "a d"]}\n'
    (tmp_path / "c.jsonl").write_text(record)
    pipe, out = tmp_path / "pipe", tmp_path / "o.jsonl"
    os.mkfifo(pipe)
    with subprocess.Popen([*COMMAND, "decode", "pipe", "-o", "o.jsonl"], cwd=tmp_path) as process:
        pipe.write_text(record)  # an input that is opened twice would wait for a second writer
        assert process.wait(timeout=120) == 0
    assert main(["decode", str(tmp_path / "c.jsonl"), "-o", str(tmp_path / "wanted.jsonl")]) == 0
    assert out.read_bytes() == (tmp_path / "wanted.jsonl").read_bytes()


def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*COMMAND, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.startswith("mbrace: error: a file or standard output: No space left on device")
    assert len(ended.stderr.splitlines()) == 1


def test_a_wrong_number_of_candidates_writes_nothing_and_the_right_one_is_taken_after_it(tmp_path: Path) -> None:
    flat, out = tmp_path / "h.txt", tmp_path / "out.jsonl"
    flat.write_text("".join(f"a dog {number}\n" for number in range(400)))
    command = ["decode", "--hypotheses", str(flat), "-o", str(out), "--log-level", "error", "--num-candidates"]
    sources = tmp_path / "s.txt"
    sources.write_text("ein Hund\n" * 100)
    for wrong in (["3"], ["2", "--source", str(sources)], ["5", "--source", str(sources)]):
        assert main([*command, *wrong]) == 2
        assert not out.exists()
    assert main([*command, "4", "--source", str(sources)]) == 0
    assert len(out.read_text().splitlines()) == 100
    for size, status in (("3", 2), ("4", 0)):  # standard input is read only once
        run = start("--hypotheses", "-", "--num-candidates", size, "-o", tmp_path / "piped.jsonl")
        run.communicate(flat.read_bytes())
        assert (run.returncode, (tmp_path / "piped.jsonl").exists()) == (status, status == 0)


BOTH = {"hypotheses": ["a b", "a c"], "pseudo_references": ["a b"]}
FIELDS = [
    ({"candidates": ["a b", "a c"], "pseudo_references": ["a b"]}, BOTH),
    ({**BOTH, "references": ["c"]}, BOTH),
    ({"candidates": ["a b", "a c", "a b"]}, {"hypotheses": ["a b", "a c", "a b"]}),
    ({"samples": ["a b", "a c", "a b"]}, {"hypotheses": ["a b", "a c", "a b"]}),
]


@pytest.mark.parametrize(("other", "own"), FIELDS)
def test_fields_may_have_other_names(other: object, own: object, tmp_path: Path) -> None:
    for name, row in (("other", other), ("own", own)):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([row]))
        assert decode(tmp_path / f"{name}.jsonl", "-o", tmp_path / f"{name}.out.jsonl") == 0
    assert (tmp_path / "other.out.jsonl").read_bytes() == (tmp_path / "own.out.jsonl").read_bytes()


# outputs


def test_each_line_has_the_fields_of_the_contract_in_order(answers: bytes, small_rows: list[Row]) -> None:
    found = [json.loads(line) for line in answers.splitlines()]
    assert [answer["id"] for answer in found] == [row["id"] for row in small_rows]
    fields = ["id", "text", "index", "utility", "utility_calls", "pairs_scored", "strings", "pseudo_references"]
    fields.append("survivors")
    for answer, row in zip(found, small_rows, strict=True):
        assert list(answer) == fields
        assert row["hypotheses"][answer["index"]] == answer["text"]


@pytest.mark.parametrize(
    ("hypothesis", "line", "warned"),
    [
        ("one\ntwo\r\nthree", "one two  three\n", "line breaks become spaces; --no-text keeps them"),
        ("a \ud800 b", "a \ufffd b\n", "Plain text cannot hold lone surrogates"),
    ],
)
def test_text_is_one_valid_line_a_source_whatever_the_hypotheses_hold(
    hypothesis: str, line: str, warned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines([{"hypotheses": [hypothesis], "pseudo_references": ["a"]}] * 2))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.txt", "--text") == 0
    assert (tmp_path / "out.txt").read_bytes().decode() == line * 2
    assert capsys.readouterr().err.count(warned) == 1


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


# bad records and utilities that fail


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


@pytest.mark.parametrize("positions", [[3], [0, 1, 2], [4, 9], list(range(10))])
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
