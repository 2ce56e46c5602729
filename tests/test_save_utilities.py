"""Saved utilities: what was scored, exactly; folders that survive a kill; races over them that score nothing."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import GOOD, Row, decode, feed_and_wait, lines, start
from conftest import Drawn, overlap, records

import mbrace
from mbrace.cli import main
from mbrace.cluster import driver
from mbrace.io.folders import UtilityFolder
from mbrace.jobs.decode import DecodeJob
from mbrace.result import UtilityTable
from mbrace.settings import Race
from mbrace.utilities.replay import INDEX, NAME, file_name, read_table, table_bytes


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def brute_force(record: mbrace.Record, function: Callable[[str, str], float]) -> dict[tuple[str, str], float]:
    assert isinstance(record.pseudo_references, list)
    return {(h, r): function(h, r) for h in record.hypotheses for r in [*record.pseudo_references, *record.hypotheses]}


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("prune", [None, mbrace.Confidence(0.9)])
def test_a_table_holds_every_pair_that_was_scored_and_nan_elsewhere(
    pool: bool, prune: Any, demo_rows: list[Row]
) -> None:
    asked: set[tuple[str, str]] = set()

    def noting(hypothesis: str, reference: str) -> float:
        asked.add((hypothesis, reference))
        return overlap(hypothesis, reference)

    for row in demo_rows[:3]:
        asked.clear()
        drawn = row["pseudo_references"][:40]
        record = mbrace.Record([] if pool else row["hypotheses"][:20], drawn, id=row["id"])
        options: dict[str, Any] = {"pool": pool, "schedule": [5, 10, 40], "keep_utilities": True}
        answer = mbrace.decode(record.hypotheses, iter(drawn), utility=noting, prune=prune, **options)
        table = answer.utilities
        assert table is not None
        known = {
            (hypothesis, reference)
            for r, hypothesis in enumerate(table.hypotheses)
            for c, reference in enumerate(table.pseudo_references)
            if not np.isnan(table.utilities[r, c])
        }
        assert known == asked
        assert len(asked) == answer.pairs_scored
        worth = brute_force(mbrace.Record([*record.hypotheses, *(drawn if pool else [])], drawn), overlap)
        for hypothesis, reference in known:
            value = table.utilities[table.rows[hypothesis], table.columns[reference]]
            assert value == worth[hypothesis, reference]
        assert table.counts.sum() == answer.pseudo_references
        assert all(
            count <= drawn.count(text) for text, count in zip(table.pseudo_references, table.counts, strict=True)
        )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool": True},
        {"exclude_self": True, "alone": True},
        {"logprobs": True},
        {"exclude_self": True, "pool": True, "logprobs": True},
    ],
)
def test_expected_utilities_of_a_table_are_those_of_the_answer(options: dict[str, Any], demo_rows: list[Row]) -> None:
    for row in demo_rows[:3]:
        given = {name: value for name, value in options.items() if name in ("pool", "exclude_self")}
        drawn = None if "alone" in options else row["pseudo_references"][:32]
        logprobs = [-0.1 * i for i in range(32)] if "logprobs" in options else None
        hypotheses = [] if "pool" in options else [*row["hypotheses"][:12], *row["hypotheses"][:3]]
        record = mbrace.Record(hypotheses, drawn, logprobs=logprobs)
        if "pool" in options:
            given["sampler"], record = Drawn([record]), mbrace.Record([])
        (answer,) = mbrace.decode_corpus([record], prune=None, schedule=[32], nbest=99, keep_utilities=True, **given)
        table = answer.utilities
        assert table is not None
        expected = dict(zip(table.hypotheses, table.expected().tolist(), strict=True))
        assert {each.text: each.utility for each in answer.nbest} == expected
        assert (len(table.left_out) > 0) == ("exclude_self" in options)


def test_a_pruned_hypothesis_has_no_expected_utility_and_a_survivor_has_the_answers(demo_rows: list[Row]) -> None:
    row = demo_rows[0]
    answer = mbrace.decode(row["hypotheses"], row["pseudo_references"], keep_utilities=True)
    assert answer.utilities is not None
    expected = answer.utilities.expected()
    assert np.isnan(expected).any()
    assert expected[answer.utilities.rows[answer.text]] == answer.utility


@pytest.mark.parametrize("threads", [1, 2])
def test_a_replayed_race_is_the_race_itself(threads: int, demo_rows: list[Row], tmp_path: Path) -> None:
    whole = records(demo_rows, 6)
    utility = mbrace.ChrF(threads=threads)
    kept = list(mbrace.decode_corpus(whole, utility=utility, prune=None, schedule="all", keep_utilities=True))
    stored = [answer.utilities for answer in kept if answer.utilities is not None]
    folder = UtilityFolder(str(tmp_path / "saved"))
    folder.open()
    for table in stored:
        folder.save(table)
    folder.finish()
    files = [tmp_path / "saved" / file_name(table.id) for table in stored]
    for replay in (mbrace.Replay(stored), mbrace.Replay(str(tmp_path / "saved")), mbrace.Replay(files)):
        assert (replay.name, replay.schedule) == (utility.name, utility.schedule)
        for options in ({}, {"prune": mbrace.Bottom(0.3)}, {"schedule": [5, 50], "nbest": 3, "seed": 4}):
            raced = list(mbrace.decode_corpus(whole, utility=utility, **options))  # type: ignore[arg-type]
            assert list(mbrace.decode_corpus(whole, utility=replay, **options)) == raced  # type: ignore[arg-type]


def test_a_pool_is_replayed_from_a_pool(demo_rows: list[Row]) -> None:
    row = demo_rows[0]
    options: dict[str, Any] = {"pool": True, "schedule": [8, 16, 32]}
    saved = mbrace.decode([], iter(row["pseudo_references"]), prune=None, keep_utilities=True, **options)
    assert saved.utilities is not None
    replay = mbrace.Replay([saved.utilities])
    raced = mbrace.decode([], iter(row["pseudo_references"]), **options)
    assert mbrace.decode([], iter(row["pseudo_references"]), utility=replay, **options) == raced


def test_what_was_never_scored_is_named_with_the_record_and_the_remedy(demo_rows: list[Row]) -> None:
    row = demo_rows[0]
    hypotheses, drawn = row["hypotheses"], row["pseudo_references"]
    saved = mbrace.decode(hypotheses, drawn, id="one", keep_utilities=True).utilities
    assert saved is not None
    replay = mbrace.Replay([saved])
    with pytest.raises(mbrace.RecordError, match=r"record 'one': .* were not scored.*without pruning"):
        mbrace.decode(hypotheses, drawn, id="one", utility=replay, prune=None)
    with pytest.raises(mbrace.RecordError, match=r"record 'one': .*hypothesis 'never seen' is not in its table"):
        mbrace.decode(["never seen", hypotheses[0]], drawn, id="one", utility=replay)
    with pytest.raises(mbrace.RecordError, match=r"record 'one': .*pseudo-reference 'never drawn' is not in its table"):
        mbrace.decode(hypotheses, ["never drawn"], id="one", utility=replay)
    with pytest.raises(mbrace.RecordError, match=r"record 1: .*no utilities of id 1 are stored.*save_utilities"):
        mbrace.decode(hypotheses, drawn, id=1, utility=replay)
    other = mbrace.decode(hypotheses, drawn, id="two", utility=mbrace.BLEU(), keep_utilities=True).utilities
    assert other is not None
    with pytest.raises(mbrace.RecordError, match=r"record 'two': its stored utilities are those of BLEU"):
        mbrace.Replay([saved, other])


IDS = [0, "0", -7, 2**64 - 1, "", ".", "..", "../../x", "a/b", "A", "a", "x" * 500, "\x00", "\ud800", "ünï", "CON"]
IDS += ["a\n"]


def test_files_have_safe_names_that_differ_for_any_ids() -> None:
    names = [file_name(identity) for identity in IDS]
    assert len({name.lower() for name in names}) == len(IDS)
    assert all(NAME.fullmatch(name) and len(name) < 80 for name in names)


def table_of(identity: str | int = 1, **changes: Any) -> UtilityTable:
    parts: dict[str, Any] = {
        "hypotheses": ["a\x00", "\ud800 b", ""],
        "pseudo_references": ["r\x00", "s"],
        "utilities": np.array([[1, np.nan], [2, 3], [0.1, 0.2]]),
        "counts": np.array([2, 1]),
        "weights": np.array([0.25, 0.75]),
        "left_out": np.array([[2, 1]]),
    }
    return UtilityTable(identity, "name|x", (4, 8), **(parts | changes))


@pytest.mark.parametrize("identity", IDS)
def test_a_file_gives_back_the_table_to_the_bit(identity: str | int, tmp_path: Path) -> None:
    for kind in (np.float32, np.float64):
        table = table_of(identity, utilities=np.array([[1, np.nan], [2, 3], [0.1, 0.2]], dtype=kind))
        path = tmp_path / file_name(identity)
        path.write_bytes(table_bytes(table))
        found = read_table(path)
        assert (found.id, type(found.id), found.utility, found.schedule) == (identity, type(identity), "name|x", (4, 8))
        assert (found.hypotheses, found.pseudo_references) == (["a\x00", "\ud800 b", ""], ["r\x00", "s"])
        for name in ("utilities", "counts", "weights", "left_out"):
            np.testing.assert_array_equal(getattr(found, name), getattr(table, name))
            assert getattr(found, name).dtype == getattr(table, name).dtype
        assert table_bytes(found) == path.read_bytes()  # equal tables are equal bytes
        with np.load(path) as plain:  # no pickle, nothing of ours is needed
            assert json.loads(plain["about"].tobytes())["id"] == identity
            assert {*plain.files} == {"about", "utilities", "counts", "weights", "left_out"}  # numpy 1.26 added one


@pytest.mark.parametrize(
    "changes",
    [
        {"hypotheses": ["a", "b"]},
        {"hypotheses": ["a", "a", "b"]},
        {"hypotheses": ["a", 1, "b"]},
        {"counts": np.array([1.0, 2.0])},
        {"weights": np.array([1.0])},
        {"left_out": np.array([[3, 0]])},
        {"left_out": np.array([[0, -1]])},
        {"utilities": np.zeros((3, 2), dtype=np.int64)},
    ],
)
def test_a_table_whose_parts_do_not_fit_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(table_bytes(table_of(**changes)))
    with pytest.raises(mbrace.UserError, match=r"x\.npz: not a table of utilities"):
        read_table(path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    good, path = table_bytes(table_of()), tmp_path / "x.npz"
    for data in (b"", b"no", good[:-30], good[:60] + bytes(60) + good[120:], b"\x93NUMPY" + bytes(40)):
        path.write_bytes(data)
        with pytest.raises(mbrace.UserError, match=r"x\.npz: not a table of utilities"):
            read_table(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_folder_of_a_run_that_was_ended_and_resumed_equals_one_that_was_not(
    suffix: str,
    number: signal.Signals,
    tmp_path: Path,
    candidates: Path,
    small_rows: list[Row],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert decode(candidates, "-o", f"whole{suffix}", "--save-utilities", "saved") == 0
    shutil.move("saved", "whole")
    run = start("-", "-o", f"out{suffix}", "--window", "4", "--save-utilities", "saved")
    feed_and_wait(run, lines(small_rows[:90]), tmp_path / f"out{suffix}", 1000)
    run.send_signal(number)
    run.communicate(timeout=120)
    if number == signal.SIGKILL:
        (tmp_path / "saved" / (file_name("s100") + ".mbrace-tmp")).write_bytes(b"torn")
    assert contents(tmp_path / "saved") != contents(tmp_path / "whole")
    again = ("--resume", "--window", "7", "--save-utilities", "saved")
    assert decode(candidates, "-o", f"out{suffix}", *again) == 0
    assert contents(tmp_path / "saved") == contents(tmp_path / "whole")
    index = [json.loads(line) for line in (tmp_path / "saved" / INDEX).read_text().splitlines()]
    assert [row["id"] for row in index] == [row["id"] for row in small_rows]
    assert all((tmp_path / "saved" / row["file"]).exists() for row in index)
    assert decode(candidates, "-o", f"out{suffix}", *again) == 0  # nothing left to do
    assert contents(tmp_path / "saved") == contents(tmp_path / "whole")


def test_a_folder_is_continued_replaced_or_refused_with_its_output(
    tmp_path: Path, candidates: Path, small_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    out, saved = tmp_path / "out.jsonl", tmp_path / "saved"
    assert decode(candidates, "-o", out, "--save-utilities", saved) == 0
    before = contents(saved)
    assert decode(candidates, "-o", tmp_path / "o2.jsonl", "--save-utilities", saved) == 2
    assert "has utilities of another run; use --resume" in capsys.readouterr().err
    assert not (tmp_path / "o2.jsonl").exists()
    assert decode(candidates, "-o", out, "--resume") == 2  # a part of the tables would be missing
    assert "save-utilities" in capsys.readouterr().err
    candidates.write_bytes(lines([*small_rows, {**GOOD, "id": "one more"}]))
    (saved / file_name("s1")).unlink()
    assert decode(candidates, "-o", out, "--resume", "--save-utilities", saved) == 2
    assert "no table of record 's1', which is answered" in capsys.readouterr().err
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    assert decode(bad, "-o", out, "--force", "--save-utilities", saved) == 2  # nothing to put in their place
    assert contents(saved).keys() == before.keys() - {file_name("s1")}
    (saved / "notes.txt").write_text("mine")
    few = tmp_path / "few.jsonl"
    few.write_bytes(lines(small_rows[:3]))
    assert decode(few, "-o", out, "--force", "--save-utilities", saved) == 0
    assert contents(saved).keys() == {file_name(row["id"]) for row in small_rows[:3]} | {INDEX, "notes.txt"}


def test_a_record_that_failed_has_no_table(tmp_path: Path, small_rows: list[Row]) -> None:
    path, out, saved = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "saved"
    path.write_bytes(lines([small_rows[0], {"id": "bad"}, small_rows[2]]))
    assert decode(path, "-o", out, "--on-error", "skip", "--save-utilities", saved) == 0
    assert contents(saved).keys() == {*(file_name(small_rows[n]["id"]) for n in (0, 2)), INDEX}


def test_the_command_line_races_over_saved_utilities(tmp_path: Path, candidates: Path) -> None:
    saved, out, direct = tmp_path / "saved", tmp_path / "o.jsonl", tmp_path / "direct.jsonl"
    whole = ("--prune", "none", "--schedule", "all")
    assert decode(candidates, "-o", tmp_path / "x.txt", "--text", *whole, "--save-utilities", saved) == 0
    settings = ("--alpha", "0.8", "--schedule", "4,8,16")
    replay = ("--utility", "replay", "--utility-option", f"tables={saved}")
    assert decode(candidates, "-o", out, *replay, *settings) == 0
    assert decode(candidates, "-o", direct, *settings) == 0
    assert out.read_bytes() == direct.read_bytes()


def test_decode_file_and_translate_jobs_take_a_folder(tmp_path: Path, candidates: Path) -> None:
    mbrace.decode_file(candidates, tmp_path / "o.jsonl", save_utilities=tmp_path / "saved")
    assert len(contents(tmp_path / "saved")) == 151
    job = DecodeJob(mbrace.ChrF(), Race(), save_utilities="x")
    with pytest.raises(mbrace.UserError, match="save_utilities 'x': not on a cluster"):
        driver.run(job, [str(candidates)], str(tmp_path / "r"))


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    one, two = UtilityFolder(str(tmp_path / "saved")), UtilityFolder(str(tmp_path / "saved"))
    one.open()
    with pytest.raises(mbrace.UserError, match="another mbrace run is writing it"):
        two.open()
    one.finish()
    assert not (tmp_path / "saved").exists()  # nothing was put there


def test_an_experiment_over_saved_utilities_races_as_one_that_scores(tmp_path: Path, small_rows: list[Row]) -> None:
    path, saved = tmp_path / "c.jsonl", tmp_path / "saved"
    path.write_bytes(lines(small_rows[:4]))
    whole = ("--prune", "none", "--schedule", "all")
    assert decode(path, "-o", tmp_path / "o.jsonl", *whole, "--save-utilities", saved) == 0
    common = ["experiment", str(path), "--no-report", "--trials", "1", "--workers", "1", "-o"]
    replay = ["--utility", "replay", "--utility-option", f"tables={saved}"]
    assert main([*common, str(tmp_path / "e1"), *replay]) == 0
    assert main([*common, str(tmp_path / "e2")]) == 0
    found = []
    for folder in ("e1", "e2"):
        [data] = (tmp_path / folder / "data").glob("*.npz")
        with np.load(data) as stored:
            found.append({name: stored[name] for name in stored.files if name != "header"})
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name])
