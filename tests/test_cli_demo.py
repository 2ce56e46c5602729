"""`mbrace demo`, and what runs without any optional dependency."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mbrace
from mbrace.cli import main
from mbrace.cli.demo import show_race

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "ray", "pyarrow", "matplotlib"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
from mbrace.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_demo_and_decode_run_without_any_extra(candidates: Path, tmp_path: Path, answers: bytes) -> None:
    demo = [sys.executable, "-c", BLOCKED, "demo", "--sentences", "8"]
    done = subprocess.run(demo, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    assert "standard MBR" in done.stdout
    assert "alpha 0.99" in done.stdout
    out = tmp_path / "blocked.jsonl"
    subprocess.run([sys.executable, "-c", BLOCKED, "decode", candidates, "-o", out], check=True, capture_output=True)
    assert out.read_bytes() == answers
    parquet = subprocess.run(
        [sys.executable, "-c", BLOCKED, "decode", candidates, "-o", tmp_path / "o.parquet"], capture_output=True
    )
    assert parquet.returncode == 2
    assert b"pip install 'mbrace[parquet]'" in parquet.stderr


def test_the_demo_fits_80_columns_and_ends_with_commands_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--sentences", "16"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    steps = [line for line in shown.splitlines() if line.startswith("step ")]
    assert len(steps) == 4
    assert steps[0].startswith("step 1: 16 pseudo-references, 256 -> 16 hypotheses, leader 76.7: The French")
    assert max(len(line) for line in shown.splitlines() if line not in steps) <= 80
    commands = [line.split("  ")[1] for line in shown.split("Try next:\n")[1].splitlines()]
    assert len(commands) == 3
    for command in commands[1:]:  # the first one needs an extra, and has a test of its own
        assert main(command.split()[1:]) == 0
    assert "step 4: 128 pseudo-references" in capsys.readouterr().out


def test_the_scores_of_the_demo_are_those_of_sacrebleu(capsys: pytest.CaptureFixture[str]) -> None:
    from sacrebleu.metrics import CHRF

    from mbrace.io.candidates import read_records

    records = list(read_records(str(Path(mbrace.__file__).parent / "data" / "newstest.jsonl.xz")))[:12]
    texts = {
        "beam search": [record.hypotheses[0] for record in records],
        "standard MBR": [answer.text for answer in mbrace.decode_corpus(records, prune=None)],
    }
    metric = CHRF(word_order=2)
    assert main(["demo", "--sentences", "12"]) == 0
    shown = capsys.readouterr().out
    for name, chosen in texts.items():
        pairs = zip(chosen, records, strict=True)
        scores = [metric.sentence_score(text, [record.reference or ""]).score for text, record in pairs]
        (line,) = (line for line in shown.splitlines() if line.startswith(name))
        assert f"{sum(scores) / 12:.2f}" in line.split()


def test_the_bundled_candidates_are_the_first_of_the_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "experiments"))
    import demo_candidates

    with lzma.open(demo_candidates.BUNDLED, "rt", encoding="utf-8") as file:
        assert list(file) == demo_candidates.bundled_lines()


def test_a_race_is_a_line_per_step_whose_numbers_are_those_of_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    record = mbrace.Record([f"a b c {n}" for n in range(30)], [f"a b c {n % 3}" for n in range(64)], source="s")
    show_race(record, mbrace.ChrF())
    shown = capsys.readouterr().out
    [answer] = mbrace.decode_corpus([record])
    alive = 30
    for number, step in enumerate(answer.steps, 1):
        assert f"step {number}: {step.pseudo_references} pseudo-references, {alive} -> {step.survivors} hypo" in shown
        alive = step.survivors
    assert f"answer: {answer.text}\n{answer.utility_calls:,} utility calls; standard MBR: 1,920" in shown


def test_candidates_are_saved_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "news.jsonl.xz"
    assert main(["demo", "--save", str(path)]) == 0
    assert path.read_bytes() == (Path(mbrace.__file__).parent / "data" / "newstest.jsonl.xz").read_bytes()
