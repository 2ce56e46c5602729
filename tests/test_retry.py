"""`--on-error retry`: records set aside get their answers; the output is that of a run without failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import overlap

import mbrace
from mbrace.cli import main
from mbrace.errors import ServiceError

COUNT = 150  # more than two members of a packed file


class Broken:
    """A utility that fails for the records of some numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = set(numbers)
        self.scored: set[int] = set()
        self.error: type[Exception] = RuntimeError
        self.__name__ = "broken"

    def __call__(self, hypothesis: str, reference: str) -> float:
        number = int(reference.split()[0])
        if number in self.numbers:
            raise self.error("cannot be scored")
        self.scored.add(number)
        return overlap(hypothesis, reference)


def write_input(folder: Path, count: int = COUNT) -> Path:
    path = folder / "in.jsonl"
    rows = [
        {"id": n, "hypotheses": [f"{n} a", f"{n} b"], "pseudo_references": [f"{n} b c"]} for n in range(1, count + 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def content(path: Path) -> Any:
    if path.suffix != ".parquet":
        return path.read_bytes()
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


@pytest.mark.parametrize(
    "name", ["o.jsonl", "o.jsonl.gz", "o.jsonl.xz", "o.jsonl.bz2", "o.jsonl.zst", "o.parquet", "o.txt"]
)
def test_the_output_is_that_of_a_run_without_failures(tmp_path: Path, name: str) -> None:
    source, out = write_input(tmp_path), tmp_path / name
    how: dict[str, Any] = {
        "utility": Broken(1, 2, 70, 149, 150),
        "window": 16,
        "text": name == "o.txt",
        "on_error": "skip",
    }
    assert mbrace.decode_file(source, out, **how).skipped == 5
    utility = how["utility"] = Broken(70)
    summary = mbrace.decode_file(source, out, resume=True, **{**how, "on_error": "retry"})
    assert utility.scored == {1, 2, 149, 150}  # nothing else is done again
    assert (summary.sentences, summary.kept, summary.skipped) == (4, 145 + how["text"], 1)
    (left,) = (tmp_path / f"{name}.errors.jsonl").read_text().splitlines()
    assert json.loads(left)["line"] == 70
    how["utility"] = Broken()
    assert mbrace.decode_file(source, out, resume=True, **{**how, "on_error": "retry"}).skipped == 0
    assert not (tmp_path / f"{name}.errors.jsonl").exists()
    whole = tmp_path / f"whole-{name}"
    mbrace.decode_file(source, whole, **how)
    assert content(out) == content(whole)


@pytest.mark.parametrize("text", [False, True])
def test_an_unfinished_run_goes_on_after_the_retry(tmp_path: Path, text: bool) -> None:
    source, out = write_input(tmp_path), tmp_path / "o"
    utility = Broken(3, 40)
    how: dict[str, Any] = {"window": 16, "text": text, "on_error": "skip"}
    utility.numbers.add(90)

    def stops(hypothesis: str, reference: str) -> float:
        if reference.startswith("90 "):
            raise ServiceError("down")
        return utility(hypothesis, reference)

    stops.__name__ = "broken"
    with pytest.raises(ServiceError):
        mbrace.decode_file(source, out, utility=stops, **how)
    lines = out.read_bytes().splitlines()
    assert 60 < len(lines) < 90
    utility.numbers.clear()
    summary = mbrace.decode_file(source, out, utility=utility, resume=True, **{**how, "on_error": "retry"})
    assert summary.sentences == COUNT - len(lines) + (2 if text else 0)
    mbrace.decode_file(source, tmp_path / "whole", utility=utility, **how)
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_retry_that_the_service_ends_keeps_what_it_answered(tmp_path: Path) -> None:
    source, out = write_input(tmp_path, 20), tmp_path / "o.jsonl"
    mbrace.decode_file(source, out, utility=Broken(2, 4, 6), on_error="skip")
    down = Broken(4)
    down.error = ServiceError
    with pytest.raises(ServiceError):
        mbrace.decode_file(source, out, utility=down, window=1, resume=True, on_error="retry")
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()][:4] == [1, 2, 3, 5]
    left = (tmp_path / "o.jsonl.errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in left] == [4, 6]


def test_a_retry_killed_between_its_two_files_is_mended_by_the_next_run(tmp_path: Path) -> None:
    source, out, utility = write_input(tmp_path, 20), tmp_path / "o.jsonl", Broken(2, 4)
    mbrace.decode_file(source, out, utility=utility, on_error="skip")
    errors = tmp_path / "o.jsonl.errors.jsonl"
    stale = errors.read_bytes()
    utility.numbers.clear()
    mbrace.decode_file(source, out, utility=utility, resume=True, on_error="retry")
    whole = out.read_bytes()
    errors.write_bytes(stale)
    mbrace.decode_file(source, out, utility=utility, resume=True)
    assert out.read_bytes() == whole
    errors.write_bytes(stale)
    mbrace.decode_file(source, out, utility=utility, resume=True, on_error="retry")
    assert (out.read_bytes(), errors.exists()) == (whole, False)


def test_what_was_mended_in_the_input_is_answered(tmp_path: Path) -> None:
    source, out = write_input(tmp_path, 3), tmp_path / "o.jsonl"
    good = source.read_text()
    source.write_text(good.replace('"hypotheses": ["2 a", "2 b"]', '"hypotheses": []'))
    command = ["decode", str(source), "-o", str(out), "--on-error", "skip"]
    assert main(command) == 0
    source.write_text(good)
    assert main([*command, "--resume", "--on-error", "retry"]) == 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [1, 2, 3]


def test_a_stream_is_not_read_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    source = write_input(tmp_path, 3)
    command = ["-o", str(tmp_path / "o.jsonl"), "--on-error", "retry", "--resume"]
    assert main(["decode", str(source), *command]) == 0  # nothing to retry: a run like any other
    with open(source) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["decode", "-", *command]) == 2
    assert "--on-error retry: reads the input twice" in capsys.readouterr().err
