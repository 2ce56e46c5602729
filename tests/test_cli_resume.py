"""Runs of `mbrace decode` that are interrupted anywhere, and resumed."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_helpers import COMMAND, GOOD, Row, decode, feed_and_wait, lines, start, until


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_ended_by_a_signal_and_resumed_writes_the_bytes_of_one_that_was_not(
    suffix: str,
    number: signal.Signals,
    tmp_path: Path,
    candidates: Path,
    small_rows: list[Row],
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    written = out if suffix == ".jsonl" else tmp_path / f"out{suffix}.part"
    assert decode(candidates, "-o", whole) == 0
    run = start("-", "-o", out, "--window", "4")
    feed_and_wait(run, lines(small_rows[:90]), out, 1000)
    run.send_signal(number)
    _, errors = run.communicate(timeout=120)
    if number == signal.SIGKILL:
        assert run.returncode == -9
        with written.open("ab") as file:  # and the last write was torn
            file.write(b'{"id": "s9')
    else:
        assert run.returncode == 128 + number
        assert b"--resume" in errors
        assert written.read_bytes().endswith(b"}\n")
    assert out.exists() == (suffix == ".jsonl")
    capsys.readouterr()
    assert decode(candidates, "-o", out) == 2
    assert "use --resume" in capsys.readouterr().err
    for window in ("7", "64"):  # the second time, nothing is left to do
        assert decode(candidates, "-o", out, "--resume", "--window", window) == 0
        assert out.read_bytes() == whole.read_bytes()
        assert written.exists() == (suffix == ".jsonl")


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.xz", ".jsonl.bz2", ".jsonl.zst"])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.02])
def test_a_packed_file_that_an_early_version_wrote_or_was_writing_is_continued(
    suffix: str, share: float, tmp_path: Path, candidates: Path, small_rows: list[Row]
) -> None:
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert decode(candidates, "-o", whole) == 0
    out.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])
    shutil.copy(f"{whole}.run.json", f"{out}.run.json")
    assert decode(candidates, "-o", out, "--resume") == 0
    assert out.read_bytes() == whole.read_bytes()


def test_a_finished_table_goes_on_with_new_records(tmp_path: Path, candidates: Path, answers: bytes) -> None:
    import pyarrow.parquet

    out = tmp_path / "out.parquet"
    for more in (b"", lines([{**GOOD, "id": "one more"}])):
        candidates.write_bytes(candidates.read_bytes() + more)
        assert decode(candidates, "-o", out, *(["--resume"] if more else [])) == 0
    *found, last = pyarrow.parquet.read_table(out).to_pylist()
    assert found == [{**json.loads(line), "id": str(json.loads(line)["id"])} for line in answers.splitlines()]
    assert (last["id"], last["text"]) == ("one more", "a b")


def test_two_runs_on_one_output_are_refused(tmp_path: Path, candidates: Path, small_rows: list[Row]) -> None:
    out = tmp_path / "out.jsonl"
    run = start("-", "-o", out, "--window", "1")
    feed_and_wait(run, lines(small_rows[:4]), out, 100)
    for option in ("--resume", "--force"):
        second = subprocess.run([*COMMAND, "decode", candidates, "-o", out, option], capture_output=True)
        assert second.returncode == 2
        assert b"another mbrace run is writing it" in second.stderr
    assert out.read_bytes().count(b"\n") >= 1  # --force did not empty it
    run.kill()  # the lock only valid with the process
    run.communicate()
    assert decode(candidates, "-o", out, "--resume") == 0


def test_resume_with_another_input_is_refused_and_the_output_kept(
    tmp_path: Path, small_rows: list[Row], answers: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    other, out = tmp_path / "other.jsonl", tmp_path / "out"
    out.write_bytes(answers)
    shutil.copy(tmp_path / "expected.jsonl.run.json", tmp_path / "out.run.json")
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


SLOW = """
import itertools, pathlib, time

calls = itertools.count()

def slow(hypothesis, reference):
    if next(calls) == 60:  # of 48 a window
        pathlib.Path(__file__).with_name("in-the-second-window").touch()
    time.sleep(0.1)
    return float(hypothesis == reference)
"""


@pytest.mark.parametrize(("options", "told"), [([], True), (["--log-level", "error"], False)])
def test_the_first_signal_says_how_many_sentences_are_finished_and_the_second_ends_the_run(
    options: list[str], told: bool, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "c.jsonl").write_bytes(lines([{**GOOD, "id": number} for number in range(40)]))
    out = tmp_path / "out.jsonl"
    run = start(
        tmp_path / "c.jsonl", "-o", out, "--window", "12", "--utility", f"{tmp_path / 'slow.py'}:slow", *options
    )
    until(lambda: (tmp_path / "in-the-second-window").exists() or run.poll() is not None)
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    first = run.stderr.readline() if told else time.sleep(0.3) or b""  # else the two are one
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 130
    says = [line for line in (first + errors).decode().splitlines() if "Ctrl-C" in line]
    assert len(says) == told
    if told:
        assert says[0] == "mbrace: finishing 12 sentences that are under way; Ctrl-C again stops at once"
    assert len(out.read_bytes().splitlines()) < 40
    assert not told or b"interrupted" in errors


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_disk_that_fills_up_leaves_a_state_to_resume(
    suffix: str, tmp_path: Path, candidates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert decode(candidates, "-o", whole) == 0
    limit, written = whole.stat().st_size // 2, out if suffix == ".jsonl" else tmp_path / f"out{suffix}.part"
    run = start(
        candidates, "-o", out, "--window", "8",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 2
    assert b"answers written before are kept: free disk space and continue with --resume" in errors
    assert written.stat().st_size == limit
    assert decode(candidates, "-o", out, "--resume") == 0
    assert out.read_bytes() == whole.read_bytes()
