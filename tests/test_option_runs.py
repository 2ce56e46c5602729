"""Every option that changes answers: the command, the job and the library agree, and a run resumes with it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Row, decode, lines

import mbrace

# By name: the options, the same in Python, other options, and why a run does not continue with those
RUNS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "none": ("", {}, "--seed 7", "was made with seed 0, not 7"),
    "regret": ("--regret 0.05", {"regret": 0.05}, "--regret 0.1", "was made with regret 0.05, not 0.1"),
    "forecast": (
        "--forecast 0.01 --regret 0.05 --schedule 16,32,64",
        {"forecast": 0.01, "regret": 0.05, "schedule": [16, 32, 64]},
        "--forecast 0 --regret 0.05 --schedule 16,32,64",
        "was made with forecast 0.01, not the default",
    ),
    "cover": (
        "--cover --regret 0.1 --schedule 8,16,32,64",
        {"cover": True, "prune": mbrace.Confidence(0.99, regret=0.1), "schedule": [8, 16, 32, 64]},
        "--regret 0.1 --schedule 8,16,32,64",
        "was made with cover True, not the default",
    ),
    "halving": (
        "--prune halving --budget 2000",
        {"prune": mbrace.Halving(2000)},
        "--prune halving --budget 3000",
        "was made with budget 2000, not 3000",
    ),
    "low-rank": (
        "--method low-rank --method-option rank=3 --method-option fraction=0.2 --nbest 2",
        {"method": mbrace.LowRank(3, 0.2), "nbest": 2},
        "--method low-rank --nbest 2",
        "was made with method 'low-rank rank=3 fraction=0.2', not 'low-rank rank=8 fraction=0.125'",
    ),
    "diverse": (
        "--method diverse --method-option diversity=1 --nbest 3",
        {"method": "diverse", "method_options": {"diversity": 1}, "nbest": 3},
        "--method diverse --nbest 3",
        "was made with method 'diverse diversity=1.0', not 'diverse diversity=0.5'",
    ),
    "a utility's option": (
        "--utility bleu --utility-option tokenize=char",
        {"utility": mbrace.BLEU(tokenize="char")},
        "--utility bleu",
        "was made with utility 'bleu tokenize=char', not 'bleu'",
    ),
}


@pytest.fixture
def rows(demo_rows: list[Row]) -> list[Row]:
    return [
        {"id": f"s{number}", "hypotheses": row["hypotheses"][:60], "pseudo_references": row["pseudo_references"][:64]}
        for number, row in enumerate(demo_rows[:7])
    ]


@pytest.mark.parametrize("name", RUNS)
def test_command_job_and_library_agree_and_a_run_resumes_with_the_same_options_only(
    name: str, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, library, others, message = RUNS[name]
    source, out, whole, job = (tmp_path / f"{each}.jsonl" for each in ("in", "out", "whole", "job"))
    source.write_bytes(lines(rows))
    assert decode(source, "-o", whole, *options.split(), "--window", "1", "--threads", "1") == 0
    assert decode(source, "-o", out, *options.split(), "--threads", "2") == 0
    mbrace.decode_file(source, job, **library)
    content = out.read_bytes()
    assert content == whole.read_bytes() == job.read_bytes()
    for row, line in zip(rows, content.splitlines(), strict=True):
        answer, written = (
            mbrace.decode(row["hypotheses"], row["pseudo_references"], id=row["id"], **library),
            json.loads(line),
        )
        assert written["text"] == answer.text
        assert [each["text"] for each in written.get("nbest", [])] in ([], [each.text for each in answer.nbest])
        for field in ("utility", "utility_calls", "pairs_scored", "strings", "pseudo_references"):
            assert written[field] == getattr(answer, field)
    out.write_bytes(content[: len(content) // 2])  # inside a line
    capsys.readouterr()
    assert decode(source, "-o", out, *others.split(), "--resume") == 2
    assert message in capsys.readouterr().err
    assert decode(source, "-o", out, *options.split(), "--resume", "--window", "3") == 0
    assert out.read_bytes() == content
