"""The command line: formats in and out, mistakes named in one line, and runs that can be broken off anywhere."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from rich.console import Console

import mbrace
from mbrace.cli import main
from mbrace.cli.demo import labelled

Row = dict[str, Any]
COMMAND = [sys.executable, "-m", "mbrace"]


@pytest.fixture(scope="session")
def small_rows(demo_rows: list[Row]) -> list[Row]:
    """150 real records of 12 hypotheses and 24 pseudo-references, quick to decode."""
    rows = []
    for number in range(150):
        row = demo_rows[number % len(demo_rows)]
        part = number // len(demo_rows)
        rows.append(
            {
                "id": f"s{number}" if number % 3 else number,  # both kinds of id
                "source": row["source"],
                "hypotheses": row["hypotheses"][12 * part : 12 * part + 12],
                "pseudo_references": row["pseudo_references"][24 * part : 24 * part + 24],
            }
        )
    return rows


def lines(rows: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def candidates(tmp_path: Path, small_rows: list[Row]) -> Path:
    path = tmp_path / "candidates.jsonl"
    path.write_bytes(lines(small_rows))
    return path


def decode(*arguments: str | Path) -> int:
    return main(["decode", *map(str, arguments)])


@pytest.fixture
def answers(candidates: Path, tmp_path: Path) -> bytes:
    """What an uninterrupted run writes."""
    path = tmp_path / "expected.jsonl"
    assert decode(candidates, "-o", path) == 0
    return path.read_bytes()


# --- formats ---


def test_each_line_has_the_fields_of_the_contract_in_order(answers: bytes, small_rows: list[Row]) -> None:
    found = [json.loads(line) for line in answers.splitlines()]
    assert [answer["id"] for answer in found] == [row["id"] for row in small_rows]
    fields = ["id", "text", "index", "utility", "utility_calls", "pairs_scored", "pseudo_references", "survivors"]
    for answer, row in zip(found, small_rows, strict=True):
        assert list(answer) == fields
        assert row["hypotheses"][answer["index"]] == answer["text"]


def test_the_command_answers_as_the_library_does(answers: bytes, small_rows: list[Row]) -> None:
    for line, row in list(zip(answers.splitlines(), small_rows, strict=True))[::10]:
        best = mbrace.decode(row["hypotheses"], row["pseudo_references"], id=row["id"])
        assert (best.text, best.index, best.utility) == tuple(json.loads(line)[k] for k in ("text", "index", "utility"))


def test_standard_mbr_is_the_brute_force_of_sacrebleu(tmp_path: Path, small_rows: list[Row]) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(small_rows[:3]))
    assert decode(source, "-o", out, "--prune", "none") == 0
    chrf = sacrebleu.CHRF(word_order=2)
    for line, row in zip(out.read_bytes().splitlines(), small_rows, strict=False):
        expected = [
            sum(chrf.sentence_score(h, [r]).score for r in row["pseudo_references"]) / len(row["pseudo_references"])
            for h in row["hypotheses"]
        ]
        answer = json.loads(line)
        assert answer["utility"] == pytest.approx(max(expected), abs=1e-4)
        assert expected[answer["index"]] == pytest.approx(max(expected), abs=1e-4)


@pytest.mark.parametrize("option", [["--window", "1"], ["--window", "1000"], ["--threads", "1"], ["--threads", "2"]])
def test_window_and_threads_change_no_byte(option: list[str], candidates: Path, answers: bytes, tmp_path: Path) -> None:
    assert decode(candidates, "-o", tmp_path / "out.jsonl", *option) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == answers


def test_packed_input_and_output_hold_the_same_lines(candidates: Path, answers: bytes, tmp_path: Path) -> None:
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(candidates.read_bytes()))
    assert decode(packed, "-o", tmp_path / "out.jsonl.gz") == 0
    assert gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()) == answers
    tighter = tmp_path / "in.jsonl.xz"
    tighter.write_bytes(lzma.compress(candidates.read_bytes()))
    assert decode(tighter, "-o", tmp_path / "out.jsonl") == 0
    assert (tmp_path / "out.jsonl").read_bytes() == answers


def test_a_dash_is_standard_input_and_output(candidates: Path, answers: bytes) -> None:
    done = subprocess.run([*COMMAND, "decode", "-", "-o", "-"], input=candidates.read_bytes(), capture_output=True)
    assert (done.returncode, done.stdout) == (0, answers)
    assert b"150 sentences" in done.stderr
    assert b"encode" in done.stderr
    assert b"saved" in done.stderr


def test_text_is_one_line_a_source_whatever_the_hypotheses_hold(tmp_path: Path) -> None:
    rows = [{"hypotheses": ["one\ntwo\r\nthree"], "pseudo_references": ["x"]}] * 2
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.txt", "--text") == 0
    assert (tmp_path / "out.txt").read_bytes() == b"one two  three\n" * 2


def test_nbest_lists_the_best_in_order(candidates: Path, tmp_path: Path, answers: bytes) -> None:
    assert decode(candidates, "-o", tmp_path / "out.jsonl", "--nbest", "3", "--prune", "none") == 0
    for line in (tmp_path / "out.jsonl").read_bytes().splitlines():
        answer = json.loads(line)
        best = answer["nbest"]
        assert {key: answer[key] for key in ("text", "index", "utility")} == best[0]
        assert len({entry["text"] for entry in best}) == len(best) == 3
        assert [entry["utility"] for entry in best] == sorted((e["utility"] for e in best), reverse=True)


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
    assert sorted(path.name for path in tmp_path.glob("c.*")) == ["c.parquet"]


def test_parquet_output_keeps_mixed_ids_and_missing_utilities(tmp_path: Path) -> None:
    import pyarrow.parquet

    rows = [{"id": n if n < 1500 else f"s{n}", "hypotheses": ["a"], "pseudo_references": ["b"]} for n in range(2500)]
    rows += [{"id": 2**64 - 1, "hypotheses": ["a b", "a c"], "pseudo_references": ["a b", "\ud800"]}]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["id"] for row in table] == [str(row["id"]) for row in rows]
    assert [row["utility"] is None for row in table] == [True] * 2500 + [False]


def test_a_pattern_and_a_url_are_read_as_one_corpus(tmp_path: Path, small_rows: list[Row], answers: bytes) -> None:
    (tmp_path / "part-0.jsonl").write_bytes(lines(small_rows[:50]))
    (tmp_path / "part-1.jsonl.gz").write_bytes(gzip.compress(lines(small_rows[50:])))
    assert decode(tmp_path / "part-*", "-o", tmp_path / "a") == 0
    assert decode(tmp_path / "part-0.jsonl", tmp_path / "part-1.jsonl.gz", "-o", tmp_path / "b") == 0
    assert decode(f"file://{tmp_path}/part-*", "-o", tmp_path / "c") == 0
    assert [(tmp_path / name).read_bytes() for name in "abc"] == [answers] * 3


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


# --- score and demo ---


def test_score_equals_sacrebleu(tmp_path: Path, demo_rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    hypotheses = [row["hypotheses"][0] for row in demo_rows]
    references = [row["reference"] for row in demo_rows]
    (tmp_path / "h").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
    (tmp_path / "r").write_text("\n".join(references) + "\n", encoding="utf-8")
    for name, order in (("chrf", 0), ("chrf+", 1), ("chrf++", 2)):
        assert main(["score", str(tmp_path / "h"), str(tmp_path / "r"), "--utility", name, "--per-line"]) == 0
        *scores, average, corpus = capsys.readouterr().out.splitlines()
        chrf = sacrebleu.CHRF(word_order=order)
        expected = [chrf.sentence_score(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]
        assert [float(score) for score in scores] == pytest.approx(expected, abs=2e-4)
        assert float(average.split()[2]) == pytest.approx(sum(expected) / len(expected), abs=2e-4)
        assert float(corpus.split()[1]) == pytest.approx(chrf.corpus_score(hypotheses, [references]).score, abs=2e-4)


def test_score_refuses_files_of_different_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "h").write_text("a\nb\n")
    (tmp_path / "r").write_text("a\n")
    assert main(["score", str(tmp_path / "h"), str(tmp_path / "r")]) == 2
    assert f"{tmp_path / 'r'}: 1 lines, but {tmp_path / 'h'} has 2" in capsys.readouterr().err


def test_score_reads_the_field_of_records_and_no_byte_order_mark(
    tmp_path: Path, demo_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": row["id"], "text": row["hypotheses"][0], "reference": row["reference"]} for row in demo_rows[:5]]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    (tmp_path / "mixed.jsonl").write_bytes(b"".join(lines[::-1]))
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + b"".join(lines)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "table.parquet")
    for name, field in (("h.txt", "text"), ("r.txt", "reference")):
        (tmp_path / name).write_text("\ufeff" + "".join(row[field] + "\n" for row in rows), encoding="utf-8")
    chrf = sacrebleu.CHRF(word_order=2)
    expected = chrf.corpus_score([row["text"] for row in rows], [[row["reference"] for row in rows]]).score
    files = ("mixed.jsonl", "packed.json.gz"), ("table.parquet", "mixed.jsonl"), ("h.txt", "packed.json.gz")
    for hypotheses, references in (*files, ("h.txt", "r.txt"), ("table.parquet", "r.txt")):
        assert main(["score", str(tmp_path / hypotheses), str(tmp_path / references)]) == 0
        assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(expected, abs=2e-4)
    (tmp_path / "out.jsonl").write_bytes(b'{"id": 1, "text": "a"}\n')
    assert main(["score", str(tmp_path / "out.jsonl"), str(tmp_path / "out.jsonl")]) == 2
    assert "out.jsonl:1: reference: missing; give records with a string `reference`" in capsys.readouterr().err


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "ray", "pyarrow", "matplotlib"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
from mbrace.cli import main
from mbrace.cli.demo import labelled
sys.exit(main(sys.argv[1:]))
"""


def test_demo_and_decode_run_without_any_extra(candidates: Path, tmp_path: Path, answers: bytes) -> None:
    demo = [sys.executable, "-c", BLOCKED, "demo", "--sentences", "8", "--examples", "1"]
    done = subprocess.run(demo, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    assert "standard MBR" in done.stdout
    assert "survivors" in done.stdout
    out = tmp_path / "blocked.jsonl"
    subprocess.run([sys.executable, "-c", BLOCKED, "decode", candidates, "-o", out], check=True, capture_output=True)
    assert out.read_bytes() == answers
    parquet = subprocess.run(
        [sys.executable, "-c", BLOCKED, "decode", candidates, "-o", tmp_path / "o.parquet"], capture_output=True
    )
    assert parquet.returncode == 2
    assert b"pip install 'mbrace[parquet]'" in parquet.stderr


@pytest.mark.parametrize("options", [["--sentences", "0"], ["--sentences", "-3"], ["--examples", "-1"]])
def test_a_demo_of_nothing_is_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *options]) == 2
    assert f"{' '.join(options)}: must be" in capsys.readouterr().err


def test_the_demo_prints_texts_word_for_word_and_wraps_them_beside_their_labels() -> None:
    console = Console(width=80, file=io.StringIO())
    text = "a [bold]word[/bold] and [/nothing] " + "of a long sentence " * 6
    labelled(console, ("source", "dim", text, ""), ("MBR", "bold", "short", "bold"))
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert shown[1].startswith("source a [bold]word[/bold] and [/nothing] of")
    assert shown[2].startswith("       ")
    assert shown[-1].split() == ["MBR", "short"]
    assert max(map(len, shown)) <= 80


# --- mistakes ---

GOOD = {"hypotheses": ["a b", "a c"], "pseudo_references": ["a b", "d"]}
BAD_LINES: dict[str, tuple[bytes, str]] = {
    "nested too deeply": (b"[" * 100_000, "not JSON"),
    "log-probabilities out of range": (
        b'{"hypotheses": ["a"], "pseudo_references": ["a"], "logprobs": [1' + b"0" * 400 + b"]}",
        "logprobs[0]: expected a finite number",
    ),
    "not JSON": (b'{"hypotheses": [', "not JSON"),
    "NaN is not JSON": (b'{"hypotheses": ["a"], "pseudo_references": ["b"], "logprobs": [NaN]}', "not JSON"),
    "an empty line": (b"", "empty line"),
    "not an object": (b'["a"]', "expected a JSON object"),
    "hypotheses missing": (b'{"pseudo_references": ["a"]}', "hypotheses: missing"),
    "hypotheses empty": (b'{"hypotheses": [], "pseudo_references": ["a"]}', "hypotheses: empty"),
    "hypotheses a string": (b'{"hypotheses": "a", "pseudo_references": ["a"]}', "hypotheses: expected a list"),
    "hypotheses of numbers": (b'{"hypotheses": ["a", 1], "pseudo_references": ["a"]}', "hypotheses[1]: expected a str"),
    "references missing": (b'{"hypotheses": ["a"]}', "pseudo_references: missing"),
    "references empty": (b'{"hypotheses": ["a"], "pseudo_references": []}', "pseudo_references: empty"),
    "references with null": (b'{"hypotheses": ["a"], "pseudo_references": [null]}', "pseudo_references[0]: expected"),
    "an id twice": (b'{"id": 1, "hypotheses": ["a"], "pseudo_references": ["a"]}', "id: 1 is not unique"),
    "an id that is a list": (b'{"id": [], "hypotheses": ["a"], "pseudo_references": ["a"]}', "id: expected"),
    "an id beyond 64 bits": (
        b'{"id": 18446744073709551616, "hypotheses": ["a"], "pseudo_references": ["a"]}',
        "id: expected",
    ),
    "a source that is a number": (
        b'{"source": 1, "hypotheses": ["a"], "pseudo_references": ["a"]}',
        "source: expected",
    ),
    "too few logprobs": (b'{"hypotheses": ["a"], "pseudo_references": ["a", "b"], "logprobs": [0]}', "logprobs:"),
    "invalid UTF-8": (b'{"hypotheses": ["\xff"], "pseudo_references": ["a"]}', "invalid UTF-8 at byte 17"),
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


@pytest.mark.parametrize("option", ["--hypotheses", "--references", "--source"])
def test_flat_text_is_not_replaced_by_its_own_output(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: tmp_path / f"{name[2:]}.txt" for name in ("--hypotheses", "--references", "--source")}
    for path in paths.values():
        path.write_text("precious\n" * 2)
    flat = [text for name, path in paths.items() for text in (name, str(path))]
    assert main(["decode", *flat, "--num-candidates", "2", "-o", str(paths[option]), "--force"]) == 2
    assert "is an input too" in capsys.readouterr().err
    assert paths[option].read_text() == "precious\n" * 2


def test_a_packing_that_is_not_written_is_refused(
    candidates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decode(candidates, "-o", tmp_path / "out.jsonl.bz2") == 2
    assert "out.jsonl.bz2: cannot be packed so; give a name that ends in .gz" in capsys.readouterr().err


def test_text_output_is_valid_unicode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.txt"
    source.write_bytes(lines([{"hypotheses": ["a \ud800 b"], "pseudo_references": ["a"]}] * 2))
    assert decode(source, "-o", out, "--text") == 0
    assert out.read_text(encoding="utf-8") == "a \ufffd b\n" * 2
    assert capsys.readouterr().err.count("warning: Plain text cannot hold lone surrogates") == 1


def test_a_warning_is_one_line_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"hypotheses": ["a", "b"], "pseudo_references": ["a"] * count} for count in (300, 301, 302)]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl") == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warned) == 1
    assert warned[0].startswith("mbrace: warning: the default schedule ends at 256")
    assert "--schedule all" in warned[0]


BAD_OPTIONS: dict[str, tuple[list[str], str]] = {
    "utility": (["--utility", "bleu"], "--utility bleu: unknown"),
    "prune": (["--prune", "some"], "--prune some: unknown"),
    "on-error": (["--on-error", "cry"], "argument --on-error: invalid choice: 'cry'"),
    "schedule equal": (["--schedule", "16,16"], "sizes must increase"),
    "schedule falling": (["--schedule", "32,16"], "sizes must increase"),
    "schedule zero": (["--schedule", "0,16"], "start at 1 or more"),
    "schedule of words": (["--schedule", "some"], "--schedule some: give whole numbers"),
    "alpha high": (["--alpha", "1.5"], "alpha"),
    "alpha low": (["--alpha", "-0.1"], "alpha"),
    "alpha nan": (["--alpha", "nan"], "alpha"),
    "alpha a word": (["--alpha", "high"], "argument --alpha: invalid float value: 'high'"),
    "bootstraps": (["--bootstraps", "0"], "bootstraps"),
    "beta missing": (["--prune", "bottom"], "needs --beta"),
    "beta high": (["--prune", "bottom", "--beta", "1.5"], "beta"),
    "beta low": (["--prune", "bottom", "--beta", "-0.5"], "beta"),
    "beta without bottom": (["--beta", "0.5"], "--beta: goes with --prune bottom"),
    "nbest": (["--nbest", "0"], "--nbest 0: must be 1 or more"),
    "window": (["--window", "0"], "--window 0: must be 1 or more"),
    "threads": (["--threads", "-1"], "--threads -1"),
    "resume and force": (["--resume", "--force"], "--resume and --force"),
    "workers without a cluster": (["--workers", "2"], "--workers: goes with --ray"),
    "a model without a neural utility": (
        ["--metric-model", "x"],
        "--metric-model: goes with --utility comet, embedding",
    ),
    "a dtype without a neural utility": (["--dtype", "float16"], "--dtype: goes with --utility comet, embedding"),
    "unknown option": (["--fast"], "unrecognized arguments: --fast"),
    "both inputs": (["--hypotheses", "h.txt"], "give one kind of input"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option_is_named_before_any_file_is_made(
    name: str, candidates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, message = BAD_OPTIONS[name]
    assert decode(candidates, "-o", tmp_path / "out.jsonl", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_an_output_that_exists_is_not_replaced_unless_told(
    candidates: Path, tmp_path: Path, answers: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    for suffix in (".jsonl", ".jsonl.gz", ".parquet"):
        out = tmp_path / f"out{suffix}"
        out.write_bytes(b"precious")
        assert decode(candidates, "-o", out) == 2
        assert f"{out}: exists; use --resume to continue it or --force to replace it" in capsys.readouterr().err
        assert out.read_bytes() == b"precious"
    out = tmp_path / "out.jsonl"
    assert decode(candidates, "-o", out, "--force") == 0
    assert out.read_bytes() == answers


@pytest.mark.parametrize(("make", "message"), [
    (lambda path: None, "No such file or directory"),
    (lambda path: path.mkdir(), "manifest.json"),
    (lambda path: path.write_bytes(gzip.compress(lines([GOOD] * 500), mtime=0)[:-30]), "damaged or cut off"),
    (lambda path: path.write_bytes(b"plain text"), "damaged or cut off"),
])  # fmt: skip
def test_an_input_that_cannot_be_read_is_named(
    make: Callable[[Path], Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.jsonl.gz"
    make(path)
    assert decode(path, "-o", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert message in error


def test_a_parquet_file_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1 not really")
    assert decode(path, "-o", tmp_path / "out") == 2
    assert f"{path}: not a Parquet file" in capsys.readouterr().err


FLAT: dict[str, tuple[dict[str, str], list[str], str]] = {
    "torn group": ({"h": "a\nb\nc\n", "r": "x\ny\n"}, ["--num-candidates", "2"], "h:3: ends inside source 2"),
    "too few references": ({"h": "a\nb\n", "r": "x\n"}, ["--num-candidates", "1"], "r: ends before source 2"),
    "too many references": ({"h": "a\n", "r": "x\ny\n"}, ["--num-candidates", "1"], "r: has more sources than"),
    "no candidates": ({"h": "a\n", "r": "x\n"}, ["--num-candidates", "0"], "--num-candidates 0: must be 1 or more"),
    "invalid UTF-8": ({"h": "a\n\udcff\n", "r": "x\ny\n"}, ["--num-candidates", "1"], "h:2: invalid UTF-8 at byte 0"),
}


@pytest.mark.parametrize("name", FLAT)
def test_flat_files_that_do_not_fit_are_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, options, message = FLAT[name]
    monkeypatch.chdir(tmp_path)
    for file, content in files.items():
        Path(file).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert decode("--hypotheses", "h", "--references", "r", *options, "-o", "out") == 2
    assert capsys.readouterr().err.startswith(f"mbrace: error: {message}")


def test_no_input_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert decode("-o", "out") == 2
    assert "no input: give CANDIDATES.jsonl" in capsys.readouterr().err


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
    monkeypatch.setattr("mbrace.cli.decode.utility_from", lambda args: utility)
    source = tmp_path / "in.jsonl"
    lone = {"hypotheses": ["needs no utility"], "pseudo_references": ["x"]}
    source.write_bytes(lines([lone, lone, GOOD]))
    assert decode(source, "-o", tmp_path / "out") == 2
    assert capsys.readouterr().err.startswith(f"mbrace: error: {source}:3: {message}")
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2


# --- records set aside ---


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

    monkeypatch.setattr("mbrace.cli.decode.utility_from", lambda args: mbrace.Pairwise(picky))
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


# --- runs broken off ---


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "decode", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def feed_and_wait(run: subprocess.Popen[bytes], data: bytes, out: Path, size: int) -> None:
    """Give a part of the input and wait until so much of the output is there."""
    assert run.stdin is not None
    run.stdin.write(data)
    run.stdin.flush()
    for _ in range(600):
        if out.exists() and out.stat().st_size >= size:
            return
        assert run.poll() is None, run.stderr.read() if run.stderr else ""
        time.sleep(0.05)
    raise AssertionError("the run wrote nothing")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_ended_by_a_signal_and_resumed_writes_the_bytes_of_one_that_was_not(
    suffix: str, number: signal.Signals, tmp_path: Path, candidates: Path, small_rows: list[Row]
) -> None:
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert decode(candidates, "-o", whole) == 0
    run = start("-", "-o", out, "--window", "4")
    feed_and_wait(run, lines(small_rows[:90]), out, 1000)
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert run.returncode == -9
        with out.open("ab") as file:  # and the last write was torn
            file.write(b'{"id": "s9')
    else:
        assert run.returncode == 128 + number
        assert b"--resume" in errors
        found = (gzip.decompress if suffix.endswith("gz") else bytes)(out.read_bytes())
        assert found.endswith(b"}\n")
    assert out.read_bytes() != whole.read_bytes()
    assert decode(candidates, "-o", out, "--resume", "--window", "7") == 0
    assert out.read_bytes() == whole.read_bytes()
    assert decode(candidates, "-o", out, "--resume") == 0  # nothing left to do
    assert out.read_bytes() == whole.read_bytes()


def test_an_interrupted_parquet_run_is_resumed_and_appears_only_when_whole(
    tmp_path: Path, candidates: Path, small_rows: list[Row], answers: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet

    out = tmp_path / "out.parquet"
    run = start("-", "-o", out, "--window", "4")
    feed_and_wait(run, lines(small_rows[:90]), tmp_path / "out.parquet.part", 1000)
    run.kill()
    run.communicate()
    assert not out.exists()
    assert decode(candidates, "-o", out) == 2
    assert "use --resume" in capsys.readouterr().err
    assert decode(candidates, "-o", out, "--resume") == 0
    found = pyarrow.parquet.read_table(out).to_pylist()
    assert found == [{**json.loads(line), "id": str(json.loads(line)["id"])} for line in answers.splitlines()]
    assert decode(candidates, "-o", out, "--resume") == 0  # nothing left to do
    candidates.write_bytes(candidates.read_bytes() + lines([{**GOOD, "id": "one more"}]))
    assert decode(candidates, "-o", out, "--resume") == 2
    assert "is finished, but the input has more records" in capsys.readouterr().err


def test_two_runs_on_one_output_are_refused(tmp_path: Path, candidates: Path, small_rows: list[Row]) -> None:
    out = tmp_path / "out.jsonl"
    run = start("-", "-o", out, "--window", "1")
    feed_and_wait(run, lines(small_rows[:4]), out, 100)
    for option in ("--resume", "--force"):
        second = subprocess.run([*COMMAND, "decode", candidates, "-o", out, option], capture_output=True)
        assert second.returncode == 2
        assert b"another mbrace run is writing it" in second.stderr
    assert out.read_bytes().count(b"\n") >= 1  # --force did not empty it
    run.kill()  # the lock goes with the process
    run.communicate()
    assert decode(candidates, "-o", out, "--resume") == 0


def test_resume_with_another_input_is_refused_and_the_output_kept(
    tmp_path: Path, small_rows: list[Row], answers: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    other, out = tmp_path / "other.jsonl", tmp_path / "out"
    out.write_bytes(answers)
    other.write_bytes(lines([small_rows[1], small_rows[0]]))
    assert decode(other, "-o", out, "--resume") == 2
    assert f"{other}:1: --resume: {out}:1 answers record 0 where the input has 's1'" in capsys.readouterr().err
    other.write_bytes(lines(small_rows[:5]))
    assert decode(other, "-o", out, "--resume") == 2
    assert "more answers than the input has records" in capsys.readouterr().err
    out.write_bytes(b'["not ours"]\n')
    assert decode(other, "-o", out, "--resume") == 2
    assert "not an answer of mbrace" in capsys.readouterr().err
    assert out.read_bytes() == b'["not ours"]\n'


def test_standard_output_cannot_be_resumed(candidates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decode(candidates, "--resume") == 2
    assert "cannot continue standard output" in capsys.readouterr().err


def test_a_full_device_is_named(candidates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decode(candidates, "-o", "/dev/full") == 2
    assert capsys.readouterr().err == "mbrace: error: /dev/full: No space left on device\n"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_disk_that_fills_up_leaves_a_state_to_resume(
    suffix: str, tmp_path: Path, candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert decode(candidates, "-o", whole) == 0
    limit = whole.stat().st_size // 2
    run = start(
        candidates, "-o", out, "--window", "8",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 2
    assert b"answers written before are kept: make room and go on with --resume" in errors
    assert out.stat().st_size == limit
    assert decode(candidates, "-o", out, "--resume") == 0
    assert out.read_bytes() == whole.read_bytes()


def test_an_output_that_cannot_be_written_is_named(candidates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/proc/out.jsonl", "/nowhere/out.jsonl"):
        assert decode(candidates, "-o", path) == 2
        assert f"{path}: No such file or directory; give an output file that can be written" in capsys.readouterr().err
    assert decode(candidates, "-o", "/proc", "--force") == 2
    assert "/proc: Is a directory" in capsys.readouterr().err


def test_an_input_is_never_overwritten(candidates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = candidates.read_bytes()
    assert decode(candidates, "-o", candidates, "--force") == 2
    assert f"{candidates}: is an input too" in capsys.readouterr().err
    assert candidates.read_bytes() == before


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


def test_a_mistake_in_the_first_record_leaves_no_output_behind(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"{")
    assert decode(tmp_path / "in", "-o", tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()


def test_an_empty_corpus_gives_an_empty_output(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"")
    for suffix in ("", ".gz"):
        assert decode(tmp_path / "in", "-o", tmp_path / f"out{suffix}") == 0
    assert (tmp_path / "out").read_bytes() == b""
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == b""


def test_help_is_instant_and_loads_nothing_heavy() -> None:
    code = "import sys\nfrom mbrace.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'ray', 'pyarrow', 'transformers', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


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
