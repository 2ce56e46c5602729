"""`mbrace decode --explain ID`: what it says of a race is what happened in it."""

from __future__ import annotations

import json
import re
from math import comb
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import decode, lines
from rich.cells import cell_len

ROW = re.compile(r"^    ([\d.]*) +(\S+) +\[(\d+|drawn)\] (.*)$")


def explain(capsys: pytest.CaptureFixture[str], path: Path, identity: str, *options: str) -> list[str]:
    assert decode(path, "--explain", identity, *options) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return told.out.splitlines()


def test_a_race_that_can_be_worked_out_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": "one", "source": "Q", "hypotheses": ["a", "b", "c"], "pseudo_references": ["a"] * 12 + ["b"] * 4}
    (tmp_path / "in.jsonl").write_bytes(lines([{"hypotheses": ["x", "y"]}, row]))
    shown = explain(capsys, tmp_path / "in.jsonl", "one", "--utility", "exact")
    assert shown[0] == "record one: 3 hypotheses, 16 pseudo-references"
    assert shown[1] == "  source: Q"
    assert "step 1: 16 pseudo-references, 3 hypotheses, 48 utility calls" in shown
    at = shown.index("  leads:")
    assert shown[at + 1].split() == ["1.000", "0.75", "[0]", "a"]
    assert shown[at + 2] == "  dropped 1: equal or beat the leader in at most 1 - alpha = 0.01 of resamples"
    assert shown[at + 3].split() == ["0.000", "0", "[2]", "c"]  # c is right only where no resample has an a
    assert shown[at + 4] == "  1 other kept:"
    share, utility, index, text = shown[at + 5].split()
    assert (utility, index, text) == ("0.25", "[1]", "b")
    # b equals or beats a where at least 8 of 16 draws, each b with a chance of 1/4, are b
    expected = sum(comb(16, n) * 0.25**n * 0.75 ** (16 - n) for n in range(8, 17))
    assert abs(float(share) - expected) < 4 * (expected * (1 - expected) / 500) ** 0.5
    assert shown[-4:] == ["answer:", "  [0] 0.75", "    a", "  48 utility calls; standard MBR: 48"]


RULES: dict[str, list[str]] = {
    "confidence": [],
    "regret": ["--regret", "0.5"],
    "bottom": ["--prune", "bottom", "--beta", "0.5"],
    "standard MBR": ["--prune", "none"],
    "n best": ["--nbest", "3", "--alpha", "0.8"],
}


@pytest.mark.parametrize("rule", RULES)
def test_it_is_the_race_that_decode_runs(
    rule: str, tmp_path: Path, small_rows: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(small_rows[:8]))
    options = ["--schedule", "4,8,16,24", *RULES[rule]]
    assert decode(source, "-o", out, *options) == 0
    capsys.readouterr()
    for answer in map(json.loads, out.read_bytes().splitlines()):
        shown = explain(capsys, source, str(answer["id"]), *options)
        steps = [line for line in shown if line.startswith("step ")]
        calls = [int(re.findall(r"([\d,]+) utility call", line)[0].replace(",", "")) for line in steps]
        assert sum(calls) == answer["utility_calls"]
        alive = [int(re.findall(r", ([\d,]+) hypothes", line)[0]) for line in steps]
        assert alive[1:] == answer["survivors"][: len(alive) - 1]
        for line, survivors, number in zip(steps, answer["survivors"], alive, strict=True):
            part = shown[shown.index(line) :]
            end = next(n for n, text in enumerate(part) if text == "")
            dropped = [int(text.split()[1].rstrip(":")) for text in part[:end] if text.startswith("  dropped ")]
            assert number - sum(dropped) == survivors
        chosen = "drawn" if answer["index"] is None else answer["index"]
        assert re.match(rf"  \[{chosen}\] ", shown[shown.index("answer:") + 1])
        assert " ".join(line.strip() for line in shown[shown.index("answer:") + 2 :]).startswith(
            " ".join(answer["text"].split())
        )


def test_why_a_hypothesis_was_dropped(
    tmp_path: Path, small_rows: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(small_rows[:1]))
    reasons = {
        ("--alpha", "0.9"): "equal or beat the leader in at most 1 - alpha = 0.1 of resamples",
        ("--alpha", "0.999", "--regret", "5"): "is at most 5 sd",
        ("--prune", "bottom", "--beta", "0.25"): "the lowest 0.25 by expected utility",
        ("--nbest", "2", "--alpha", "0.5"): "equal or beat number 2 in at most",
    }
    for options, reason in reasons.items():
        shown = explain(capsys, tmp_path / "in.jsonl", "0", "--schedule", "8,24", *options)
        assert any(reason in line for line in shown if line.startswith("  dropped "))


def test_it_fits_80_columns_and_sends_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["犬が浜辺を走っている。" * 12, "\x1b[31mred\x1b[0m\r\n\ttext " * 20, "word " * 60, "a" * 300]
    row = {"id": 7, "source": "q" * 200, "reference": "字" * 90, "hypotheses": texts, "pseudo_references": texts * 5}
    (tmp_path / "in.jsonl").write_bytes(lines([row]))
    for options in ([], ["--nbest", "4"], ["--regret", "0.001"]):
        shown = explain(capsys, tmp_path / "in.jsonl", "7", *options)
        assert max(map(cell_len, shown)) <= 80
        assert all(line.isprintable() for line in shown)


def test_no_race_is_needed_for_one_hypothesis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines([{"hypotheses": ["a", "a"], "pseudo_references": ["b"]}]))
    shown = explain(capsys, tmp_path / "in.jsonl", "1")
    assert shown[0] == "record 1: 2 hypotheses (1 distinct), 1 pseudo-reference"
    assert "no race: only one hypothesis could win" in shown
    assert shown[-3:] == ["  [0]", "    a", "  0 utility calls; standard MBR: 1"]
