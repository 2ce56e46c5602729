"""Clusters: the bytes of a run on one machine, whatever dies on the way."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import overlap
from hypothesis import given, settings
from hypothesis import strategies as st

import mbrace
import mbrace.io.atomic
from mbrace.cli import main
from mbrace.cluster import Manifest, run
from mbrace.cluster.folder import ShardFolder
from mbrace.cluster.shards import add_costs, blocks, costs, process_block
from mbrace.errors import UserError
from mbrace.io.candidates import Item, id_prefixes, item_from, read_items
from mbrace.io.output import Output
from mbrace.io.parquet import parquet_rows
from mbrace.jobs.decode import DecodeWorker
from mbrace.jobs.run import Outcome, Summary, run_worker

pytestmark = pytest.mark.xdist_group("ray")  # one local cluster for all of them
Row = dict[str, Any]


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """A cluster of two logical CPUs on this machine."""
    import ray

    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    here = str(Path(__file__).parent)  # workers import this module
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield ray
    ray.shutdown()


@pytest.fixture
def rows(demo_rows: list[Row]) -> list[Row]:
    return [
        {
            "id": f"s{n}",
            "hypotheses": demo_rows[n]["hypotheses"][:6],
            "pseudo_references": demo_rows[n]["hypotheses"][6:20],
        }
        for n in range(40)
    ]


def lines(rows: Iterable[Any]) -> bytes:
    return b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


@dataclass
class Misbehaving:
    """A decoder that meets orders in the text of a record: to die, to raise, or to take its time."""

    decoder: DecodeWorker
    folder: str
    summary: Summary

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        def obeyed() -> Iterator[Item]:
            for item in items:
                order = (getattr(item, "source", None) or "").split()
                if order[:1] == ["die"]:
                    self._die(int(order[1]))
                if order[:1] == ["wait"]:
                    time.sleep(float(order[1]))
                yield item

        return self.decoder(obeyed(), skip=skip)

    def _die(self, times: int) -> None:
        """End this process at once, as often as was ordered."""
        for attempt in range(times):
            try:
                os.close(os.open(f"{self.folder}/died-{attempt}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


def picky(hypothesis: str, reference: str) -> float:
    if hypothesis == "poison":
        raise RuntimeError("refused")
    return float(len(set(hypothesis.split()) & set(reference.split())))


@dataclass(frozen=True)
class Work:
    """Work for tests: a decoder with a Python utility."""

    folder: str
    text: bool = False
    seed: int = 0
    reads_records: bool = True

    def describe(self) -> Row:
        return {"seed": self.seed}

    def start(self, threads: int) -> Misbehaving:
        if self.seed < 0:
            raise UserError("seed: cannot be loaded")
        decoder = DecodeWorker(mbrace.Pairwise(picky), mbrace.Bottom(0.3), [2, 4, 8], seed=self.seed, text=self.text)
        return Misbehaving(decoder, self.folder, decoder.summary)

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        return item_from(row, file, number, prefix=prefix)


def on_one_machine(work: Work, inputs: list[str], output: Path) -> None:
    """The run that a cluster's must equal."""
    with Output(str(output), text=work.text) as out:
        decoder = DecodeWorker(mbrace.Pairwise(picky), mbrace.Bottom(0.3), [2, 4, 8], seed=work.seed, text=work.text)
        run_worker(decoder, read_items(inputs), out, skip=True)


def joined(folder: Path) -> bytes:
    """The shards one after another."""
    manifest = Manifest.read(folder)
    assert manifest.complete
    return b"".join(path.read_bytes() for path in manifest.paths(complete=True))


def errors(output: Path) -> bytes | None:
    path = Path(f"{output}.errors.jsonl")
    return path.read_bytes() if path.exists() else None


# --- without Ray: the folder, its journal and its manifest ---


def simulate(work: Work, inputs: list[str], output: Path, order: list[int], stop_after: int | None = None) -> None:
    """What a cluster does, in this process: blocks in any order, some twice, perhaps not to the end."""
    with ShardFolder(str(output), work, inputs, size=3, resume=True, force=False, text=work.text) as folder:
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
    (out / "part-00000-000003.jsonl.tmp").write_bytes(b"half a sha")
    with (out / "journal.jsonl").open("ab") as file:
        file.write(b'{"place": [0, 3], "sha')
    simulate(work, inputs, out, [])
    assert joined(out) == (tmp_path / "whole").read_bytes()


def test_two_runs_on_one_folder_are_refused(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:3]))
    work, inputs = Work(str(tmp_path)), [str(tmp_path / "in.jsonl")]
    with ShardFolder(str(tmp_path / "out"), work, inputs, size=3, resume=False, force=False, text=False):
        for resume in (True, False):
            with pytest.raises(UserError, match="another mbrace run is writing it"):
                ShardFolder(str(tmp_path / "out"), work, inputs, size=3, resume=resume, force=not resume, text=False)


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
    with ShardFolder(str(out), work, inputs, size=3, resume=True, force=False, text=False) as folder:
        folder.check_inputs(3)
        source.write_bytes(source.read_bytes().swapcase())
        with pytest.raises(UserError, match=r"in.jsonl:1: .*not those that the output was made from"):
            folder.check_inputs(3)


def test_force_keeps_the_shards_of_the_older_run_until_the_first_new_one(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows[:12]))
    work, inputs, out = Work(str(tmp_path), seed=1), [str(tmp_path / "in.jsonl")], tmp_path / "out"
    simulate(Work(str(tmp_path)), inputs, out, [])
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with ShardFolder(str(out), work, inputs, size=12, resume=False, force=True, text=False) as folder:
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
        with pytest.raises(UserError, match="No space left on device; finished shards are kept: make room and go on"):
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
    shards = [str(path) for path in Manifest.read(out).paths(complete=True)]
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
    assert [(block.number, block.data, block.changed) for block in other] == [(0, b"", True)]


# --- with Ray ---


def test_decode_on_a_cluster_writes_the_bytes_of_one_machine(
    ray: Any, tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "part-0.jsonl").write_bytes(lines([*rows[:9], b"{torn\n"]))
    (tmp_path / "part-1.jsonl.gz").write_bytes(gzip.compress(lines([*rows[9:25], {**rows[3], "source": "again"}])))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[25:]), tmp_path / "part-2.parquet")
    options = [f"file://{tmp_path}/part-*", "--on-error", "skip", "--nbest", "2"]
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out"
    assert main(["decode", *options, "-o", str(whole)]) == 0
    cluster = ["--ray", "auto", "--workers", "2", "--shard-size", "4"]
    assert (
        main(["decode", *options, "-o", str(out), *cluster]) == 0
    )  # two workers on two CPUs: reading still has its share
    assert joined(out) == whole.read_bytes()
    assert errors(out) == errors(whole)
    assert [json.loads(e)["line"] for e in (errors(out) or b"").splitlines()] == [10, 17]
    assert "2 set aside" in capsys.readouterr().err
    assert main(["decode", *options, "-o", str(out), *cluster]) == 2
    assert "exists; use --resume" in capsys.readouterr().err
    assert main(["decode", *options, "-o", str(out), *cluster, "--resume"]) == 0  # over already
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert (manifest["complete"], manifest["answers"], manifest["skipped"]) == (True, 40, 2)
    assert not (out / "journal.jsonl").exists()


def test_a_forecast_on_a_cluster_lets_in_the_hypotheses_of_one_machine(
    ray: Any, tmp_path: Path, demo_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    many = [
        {"id": n, "hypotheses": row["hypotheses"][:64], "pseudo_references": row["pseudo_references"][:48]}
        for n, row in enumerate(demo_rows[:6])
    ]
    (tmp_path / "in.jsonl").write_bytes(lines(many))
    options = [str(tmp_path / "in.jsonl"), "--forecast", "0.01", "--schedule", "16,48"]
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out"
    assert main(["decode", *options, "-o", str(whole)]) == 0
    saved = re.findall(r"utility calls \((.*) saved\)", capsys.readouterr().err)
    cluster = ["--ray", "auto", "--workers", "2", "--shard-size", "2"]
    assert main(["decode", *options, "-o", str(out), *cluster]) == 0
    assert joined(out) == whole.read_bytes()
    assert len(saved) == 1
    assert f"({saved[0]} saved)" in capsys.readouterr().err  # of what standard MBR calls, here and there
    every = tmp_path / "every.jsonl"
    assert main(["decode", *options, "-o", str(every), "--forecast", "0"]) == 0
    strings = [[json.loads(line)["strings"] for line in path.read_bytes().splitlines()] for path in (whole, every)]
    assert sum(strings[0]) < sum(strings[1])
    assert main(["decode", *options, "-o", str(out), *cluster, "--resume", "--forecast", "0.5"]) == 2
    assert "was made with forecast 0.01, not 0.5" in capsys.readouterr().err


def test_a_worker_that_dies_is_replaced_and_its_blocks_run_again(ray: Any, tmp_path: Path, rows: list[Row]) -> None:
    rows[17]["source"] = "die 2"
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    work, inputs, out = Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], tmp_path / "out"
    on_one_machine(work, inputs, tmp_path / "whole")
    summary = run(work, inputs, str(out), workers=1, shard_size=8)
    assert sorted(path.name for path in tmp_path.glob("died-*")) == ["died-0", "died-1"]
    assert joined(out) == (tmp_path / "whole").read_bytes()
    assert summary.sentences == 40


def test_a_block_that_always_kills_its_worker_ends_the_run_by_name_and_poison_is_named(
    ray: Any, tmp_path: Path, rows: list[Row]
) -> None:
    rows[30]["source"] = "die 99"
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    with pytest.raises(UserError, match=r"in.jsonl:25: the block that starts here ended its worker 4 times"):
        run(Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), workers=1, shard_size=8)


def test_poison_stops_the_run_by_name_and_a_worker_that_cannot_start_says_why(
    ray: Any, tmp_path: Path, rows: list[Row]
) -> None:
    rows[20]["hypotheses"] = ["poison", "x"]
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(rows))
    with pytest.raises(UserError, match=r"in.jsonl:21: RuntimeError: refused"):
        run(Work(str(tmp_path)), [str(source)], str(tmp_path / "out"), workers=1, shard_size=8)
    with pytest.raises(UserError, match="seed: cannot be loaded"):
        run(Work(str(tmp_path), seed=-1), [str(source)], str(tmp_path / "other"), workers=1, shard_size=8)


def test_more_than_the_cluster_has_is_refused_with_what_is_missing(ray: Any, tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows))

    def attempt(**options: Any) -> None:
        run(Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), resume=True, **options)

    with pytest.raises(UserError, match=r"workers=40, .*the cluster \(2 CPUs, 0 GPUs on 1 nodes\) has room for 4 such"):
        attempt(workers=40)
    with pytest.raises(UserError, match=r"gpus_per_worker=1: .* has room for 0 such workers"):
        attempt(workers=1, gpus_per_worker=1)
    with pytest.raises(UserError, match="the cluster has 0 GPUs"):
        attempt(gpus_per_worker=1)
    with pytest.raises(UserError, match="workers=0: must be 1 or more"):
        attempt(workers=0)


def test_what_blocks_cost_adds_up_to_what_one_run_costs() -> None:
    class Cutting(mbrace.Pairwise):
        truncated = 0

        def pairs(self, hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Any:
            self.truncated += 1
            return super().pairs(hypotheses, references, sources)

    records = [mbrace.Record(["a b", "a"], ["a b", "c"], id=i) for i in range(5)]
    worker, whole = DecodeWorker(Cutting(overlap), None, window=1), Summary()
    for part in (records[:2], records[2:]):
        before = costs(worker)
        list(worker(part, skip=False))
        add_costs(whole, [now - then for now, then in zip(costs(worker), before, strict=True)])
    assert (whole.sentences, whole.utility_calls, whole.standard_calls, whole.truncated) == (5, 20, 20, 5)
    assert whole.phases.score == pytest.approx(worker.summary.phases.score)


@pytest.mark.parametrize(("nodes", "workers", "wanted", "gpus", "share"), [
    ([2], 1, 1, 0, 1.0),
    ([2], 2, 1, 0, 0.9),  # the trap: two workers of one CPU would leave none for reading
    ([1, 1], 2, 1, 0, 0.9),  # and here 0.95 would fit, but leave 0.05 on each node
    ([4, 1], 4, 1, 0, 1.0),
    ([8], 2, 4, 0, 3.9),
    ([(8, 2), (8, 2)], 4, 1, 1, 1.0),
    ([(8, 2), (8, 2)], 5, 1, 1, None),
    ([2], 40, 1, 0, None),
    ([], 1, 1, 0, None),
])  # fmt: skip
def test_workers_get_no_more_than_leaves_a_place_for_reading(
    nodes: list[Any], workers: int, wanted: float, gpus: float, share: float | None
) -> None:
    from mbrace.cluster.pool import cpus_per_worker

    resources = [{"CPU": n} if isinstance(n, int) else {"CPU": n[0], "GPU": n[1]} for n in nodes]
    assert cpus_per_worker(resources, workers, wanted, gpus) == share


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
import test_cluster
from mbrace.cluster import run
work = test_cluster.Work({folder!r})
summary = run(work, [{source!r}], {out!r}, address={address!r}, workers=1, shard_size=4, resume=True)
sys.exit(128 + summary.signal if summary.signal else 0)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGTERM))]
)
def test_a_driver_that_is_killed_is_resumed_from_its_finished_shards(
    number: signal.Signals, ray: Any, tmp_path: Path, rows: list[Row]
) -> None:
    rows[22]["source"] = "wait 60"
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(lines(rows))
    address = ray.get_runtime_context().gcs_address
    code = DRIVER.format(
        tests=str(Path(__file__).parent), folder=str(tmp_path), source=str(source), out=str(out), address=address
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    try:
        for _ in range(600):
            if len(list(out.glob("part-*.jsonl"))) == 5:
                break
            assert driver.poll() is None
            time.sleep(0.1)
        driver.send_signal(number)
        driver.communicate(timeout=60)
        assert driver.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    finally:
        driver.kill()
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*.jsonl")}
    assert len(kept) == 5
    rows[22]["source"] = "wait 0."
    source.write_bytes(lines(rows))
    run(Work(str(tmp_path)), [str(source)], str(out), workers=1, shard_size=4, resume=True)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept  # not made again
    on_one_machine(Work(str(tmp_path)), [str(source)], tmp_path / "whole")
    assert joined(out) == (tmp_path / "whole").read_bytes()


NODE_LOST = """
import sys, threading, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import ray, test_cluster
from ray.cluster_utils import Cluster
from mbrace.cluster import run

cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, object_store_memory=100_000_000))
lost = cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
ray.init(address=cluster.address, log_to_driver=False)
def lose():
    while not list(Path({out!r}).glob("part-*.jsonl")):
        time.sleep(0.1)
    cluster.remove_node(lost, allow_graceful=False)
    Path({folder!r}, "lost").touch()
thread = threading.Thread(target=lose)
thread.start()
run(test_cluster.Work({folder!r}), [{source!r}], {out!r}, workers=2, shard_size=2)
thread.join()
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_node_that_is_lost_costs_no_answer(tmp_path: Path, rows: list[Row]) -> None:
    for row in rows:
        row["source"] = "wait 0.4"
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(lines(rows))
    here = str(Path(__file__).parent)
    code = NODE_LOST.format(tests=here, folder=str(tmp_path), source=str(source), out=str(out))
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, env={**os.environ, "PYTHONPATH": path})
    assert (tmp_path / "lost").exists()
    on_one_machine(Work(str(tmp_path)), [str(source)], tmp_path / "whole")
    assert joined(out) == (tmp_path / "whole").read_bytes()


@pytest.mark.slow
def test_translate_and_generate_on_a_cluster_write_the_bytes_of_one_machine(
    ray: Any, tmp_path: Path, demo_rows: list[Row]
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("".join(row["source"] + "\n" for row in demo_rows[:6]), encoding="utf-8")
    cluster = ["--ray", "auto", "--workers", "1", "--shard-size", "32"]
    few = ["--beam", "4", "--device", "cpu"]
    translate = ["translate", str(source), *few, "--schedule", "4,8", "--window", "32"]
    assert main([*translate, "-o", str(tmp_path / "t.jsonl"), "--threads", "1"]) == 0
    assert main([*translate, "-o", str(tmp_path / "t"), "--json", *cluster]) == 0
    assert joined(tmp_path / "t") == (tmp_path / "t.jsonl").read_bytes()
    generate = ["generate", str(source), *few, "--sample", "8", "--threads", "1"]  # torch rounds by its threads
    assert main([*generate, "-o", str(tmp_path / "g.jsonl")]) == 0
    assert main([*generate, "-o", str(tmp_path / "g"), *cluster]) == 0
    assert joined(tmp_path / "g") == (tmp_path / "g.jsonl").read_bytes()
    assert main(["decode", str(tmp_path / "g"), "-o", str(tmp_path / "d.jsonl")]) == 0  # a folder of shards is an input
    assert len((tmp_path / "d.jsonl").read_bytes().splitlines()) == 6


def test_digests_of_ids_differ_by_kind_and_are_those_of_the_journals_already_written() -> None:
    from mbrace.randomness import digest

    assert len({digest(7), digest("7"), digest("\ud800"), digest("")}) == 4
    assert np.uint64(digest(7)) == digest(7) == 10409112964721667007
    assert digest("7") == 3545911441233073353
    assert digest(7, seed=3, purpose="shuffle") == 12994278788441663079
