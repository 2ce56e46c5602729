"""What every command and every file has in common: warnings, byte order marks, blank lines, modes of files, bars."""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import COMMAND, lines

import mbrace
from mbrace.cli import main
from mbrace.io.texts import read_pairs

ROWS: list[dict[str, Any]] = [
    {"hypotheses": ["a b", "a"], "pseudo_references": ["a b", "b"], "source": "s", "reference": "a b", "text": "a b"},
    {"hypotheses": ["c", "d"], "pseudo_references": ["c c", "d"], "source": "t", "reference": "c", "text": "d"},
]
VARIANTS = {
    "mark": lambda data: b"\xef\xbb\xbf" + data,
    "blank lines": lambda data: data + b"\n  \n\r\n",
    "both": lambda data: b"\xef\xbb\xbf" + data + b"\n\n",
    "no line feed": lambda data: data.removesuffix(b"\n"),
}


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*command]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_byte_order_mark_and_blank_lines_at_the_end_change_nothing(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"c.jsonl": lines(ROWS), "h.txt": b"a b\nc\n", "r.txt": b"a b\nd\n", "four.txt": b"a b\na\nc\nd\n"}
    for name, data in files.items():
        Path(name).write_bytes(data)
        Path(f"other-{name}").write_bytes(VARIANTS[variant](data))
    for command in (
        ["decode", "{}c.jsonl"],
        ["decode", "{}c.jsonl", "--text"],
        ["decode", "--hypotheses", "{}four.txt", "--num-candidates", "2"],
        [
            "decode",
            "--hypotheses",
            "four.txt",
            "--num-candidates",
            "2",
            "--references",
            "{}four.txt",
            "--source",
            "{}r.txt",
        ],
        ["score", "{}h.txt", "r.txt"],
        ["score", "h.txt", "{}r.txt", "--source", "{}r.txt"],
        ["score", "{}c.jsonl", "{}c.jsonl"],
        ["compare", "{}h.txt", "h.txt", "--reference", "{}r.txt"],
    ):
        plain = [word.replace("{}", "") for word in command]
        other = [word.replace("{}", "other-") for word in command]
        said = [line.replace("other-", "") for line in printed(capsys, *other).splitlines()]  # `compare` names files
        assert said == printed(capsys, *plain).splitlines(), command
    pairs = [("a b", "a b"), ("c", "d")]
    assert read_pairs("other-h.txt", "r.txt") == read_pairs("h.txt", "other-r.txt") == pairs
    Path("t.tsv").write_bytes(VARIANTS[variant](b"a b\ta b\nc\td\n"))
    assert read_pairs("t.tsv") == pairs


def test_a_blank_line_between_records_is_an_error_and_an_empty_translation_is_a_translation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.jsonl").write_bytes(lines(ROWS[:1]) + b"\n" + lines(ROWS[1:]))
    assert main(["decode", str(tmp_path / "c.jsonl")]) == 2
    assert "c.jsonl:2: empty line" in capsys.readouterr().err
    (tmp_path / "h.txt").write_text("a b\n\n")
    (tmp_path / "r.txt").write_text("a b\nc\n")
    assert "(2 lines" in printed(capsys, "score", str(tmp_path / "h.txt"), str(tmp_path / "r.txt"))


def test_shards_of_a_file_with_a_mark_and_blank_lines_hold_its_records_alone(tmp_path: Path) -> None:
    from mbrace.cluster.shards import blocks

    (tmp_path / "c").write_bytes(b"\xef\xbb\xbf1\n2\n3\n\n \n")
    assert [b.data for b in blocks(str(tmp_path / "c"), 0, size=2, done={}, records=True)] == [b"1\n2\n", b"3\n"]
    assert [b.data for b in blocks(str(tmp_path / "c"), 0, size=2, done={})] == [b"1\n2\n", b"3\n\n", b" \n"]


def test_warnings_point_at_the_line_that_called(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mbrace.decode(["a", "b"], ["a"] * 300)
        list(mbrace.decode_corpus([mbrace.Record(["a", "b"], ["a"] * 300)]))
        (tmp_path / "in.jsonl").write_bytes(b'{"hypotheses": ["\\ud800", "\\ud800"], "pseudo_references": ["a"]}\n')
        mbrace.decode_file(tmp_path / "in.jsonl", tmp_path / "out.txt", text=True)
    assert len(found) == 3
    assert {warning.filename for warning in found} == {__file__}
    assert len({warning.lineno for warning in found}) == 3


def test_a_utility_goes_to_another_process_after_use_as_before() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from mbrace.neural.comet import Learned
    from mbrace.neural.embedding import Embedding

    for utility in (Learned(device="cpu"), Embedding(device="cpu", pooling="cls")):
        before = utility.pairs(["A dog runs."], ["The dog is running."])
        packed = pickle.dumps(utility)
        assert len(packed) < 1000  # its settings, not its weights
        again = pickle.loads(packed)
        assert (type(again), again.name) == (type(utility), utility.name)
        assert again.pairs(["A dog runs."], ["The dog is running."]) == before


def test_no_other_way_to_warn_is_used() -> None:
    package = Path(mbrace.__file__).parent
    users = [path.name for path in package.rglob("*.py") if "warnings.warn(" in path.read_text(encoding="utf-8")]
    assert users == ["errors.py"]


def test_every_utility_with_a_model_is_pickled_as_its_arguments() -> None:
    from mbrace.metrics.base import Rebuilt
    from mbrace.utilities.named import NAMED

    pytest.importorskip("transformers")
    with_model = [named for named in NAMED.values() if named.neural]
    assert len(with_model) >= 3
    for named in with_model:
        assert issubclass(getattr(importlib.import_module(f"mbrace.{named.module}"), named.class_name), Rebuilt)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_files_get_the_mode_that_the_umask_gives(mask: int, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(ROWS) + b"broken\n")
    old = os.umask(mask)
    try:
        for name in ("o.jsonl", "o.txt", "o.jsonl.gz", "o.parquet"):
            command = ["decode", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/{name}", "--on-error", "skip"]
            for more in ([], ["--force"]):
                assert main([*command, *more, *(["--text"] if name == "o.txt" else [])]) == 0
    finally:
        os.umask(old)
    made = list(tmp_path.glob("o.*"))
    assert len(made) == 12  # an output, its errors and its settings, four times
    assert {path.stat().st_mode & 0o777 for path in made} == {0o666 & ~mask}


def test_weights_get_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    import numpy as np

    from mbrace.io.atomic import give_usual_mode

    path = tmp_path / "weights.safetensors"
    safetensors.save_file({"x": np.zeros(3)}, path)
    old = os.umask(0o027)
    try:
        give_usual_mode(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_answers_and_a_bar_do_not_share_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(ROWS))
    shown: list[bool] = []
    monkeypatch.setattr("mbrace.jobs.run.progress_bar", _Bar(shown))
    for stdout_is_terminal, output, wanted in ((True, "-", False), (False, "-", True), (True, f"{tmp_path}/o", True)):
        monkeypatch.setattr("sys.stdout.isatty", lambda answer=stdout_is_terminal: answer, raising=False)
        assert main(["decode", f"{tmp_path}/in.jsonl", "-o", output]) == 0
        assert shown.pop() is wanted


class _Bar:
    def __init__(self, shown: list[bool]) -> None:
        self.shown = shown

    def __call__(self, description: str, total: int | None, *, shown: bool) -> Any:
        import contextlib

        self.shown.append(shown)
        return contextlib.nullcontext(lambda count: None)


def test_bars_of_other_libraries_are_silent_without_a_terminal(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "in.jsonl").write_bytes(lines(ROWS))
    command = [*COMMAND, "decode", str(tmp_path / "in.jsonl"), "--utility", "learned", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Loading" not in done.stderr
    assert "%|" not in done.stderr
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
