"""BLEURT and BERTScore by name on the command line: the original packages' scores, and signatures in results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_bleurt
import tiny_encoders

from mbrace.cli import main

ORACLE = Path(__file__).parent / "oracle"

SCORES = json.loads((ORACLE / "scores_encoders.json").read_text())


def score(folder: Path, hypotheses: list[str], references: list[str], *options: str) -> None:
    for name, texts in (("h.txt", hypotheses), ("r.txt", references)):
        (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    assert main(["score", f"{folder}/h.txt", f"{folder}/r.txt", "--per-line", "--device", "cpu", *options]) == 0


def test_bleurt_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tiny_bleurt.make(tmp_path, "bleurt-20")
    score(tmp_path, tiny_bleurt.HYPOTHESES, tiny_bleurt.REFERENCES, "--utility", "bleurt", "--metric-model", str(made))
    *lines, last = capsys.readouterr().out.splitlines()
    np.testing.assert_allclose([float(line) for line in lines], SCORES["bleurt"]["bleurt-20"], atol=1e-4)
    assert "bleurt|bleurt-20|encoder:float32" in last


def test_bertscore_by_name_with_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tiny_encoders.make(tmp_path, "roberta")
    (tmp_path / "texts.txt").write_text("\n".join(tiny_encoders.TEXTS) + "\n")
    options = ["--utility", "bertscore", "--metric-model", str(made)]
    for option in ("layer=2", "measure=recall", f"idf={tmp_path}/texts.txt"):
        options += ["--utility-option", option]
    score(tmp_path, tiny_encoders.HYPOTHESES, tiny_encoders.REFERENCES, *options)
    *lines, last = capsys.readouterr().out.splitlines()
    want = SCORES["bertscore"]["roberta idf"]["recall"]
    np.testing.assert_allclose([float(line) for line in lines], want, atol=1e-4)
    assert "bertscore|roberta|layer:2|measure:recall|idf:yes|rescaled:no|encoder:float32" in last
