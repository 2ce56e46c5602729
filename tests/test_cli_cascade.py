"""`mbrace decode --coarse`: the library's answers, resuming, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import decode, lines

import mbrace

WORDS = ["the cat sat", "a cat sat", "the dog sat", "the cat ran far", "a dog", "cat", "the cat sat far"]
ROWS = [
    {"id": f"r{number}", "hypotheses": WORDS[number % 3 :], "pseudo_references": [*WORDS[: 3 + number], "a mat"] * 3}
    for number in range(4)
]


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(ROWS))
    return path


@pytest.mark.parametrize("top", [None, 3])
def test_decoding_a_file_gives_the_answers_of_the_library(
    top: int | None, candidates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    options = ["--utility", "bleu", "--coarse", "chrf", "--nbest", "2", "--schedule", "4,8,16"]
    options += [] if top is None else ["--coarse-top", str(top)]
    assert decode(candidates, "-o", out, *options) == 0
    assert "calls of the coarse utility" in capsys.readouterr().err
    utilities: dict[str, Any] = {"utility": mbrace.BLEU(), "coarse": mbrace.ChrF(word_order=0), "coarse_top": top}
    answers = [json.loads(line) for line in out.read_bytes().splitlines()]
    for row, answer in zip(ROWS, answers, strict=True):
        want = mbrace.decode(
            row["hypotheses"], row["pseudo_references"], id=row["id"], nbest=2, schedule=[4, 8, 16], **utilities
        )
        for field in ("text", "index", "utility", "utility_calls", "coarse_calls", "strings", "pseudo_references"):
            assert answer[field] == getattr(want, field)
        assert [best["index"] for best in answer["nbest"]] == [best.index for best in want.nbest]
    summary = mbrace.decode_file(
        candidates, again, utility="bleu", coarse="chrf", coarse_top=top, nbest=2, schedule=[4, 8, 16]
    )
    assert again.read_bytes() == out.read_bytes()
    assert summary.coarse_calls == sum(answer["coarse_calls"] for answer in answers) > 0


def test_a_run_is_resumed_byte_for_byte_and_only_with_the_same_coarse_utility(
    candidates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--utility", "bleu", "--coarse", "chrf++", "--coarse-top", "3", "--window", "1"]
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    assert decode(candidates, "-o", whole, *options) == 0
    part.write_bytes(b"".join(whole.read_bytes().splitlines(keepends=True)[:2]))
    shutil.copy(f"{whole}.run.json", f"{part}.run.json")
    for other in (["--coarse", "chrf"], ["--coarse-top", "4"]):
        assert decode(candidates, "-o", part, *options, *other, "--resume") == 2
        assert "coarse" in capsys.readouterr().err
    for left_out in (["--utility", "bleu", "--window", "1"], options[:4]):  # options that are missing now
        assert decode(candidates, "-o", part, *left_out, "--resume") == 2
        assert "coarse" in capsys.readouterr().err
    assert decode(candidates, "-o", part, *options, "--resume") == 0
    assert part.read_bytes() == whole.read_bytes()
