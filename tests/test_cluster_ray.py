"""Clusters: runs on a real Ray, whatever dies, give the bytes of a run on one machine."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Row, lines, until
from cluster_work import Work, errors, joined, on_one_machine, small
from conftest import overlap

import mbrace
import mbrace.io.atomic
from mbrace.cli import main
from mbrace.cluster import run
from mbrace.cluster.shards import add_costs, costs
from mbrace.errors import UserError
from mbrace.jobs.decode import DecodeJob
from mbrace.jobs.run import Summary
from mbrace.settings import Race

pytestmark = pytest.mark.xdist_group("ray")  # one local cluster for all of them


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """A cluster of two logical CPUs on this machine."""
    import ray

    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    here = str(Path(__file__).parent)  # workers import `cluster_work`
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield ray
    ray.shutdown()


@pytest.fixture
def rows(demo_rows: list[Row]) -> list[Row]:
    return small(demo_rows)


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
    cluster = ["--ray", "auto", "--ray-option", "workers=2", "--ray-option", "shard_size=4"]
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


def test_files_that_only_the_drivers_host_has_are_read_there(
    ray: Any, tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    monkeypatch.setattr("mbrace.cluster.driver._is_seen_everywhere", lambda ray, paths: False)
    monkeypatch.chdir(tmp_path)
    run(Work(str(tmp_path)), ["in.jsonl"], "out", workers=2, shard_size=8)  # no CPU is left: reading needs none
    on_one_machine(Work(str(tmp_path)), ["in.jsonl"], tmp_path / "whole")
    assert joined(Path("out")) == (tmp_path / "whole").read_bytes()


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
    (tmp_path / "torn.gz").write_bytes(gzip.compress(lines(rows[:20]))[:-9])
    with pytest.raises(UserError, match=r"^[^\n]*torn.gz: damaged or cut off"):
        run(Work(str(tmp_path)), [str(tmp_path / "torn.gz")], str(tmp_path / "torn"), workers=1, shard_size=8)
    with pytest.raises(UserError, match="seed: cannot be loaded"):
        run(Work(str(tmp_path), seed=-1), [str(source)], str(tmp_path / "other"), workers=1, shard_size=8)


def test_more_than_the_cluster_has_is_refused_with_what_is_missing(ray: Any, tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(rows))

    def attempt(**options: Any) -> None:
        run(Work(str(tmp_path)), [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), resume=True, **options)

    with pytest.raises(
        UserError, match=r"workers 40: the cluster \(2 CPUs, 0 GPUs on 1 nodes\) has room for 4 workers"
    ):
        attempt(workers=40)
    with pytest.raises(UserError, match=r"has room for 0 workers with 1 GPUs"):
        attempt(workers=1, gpus_per_worker=1)
    with pytest.raises(UserError, match="the cluster has 0 GPUs"):
        attempt(gpus_per_worker=1)
    with pytest.raises(UserError, match="workers 0: must be 1 or more"):
        attempt(workers=0)


def test_what_blocks_cost_adds_up_to_what_one_run_costs() -> None:
    class Cutting(mbrace.Pairwise):
        truncated = 0

        def pairs(self, hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Any:
            self.truncated += 1
            return super().pairs(hypotheses, references, sources)

    records = [mbrace.Record(["a b", "a"], ["a b", "c"], id=i) for i in range(5)]
    worker, whole = DecodeJob(Cutting(overlap), Race(prune=None, window=1)).start(0), Summary()
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
    from mbrace.cluster.driver import cpus_per_worker

    resources = [{"CPU": n} if isinstance(n, int) else {"CPU": n[0], "GPU": n[1]} for n in nodes]
    assert cpus_per_worker(resources, workers, wanted, gpus) == share


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
import cluster_work
from mbrace.cluster import run
work = cluster_work.Work({folder!r})
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
        until(lambda: len(list(out.glob("part-*.jsonl"))) == 5 or driver.poll() is not None)
        driver.send_signal(number)
        driver.communicate(timeout=120)
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


@pytest.mark.slow
def test_a_host_that_is_lost_costs_no_answer() -> None:
    """`make hosts` in small; skipped, as there, where namespaces are not allowed."""
    hosts = Path(__file__).parent.parent / "bench" / "hosts.py"
    options = ["--records", "4000", "--only", "host 2 is killed", "--out", "-"]
    done = subprocess.run([sys.executable, hosts, *options], check=True, timeout=280, capture_output=True, text=True)
    if "skipped" in done.stderr:
        pytest.skip(done.stderr)
    assert "host 2 is killed" in done.stdout


@pytest.mark.slow
def test_translate_and_generate_on_a_cluster_write_the_bytes_of_one_machine(
    ray: Any, tmp_path: Path, demo_rows: list[Row]
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("".join(row["source"] + "\n" for row in demo_rows[:6]), encoding="utf-8")
    cluster = ["--ray", "auto", "--ray-option", "workers=1", "--ray-option", "shard_size=32"]
    few = ["--beam", "4", "--device", "cpu"]
    translate = ["translate", str(source), *few, "--schedule", "4,8", "--window", "32"]
    assert main([*translate, "-o", str(tmp_path / "t.jsonl"), "--threads", "1"]) == 0
    assert main([*translate, "-o", str(tmp_path / "t"), "--no-text", *cluster]) == 0
    assert joined(tmp_path / "t") == (tmp_path / "t.jsonl").read_bytes()
    generate = ["generate", str(source), *few, "--sample", "8", "--threads", "1"]  # torch rounds by its threads
    assert main([*generate, "-o", str(tmp_path / "g.jsonl")]) == 0
    assert main([*generate, "-o", str(tmp_path / "g"), *cluster]) == 0
    assert joined(tmp_path / "g") == (tmp_path / "g.jsonl").read_bytes()
    assert main(["decode", str(tmp_path / "g"), "-o", str(tmp_path / "d.jsonl")]) == 0  # a folder of shards is an input
    assert len((tmp_path / "d.jsonl").read_bytes().splitlines()) == 6
