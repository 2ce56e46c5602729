"""Races into which a forecast lets hypotheses, as commands, jobs and presets run them."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import Row, decode, lines

import mbrace
from mbrace.cli.options import race_settings
from mbrace.cli.parser import make_parser
from mbrace.forecast import MOST, STARTERS
from mbrace.result import RaceRecorder
from mbrace.utilities.named import NAMED

SIZES = [16, 32, 64]
OPTIONS = ["--forecast", "0.01", "--regret", "0.05", "--schedule", "16,32,64"]
LIBRARY: dict[str, Any] = {"forecast": 0.01, "prune": mbrace.Confidence(0.99, regret=0.05), "schedule": SIZES}


@pytest.fixture(scope="module")
def rows(demo_rows: list[Row]) -> list[Row]:
    """Real candidates, of which only some enter: 96 hypotheses, the first of them twice; one record has 20."""
    found = [
        {
            "id": f"s{number}",
            "source": row["source"],
            "hypotheses": [*row["hypotheses"][:96], row["hypotheses"][0]],
            "pseudo_references": row["pseudo_references"][:64],
        }
        for number, row in enumerate(demo_rows[:8])
    ]
    found[5]["hypotheses"] = found[5]["hypotheses"][:20]
    return found


@pytest.fixture
def source(tmp_path: Path, rows: list[Row]) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(rows))
    return path


def records(rows: list[Row]) -> list[mbrace.Record]:
    return [mbrace.Record(row["hypotheses"], row["pseudo_references"], id=row["id"]) for row in rows]


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_standard_mbr_would_score_all_hypotheses_and_not_only_those_that_entered(
    source: Path, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = mbrace.decode_file(source, tmp_path / "job.jsonl", **LIBRARY)
    pairs = sum(len(set(row["hypotheses"])) * len(row["pseudo_references"]) for row in rows)
    assert summary.standard_calls == pairs
    assert decode(source, "-o", tmp_path / "out.jsonl", *OPTIONS) == 0
    assert f"({1 - summary.utility_calls / pairs:.1%} saved)" in capsys.readouterr().err


def test_too_many_hypotheses_are_named_by_file_and_line_and_set_aside(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    many = [f"a b {number}" for number in range(MOST + 1)]
    references = ["a b 1", "a b 2"]
    large = {"id": "large", "hypotheses": many, "pseudo_references": references}
    largest = {"id": "largest", "hypotheses": many[:-1] + many[:9], "pseudo_references": references}
    source.write_bytes(lines([rows[0], large, largest, rows[1]]))
    message = "hypotheses: 1025 distinct ones; forecast works with at most 1024: give fewer, or --forecast 0"
    assert decode(source, "-o", out, *OPTIONS) == 2
    assert f"in.jsonl:2: {message}" in capsys.readouterr().err
    assert decode(source, "-o", out, "--force", *OPTIONS, "--on-error", "skip") == 0
    assert [row["id"] for row in read(out)] == ["s0", "largest", "s1"]
    assert decode(source, "-o", out, "--force", *OPTIONS, "--forecast", "0") == 0
    assert len(read(out)) == 4


def test_saved_utilities_have_a_row_for_each_hypothesis_that_raced_and_replay_the_race(
    source: Path, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again, saved = tmp_path / "out.jsonl", tmp_path / "again.jsonl", tmp_path / "saved"
    assert decode(source, "-o", out, *OPTIONS, "--save-utilities", saved) == 0
    replay = ["--utility", "replay", "--utility-option", f"tables={saved}"]
    assert decode(source, "-o", again, *OPTIONS, *replay) == 0
    assert again.read_bytes() == out.read_bytes()
    tables = mbrace.Replay(saved)
    for row, answer in zip(rows, read(out), strict=True):
        table = tables.table(row["id"])
        assert len(table.rows) < len(set(row["hypotheses"])) or row is rows[5]
        places = [row["hypotheses"].index(text) for text in list(table.rows)[:STARTERS]]
        assert places == sorted(places)  # those that begin, then those let in
        assert len(set(table.rows) | set(table.columns)) == answer["strings"]
        full = np.isfinite(table.utilities[table.rows[answer["text"]]])
        assert full.all()  # the winner met every pseudo-reference, whenever it entered
    capsys.readouterr()
    assert decode(source, "-o", tmp_path / "all.jsonl", "--schedule", "16,32,64", *replay) == 2
    told = capsys.readouterr().err
    assert "in.jsonl:1: " in told
    assert "is not in its table of stored utilities" in told
    assert "saved with --forecast 0 to have every one" in told


# --explain and recorded races

ROW = re.compile(r"^    ([\d.]*) +(\S+) +\[(\d+)\] (.*)$")


def test_explain_says_which_start_which_are_admitted_and_how_many_never_raced(
    source: Path, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decode(source, "-o", tmp_path / "out.jsonl", *OPTIONS) == 0
    for row, answer in zip(rows, read(tmp_path / "out.jsonl"), strict=True):
        capsys.readouterr()
        assert decode(source, "--explain", row["id"], *OPTIONS) == 0
        shown = capsys.readouterr().out.splitlines()
        assert max(map(len, shown)) <= 80
        distinct = len(set(row["hypotheses"]))
        begins = [line for line in shown if " start; " in line]
        if distinct <= STARTERS:
            assert begins == []
            assert not any(line.startswith("  admitted ") for line in shown)
            continue
        assert begins == [f"24 of {distinct} hypotheses start; others enter once a forecast says they may win"]
        steps = [index for index, line in enumerate(shown) if line.startswith("step ")]
        parts = [shown[start:end] for start, end in zip(steps, [*steps[1:], shown.index("answer:")], strict=True)]
        let_in = [sum(int(line.split()[1]) for line in part if line.startswith("  admitted "))
                  for part in parts]  # fmt: skip
        racing = [int(re.findall(r", ([\d,]+) hypothes", part[0])[0]) for part in parts]
        assert racing[0] == STARTERS
        survivors = answer["survivors"]
        assert racing[1:] == [left + new for left, new in zip(survivors, let_in[1:], strict=False)]
        assert sum(let_in) > 0
        left = distinct - STARTERS - sum(let_in)
        assert shown[-1] == f"  {left} hypotheses never raced"
        assert shown[-2] == f"  {answer['utility_calls']:,} utility calls; standard MBR: {distinct * 64:,}"
        seen: set[str] = set()  # those admitted are new: none was shown in an earlier step
        for part in parts:
            first = next((n for n, line in enumerate(part) if line.startswith("  admitted ")), None)
            admitted = [] if first is None else [
                found[3] for line in itertools.takewhile(lambda text: text.startswith("    "), part[first + 1 :])
                if (found := ROW.match(line))
            ]  # fmt: skip
            assert not seen & set(admitted)
            seen |= {found[3] for line in part if (found := ROW.match(line))}


def test_a_recorded_race_takes_in_hypotheses_that_enter_later(rows: list[Row]) -> None:
    record, recorder = records(rows)[0], RaceRecorder(LIBRARY["prune"])
    [answer] = mbrace.decode_corpus([record], watch=recorder, **LIBRARY)
    for step, cost in zip(recorder.steps, answer.steps, strict=True):
        assert step.kept.sum() == cost.survivors
        assert [record.hypotheses[index] for index in step.indexes] == list(step.texts)  # the caller's


# options from files, and presets


def test_a_preset_depends_on_the_kind_of_utility_and_never_on_the_device() -> None:
    mixtures = ["chrf++:0.5+comet:0.5", "comet:0.5+my.module:f:1", "chrf:1+bleu:1"]
    for utility in (*NAMED, *mixtures):
        encodes = utility in ("comet", "embedding", "learned", "bertscore", mixtures[0])
        for device in ("cpu", "cuda"):
            command = ["decode", "--preset", "fast", "--utility", utility, "--device", device]
            race, _ = race_settings(make_parser("decode").parse_args(command), "decode")
            assert (race.forecast, race.cover, race.regret) == ((0.0005, True, 0.04) if encodes else (0.0, False, 0.04))


def test_a_preset_runs_as_the_options_that_it_stands_for(source: Path, tmp_path: Path) -> None:
    typed, preset = tmp_path / "typed.jsonl", tmp_path / "preset.jsonl"
    assert decode(source, "-o", typed, "--regret", "0.04", "--forecast", "0.01") == 0
    assert decode(source, "-o", preset, "--preset", "fast", "--forecast", "0.01") == 0
    assert preset.read_bytes() == typed.read_bytes()
