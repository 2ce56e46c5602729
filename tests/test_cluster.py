"""Clusters: the bytes of a run on one machine, whatever dies on the way."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import Row, lines
from cluster_work import Work, errors, joined, on_one_machine, small
from hypothesis import given, settings
from hypothesis import strategies as st

import mbrace
import mbrace.io.atomic
from mbrace.cli import main
from mbrace.cluster import Manifest, run
from mbrace.cluster.folder import ShardFolder
from mbrace.cluster.shards import blocks, process_block
from mbrace.errors import UserError
from mbrace.io.candidates import id_prefixes
from mbrace.io.parquet import parquet_rows


@pytest.fixture
def rows(demo_rows: list[Row]) -> list[Row]:
    return small(demo_rows)


def simulate(work: Work, inputs: list[str], output: Path, order: list[int], stop_after: int | None = None) -> None:
    """What a cluster does, in this process: blocks in any order, some twice, perhaps not to the end."""
    with ShardFolder(str(output), work, inputs, size=3, resume=True, force=False) as folder:
        worker = work.start(1)
        found = [b for place, path in enumerate(inputs) for b in blocks(path, place, size=3, done={})]
        found = [block for block in found if (block.input, block.number) not in folder.done]
        prefixes = id_prefixes(inputs)
        turn = sorted(range(len(found)), key=lambda n: order[n % len(order)] if order else n)
        for count, number in enumerate(turn + turn[:1]):
            if count == stop_after:
                return
            block = found[number]
            path = inputs[block.input]
            folder.add(process_block(block, worker, work, path=path, prefix=prefixes[block.input], skip=True))
        folder.set_duplicates_aside(prefixes, skip=True)
        folder.write_errors()
        folder.finish()


@settings(max_examples=100, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["good", "good", "raises", "torn", "again"]), max_size=20),
    split=st.integers(0, 20),
    orders=st.lists(st.tuples(st.lists(st.integers(0, 99)), st.integers(0, 6)), max_size=4),
    suffix=st.sampled_from(["", ".gz", "text"]),
)
def test_shards_in_any_order_with_any_interruptions_are_the_file_of_one_machine(
    kinds: list[str], split: int, orders: list[tuple[list[int], int]], suffix: str, tmp_path_factory: Any
) -> None:
    tmp_path = tmp_path_factory.mktemp("folder")
    rows: list[Any] = []
    for number, kind in enumerate(kinds):
        row: Row = {"id": f"r{number}", "hypotheses": [f"a {number}", "b"], "pseudo_references": ["a", "b c", "b"]}
        if kind == "raises":
            row["hypotheses"][0] = "poison"
        if kind == "again":
            row["id"] = "r0"
        rows.append(b"{torn\n" if kind == "torn" else row)
    (tmp_path / "a.jsonl").write_bytes(lines(rows[:split]))
    (tmp_path / "b.jsonl").write_bytes(lines(rows[split:]))
    inputs = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    work = Work(str(tmp_path), text=suffix == "text")
    out, whole = tmp_path / f"out{suffix}", tmp_path / "whole"
    on_one_machine(work, inputs, whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        for order, stop_after in orders:
            if not (out / "manifest.json").exists():
                simulate(work, inputs, out, order, stop_after)
        if not (out / "manifest.json").exists():
            simulate(work, inputs, out, [])
    data = joined(out)
    assert (gzip.decompress(data) if suffix == ".gz" and data else data) == whole.read_bytes()
    assert errors(out) == errors(whole)


def test_a_shard_torn_by_a_crash_is_made_again(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:12]))
    work, inputs, out = Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], tmp_path / "out"
    on_one_machine(work, inputs, tmp_path / "whole")
    simulate(work, inputs, out, [], stop_after=3)
    (out / "part-00000-000001.jsonl").write_bytes(b"lost")  # as if the disk had forgotten it
    (out / "part-00000-000003.jsonl.mbrace-tmp").write_bytes(b"half a sha")
    with (out / "journal.jsonl").open("ab") as file:
        file.write(b'{"place": [0, 3], "sha')
    simulate(work, inputs, out, [])
    assert joined(out) == (tmp_path / "whole").read_bytes()


def test_two_runs_on_one_folder_are_refused(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:3]))
    work, inputs = Work(str(tmp_path)), [str(tmp_path / "in.jsonl")]
    with ShardFolder(str(tmp_path / "out"), work, inputs, size=3, resume=False, force=False):
        for resume in (True, False):
            with pytest.raises(UserError, match="another mbrace run is writing it"):
                ShardFolder(str(tmp_path / "out"), work, inputs, size=3, resume=resume, force=not resume)


def test_resuming_with_other_options_or_input_is_refused(tmp_path: Path, rows: list[Row]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(rows[:12]))
    inputs, out = [str(source)], tmp_path / "out"
    simulate(Work(str(tmp_path)), inputs, out, [], stop_after=2)
    with pytest.raises(UserError, match="was made with seed 0, not 1; give the same"):
        simulate(Work(str(tmp_path), seed=1), inputs, out, [])
    source.write_bytes(lines(rows[:13]))
    with pytest.raises(UserError, match=r"was made with other data \(inputs\)"):
        simulate(Work(str(tmp_path)), inputs, out, [])


def test_finished_shards_of_an_input_of_other_content_but_the_same_size_are_noticed(
    tmp_path: Path, rows: list[Row]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(lines(rows[:12]))
    work, inputs = Work(str(tmp_path)), [str(source)]
    simulate(work, inputs, out, [])
    with ShardFolder(str(out), work, inputs, size=3, resume=True, force=False) as folder:
        folder.check_inputs()
        source.write_bytes(source.read_bytes().swapcase())
        with pytest.raises(UserError, match=r"in.jsonl:1: .*not those that the output was made from"):
            folder.check_inputs()


def test_force_keeps_the_shards_of_the_older_run_until_the_first_new_one(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:12]))
    work, inputs, out = Work(str(tmp_path), seed=1), [str(tmp_path / "in.jsonl")], tmp_path / "out"
    simulate(Work(str(tmp_path)), inputs, out, [])
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with ShardFolder(str(out), work, inputs, size=12, resume=False, force=True) as folder:
        folder.write_errors()  # as after a signal
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        (block,) = blocks(inputs[0], 0, size=12, done={})
        folder.add(process_block(block, work.start(1), work, path=inputs[0], prefix="", skip=False))
        assert sorted(os.listdir(out)) == ["journal.jsonl", "part-00000-000000.jsonl"]
        folder.finish()
    on_one_machine(work, inputs, tmp_path / "whole")
    assert joined(out) == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "sub/part-00000-000000.jsonl", "..", "", 7])
def test_a_manifest_cannot_name_a_file_outside_its_folder(name: Any, tmp_path: Path) -> None:
    shard = {
        "file": name,
        "input": "x",
        "first_line": 1,
        "lines": 1,
        "answers": 1,
        "skipped": 0,
        "bytes": 1,
        "sha256": "",
    }
    fields = {"format": 1, "complete": True, "inputs": [], "work": {}, "shards": [shard]}
    (tmp_path / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match="is not the name of a shard"):
        Manifest.read(tmp_path)
    assert main(["decode", str(tmp_path), "-o", str(tmp_path / "out")]) == 2


def test_a_shard_that_is_a_link_is_refused(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:3]))
    simulate(Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], tmp_path / "out", [])
    shard = tmp_path / "out" / "part-00000-000000.jsonl"
    shard.unlink()
    shard.symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="is a link"):
        list(Manifest.read(tmp_path / "out").paths())


def test_an_input_inside_the_output_is_refused(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:3]))
    simulate(Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], tmp_path / "out", [])
    with pytest.raises(UserError, match="an input inside the output"):
        run(Work(str(tmp_path)), [str(tmp_path / "out")], str(tmp_path / "out"), force=True)
    assert joined(tmp_path / "out")


def test_errors_of_an_earlier_run_whose_folder_is_gone_stay(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:3]))
    (tmp_path / "out.errors.jsonl").write_bytes(b"{}\n")
    with pytest.raises(UserError, match=r"out.errors.jsonl: exists; use resume=True"):
        ShardFolder(str(tmp_path / "out"), Work(""), [str(tmp_path / "in.jsonl")], size=3, resume=False, force=False)
    assert errors(tmp_path / "out") == b"{}\n"


def test_without_ray_no_folder_is_made_and_none_is_replaced(
    tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:3]))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"mbrace\[cluster\]"):
        run(Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_named_and_the_finished_shards_stay(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:12]))
    work, inputs, out = Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], tmp_path / "out"
    on_one_machine(work, inputs, tmp_path / "whole")
    real, room = mbrace.io.atomic.write_all, 1500

    def full(descriptor: int, data: bytes) -> None:
        nonlocal room
        room -= len(data)
        if room < 0:
            raise OSError(28, "No space left on device")
        real(descriptor, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mbrace.io.atomic.write_all", full)
        with pytest.raises(
            UserError, match="No space left on device; finished shards are kept: free disk space and continue"
        ):
            simulate(work, inputs, out, [])
    kept = [path.stat().st_mtime_ns for path in sorted(out.glob("part-*.jsonl"))]
    assert 0 < len(kept) < 4
    simulate(work, inputs, out, [])
    assert [path.stat().st_mtime_ns for path in sorted(out.glob("part-*.jsonl"))][: len(kept)] == kept
    assert joined(out) == (tmp_path / "whole").read_bytes()


def test_parquet_shards_hold_the_rows_of_a_run_on_one_machine_and_duplicates_are_set_aside(
    tmp_path: Path, rows: list[Row]
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "in.jsonl").write_bytes(lines([*rows[:7], {**rows[7], "id": "again"}, {**rows[8], "id": "again"}]))
    work, inputs, out = Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], tmp_path / "out.parquet"
    on_one_machine(work, inputs, tmp_path / "whole.jsonl")
    simulate(work, inputs, out, [2, 0, 1], stop_after=2)
    simulate(work, inputs, out, [])
    shards = list(Manifest.read(out).paths(complete=True))
    assert len(shards) == 3
    found = [{**row, "id": str(row["id"])} for path in shards for row in parquet_rows(path)]
    whole = map(json.loads, (tmp_path / "whole.jsonl").read_bytes().splitlines())
    assert found == [{**row, "id": str(row["id"])} for row in whole]
    assert errors(out) == errors(tmp_path / "whole.jsonl")
    assert sorted(os.listdir(out)) == ["manifest.json", *(Path(path).name for path in shards)]


def test_blocks_depend_on_the_file_alone_and_read_over_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a\nb\r\n\nd\ne")
    found = list(blocks(str(path), 0, size=2, done={}))
    assert [(block.number, block.first_line, block.data) for block in found] == [
        (0, 1, b"a\nb\r\n"),
        (1, 3, b"\nd\n"),
        (2, 5, b"e"),
    ]
    assert list(blocks(str(path), 0, size=2, done={0: found[0].digest, 2: ""})) == [found[1]]
    other = list(blocks(str(path), 0, size=2, done={0: found[1].digest, 1: found[1].digest, 2: ""}))
    assert [(block.number, block.data, "not those that the output" in block.failure) for block in other] == [
        (0, b"", True)
    ]


def test_digests_of_ids_differ_by_kind_and_are_those_of_the_journals_already_written() -> None:
    from mbrace.records import digest

    assert len({digest(7), digest("7"), digest("\ud800"), digest("")}) == 4
    assert np.uint64(digest(7)) == digest(7) == 10409112964721667007
    assert digest("7") == 3545911441233073353
    assert digest(7, seed=3, purpose="shuffle") == 12994278788441663079
