"""Inputs of `mbrace decode`: every format holds the same records, and a file that cannot be read is named."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
from pathlib import Path

import pytest
import sacrebleu
from cli_helpers import COMMAND, Row, decode, lines, start

from mbrace.cli import main


def test_a_dash_is_standard_input_and_output(candidates: Path, answers: bytes) -> None:
    done = subprocess.run([*COMMAND, "decode", "-", "-o", "-"], input=candidates.read_bytes(), capture_output=True)
    assert (done.returncode, done.stdout) == (0, answers)
    assert b"150 sentences" in done.stderr
    assert b"encode" in done.stderr
    assert b"saved" in done.stderr


def test_stdin_is_read_as_it_comes(small_rows: list[Row]) -> None:
    run = start("-", "-o", "-", "--window", "1", stdout=subprocess.PIPE)
    assert run.stdin is not None
    assert run.stdout is not None
    for row in small_rows[:3]:  # a window of one answers each record before the next is there... but for one
        run.stdin.write(lines([row]))
        run.stdin.flush()
    first = io.BytesIO(run.stdout.readline())
    assert json.loads(first.read())["id"] == small_rows[0]["id"]
    run.communicate()


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


def test_inputs_from_here_and_from_the_root_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_rows: list[Row]
) -> None:
    row = {name: small_rows[0][name] for name in ("hypotheses", "pseudo_references")}
    (tmp_path / "sub").mkdir()
    for name in ("a.jsonl", "sub/b.jsonl"):
        (tmp_path / name).write_bytes(lines([row]))
    monkeypatch.chdir(tmp_path)
    assert main(["decode", "a.jsonl", str(tmp_path / "sub" / "b.jsonl"), "-o", "out.jsonl"]) == 0
    assert [json.loads(line)["id"] for line in Path("out.jsonl").read_bytes().splitlines()] == [
        "a.jsonl:1",
        "sub/b.jsonl:1",
    ]


def test_default_ids_are_line_numbers_and_in_several_files_the_file_and_line(tmp_path: Path) -> None:
    row = {"hypotheses": ["a"], "pseudo_references": ["b"]}
    for name in ("x.jsonl", "y.jsonl"):
        (tmp_path / name).write_bytes(lines([row, row]))
    assert decode(tmp_path / "x.jsonl", "-o", tmp_path / "one") == 0
    assert decode(tmp_path / "x.jsonl", tmp_path / "y.jsonl", "-o", tmp_path / "two") == 0
    ids = {name: [json.loads(s)["id"] for s in (tmp_path / name).read_bytes().splitlines()] for name in ("one", "two")}
    assert ids == {"one": [1, 2], "two": ["x.jsonl:1", "x.jsonl:2", "y.jsonl:1", "y.jsonl:2"]}


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
        assert process.wait(timeout=60) == 0
    assert main(["decode", str(tmp_path / "c.jsonl"), "-o", str(tmp_path / "wanted.jsonl")]) == 0
    assert out.read_bytes() == (tmp_path / "wanted.jsonl").read_bytes()


def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*COMMAND, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("mbrace: error: a file or standard output: No space left on device")
    assert len(ended.stderr.splitlines()) == 1


def test_a_wrong_number_of_candidates_writes_nothing_and_the_right_one_is_taken_after_it(tmp_path: Path) -> None:
    flat, out = tmp_path / "h.txt", tmp_path / "out.jsonl"
    flat.write_text("".join(f"a dog {number}\n" for number in range(400)))
    command = ["decode", "--hypotheses", str(flat), "-o", str(out), "--log-level", "error", "--num-candidates"]
    assert main([*command, "3"]) == 2
    assert not out.exists()
    assert main([*command, "4"]) == 0
    assert len(out.read_text().splitlines()) == 100
