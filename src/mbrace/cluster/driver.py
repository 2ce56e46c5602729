"""Runs a job on a Ray cluster through Ray Data: blocks of lines are read, go to a pool of workers, and come back here.

    files -> read (tasks) -> blocks of lines -> workers (actors, each with the utility loaded once) -> results -> folder

Ray Data holds readers back while blocks wait, so memory is bounded. When a worker or a node dies, Ray starts another
and gives it the block again; a block's result does not depend on the worker, and is written once, here.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mbrace.cluster.folder import ShardFolder
from mbrace.cluster.shards import TRIES, Actor, Reader, Registry, Result, add_costs
from mbrace.errors import RESUME, ServiceError, SettingError, UserError, require
from mbrace.io.candidates import expand, id_prefixes
from mbrace.jobs.run import ErrorPolicy, Job, RunOptions, Summary
from mbrace.jobs.terminal import Stop

READER_CPUS = 0.1  # reading waits for the disk: a small share is enough, but with none Ray Data waits forever
WORKERS_PER_READER = 8  # one reader keeps about a dozen workers busy with chrF++ (bench/results/scale.md)
SECONDS_FOR_RESOURCES = 60  # to wait for other jobs to end
SECONDS_FOR_NODES = 20  # to wait for a lost node to be replaced
SECONDS_BETWEEN_CHECKS = 2.0

SETTINGS = {  # of Ray Data, for our datasets alone
    "enable_progress_bars": False,
    "print_on_execution_start": False,
    "target_max_block_size": 1,  # bytes; a row of ours is a whole block of lines: never put several together
    "max_consecutive_actor_init_deaths": TRIES,
    "execution_no_progress_timeout_s": 1800,
}


def run(
    job: Job,
    inputs: list[str],
    output: str,
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float = 0,
    threads: int = 1,
    shard_size: int | None = None,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Callable[[int], None] = lambda lines: None,
    options: dict[str, Any] | None = None,
) -> Summary:
    """Run a job over every line of `inputs` (files, patterns, URLs); shards and a manifest go into the folder `output`.

    `address` is that of a running cluster; None starts one on this machine. `threads` are those of a worker (0: its
    share of the CPUs). `shard_size` is in input lines: by default 1,024 records, or 64 sources, for which candidates
    are made first. The shards, one after another, are byte for byte the file that a run on one machine writes.
    `progress` is called with the lines done since its last call. `options`, the command line's, are for the
    manifest.
    """
    RunOptions(threads, resume, force, on_error)  # refuses invalid values
    if folder := getattr(job, "save_utilities", None):
        reason = "not on a cluster, whose workers may not see that folder; run on one machine, one input after another"
        raise SettingError("save_utilities", folder, reason)
    for module in ("ray", "ray.data"):  # before anything is made or replaced
        require(module, extra="cluster")
    paths = expand(inputs)
    if "-" in paths:
        raise UserError("-: a cluster cannot read standard input; give files")
    if output == "-":
        raise UserError("output -: a cluster writes a folder of shards; give its name")
    inside = next((path for path in paths if Path(output).resolve() in Path(path).resolve().parents), None)
    if inside is not None:
        raise UserError(f"{inside}: an input inside the output {output}; give another output")
    if shard_size is None:
        shard_size = 1024 if job.reads_records else 64
    if shard_size < 1:
        raise SettingError("shard_size", shard_size, "must be 1 or more", group="ray")
    started = time.perf_counter()
    summary, skip = Summary(), on_error == "skip"
    with ShardFolder(output, job, paths, size=shard_size, resume=resume, force=force, options=options) as folder:
        summary.kept = sum(done.shard.answers for done in folder.done.values())
        if folder.complete:
            folder.check_inputs()
            return summary
        with _connected(address) as ray, Stop() as stop:
            pool = plan(ray, len(paths), workers, gpus_per_worker, threads)
            while True:
                try:
                    made = _results(ray, pool, job, paths, shard_size, folder, threads=threads, skip=skip)
                    with contextlib.closing(made) as results:
                        _collect(results, folder, summary, stop, progress)
                    break
                except NodesLost:  # continue with the nodes that are left; finished shards are not made again
                    left = max(1, workers_that_fit(nodes_of(ray), pool.cpus, pool.gpus))
                    pool = plan(ray, len(paths), min(pool.workers, left), gpus_per_worker, threads)
        summary.signal = stop.signal
        if stop.signal is None:
            folder.set_duplicates_aside(id_prefixes(paths), skip=skip)
        summary.skipped = folder.write_errors()
        if stop.signal is None:
            folder.finish()
    summary.seconds = time.perf_counter() - started
    return summary


class NodesLost(Exception):  # noqa: N818
    """The cluster has lost nodes, and has no room for the pool any more."""


def _collect(
    results: Iterator[Result],
    folder: ShardFolder,
    summary: Summary,
    stop: Stop,
    progress: Callable[[int], None],
) -> None:
    """Write results as they come."""
    while (result := stop.read(results)) is not None:
        if result.failure:
            raise (ServiceError if result.of_service else UserError)(result.failure)
        folder.add(result)
        add_costs(summary, result.costs)
        progress(result.count)


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster; the connection is closed at the end of the run unless it was open before."""
    ray = require("ray", extra="cluster")
    require("ray.data", extra="cluster")
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    where: dict[str, Any] = (
        {"address": "local", "include_dashboard": False} if address is None else {"address": address}
    )
    try:
        with _quiet():
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise UserError(
            f"Ray at {address or 'this machine'}: cannot be reached or started ({_short(error)})"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences stderr while Ray starts: its native code writes there. Errors still come as exceptions."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _results(
    ray: Any, pool: Pool, job: Job, paths: list[str], size: int, folder: ShardFolder, *, threads: int, skip: bool
) -> Generator[Result]:
    """The results of all blocks that are not done, as they come."""
    data = ray.data
    prefixes = id_prefixes(paths)
    files = []
    for index, path in enumerate(paths):
        done, absolute = folder.finished(index), path if "://" in path else os.path.abspath(path)
        files.append({"path": absolute, "input": index, "done": list(done), "digests": list(done.values())})
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    registry = ray.remote(num_cpus=0, scheduling_strategy=here)(Registry).remote()
    rows = data.from_items(files, override_num_blocks=len(files))
    for name, value in SETTINGS.items():
        if hasattr(rows.context, name):
            setattr(rows.context, name, value)
    driver_host = {f"node:{ray.util.get_node_ip_address()}": 0.001}  # a resource that Ray gives every host
    anywhere = _is_seen_everywhere(ray, [path for path in paths if "://" not in path])
    rows = rows.map_batches(
        Reader(size, job.reads_records),
        batch_size=1,
        batch_format="pyarrow",
        compute=data.TaskPoolStrategy(size=pool.readers),
        **({"num_cpus": READER_CPUS} if anywhere else {"num_cpus": 0, "resources": driver_host}),
    )
    rows = rows.map_batches(
        Actor,
        fn_constructor_args=(job, paths, prefixes, threads or pool.threads, skip, registry),
        batch_size=1,
        batch_format="pyarrow",
        compute=data.ActorPoolStrategy(size=pool.workers),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
    )
    monitor = NodeMonitor(ray, pool, registry)
    try:
        for batch in rows.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=0):
            for row in batch.to_pylist():
                yield Result(**row)
    except ray.exceptions.RayError as error:
        if monitor.lost:
            raise NodesLost from error
        raise UserError(f"Ray: {_short(error)}; finished shards are kept: continue with {RESUME}") from error
    finally:
        monitor.over.set()
        ray.kill(registry)


def _is_seen_everywhere(ray: Any, paths: list[str]) -> bool:
    """Whether all hosts have these files, so that any of them can read; else the driver's host reads."""
    hosts = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    if not paths or len(hosts) == 1:
        return True
    task, absolute = ray.remote(num_cpus=0)(_stamps), [os.path.abspath(path) for path in paths]
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    asked = [task.options(scheduling_strategy=strategy(host, soft=False)).remote(absolute) for host in hosts]
    try:
        return all(found == _stamps(absolute) for found in ray.get(asked, timeout=SECONDS_FOR_RESOURCES))
    except ray.exceptions.RayError:  # a host that is lost, or starts no task
        return False


def _stamps(paths: list[str]) -> list[tuple[int, int] | None]:
    """The sizes and times of files; None for one that is not here."""
    return [(os.path.getsize(path), os.stat(path).st_mtime_ns) if os.path.isfile(path) else None for path in paths]


def _short(error: BaseException) -> str:
    """The last line of an error from Ray, which says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@dataclass(frozen=True)
class Pool:
    """How many workers there are, the CPUs and GPUs of each, and how many readers."""

    workers: int
    cpus: float
    gpus: float
    readers: int

    @property
    def threads(self) -> int:
        """Threads a worker may use."""
        return max(1, int(self.cpus))


def plan(ray: Any, files: int, workers: int | None, gpus: float, threads: int) -> Pool:
    """A pool that leaves some CPU for reading, or an error that says what is missing: no run waits forever."""
    if workers is not None and workers < 1:
        raise SettingError("workers", workers, "must be 1 or more", group="ray")
    if gpus < 0:
        raise SettingError("gpus_per_worker", gpus, "must be 0 or more", group="ray")
    nodes = nodes_of(ray)
    total = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    if workers is None:
        workers = int(total["GPU"] // gpus) if gpus else max(1, int(total["CPU"]) - 1)
        if workers == 0:
            has = f"the cluster has {total['GPU']:g} GPUs; ask for fewer"
            raise SettingError("gpus_per_worker", gpus, has, group="ray")
    cpus = cpus_per_worker(nodes, workers, float(max(1, threads)), gpus)
    if cpus is None:
        cluster = f"{total['CPU']:g} CPUs, {total['GPU']:g} GPUs on {len(nodes)} nodes"
        room = f"the cluster ({cluster}) has room for {workers_that_fit(nodes, 0.5, gpus)} workers with {gpus:g} GPUs"
        reason = f"{room}, and reading needs some; ask for fewer or add nodes"
        raise SettingError("workers", workers, reason, group="ray")
    _wait_for(ray, {"CPU": workers * cpus + READER_CPUS, "GPU": workers * gpus})
    return Pool(workers, cpus, gpus, min(files, 1 + workers // WORKERS_PER_READER))


def cpus_per_worker(nodes: list[dict[str, float]], workers: int, wanted: float, gpus: float) -> float | None:
    """The CPUs of a worker: `wanted`, or less if only then every worker and a reader fit, however Ray packs them.

    Ray's CPUs only decide what may run at the same time: a worker with half a CPU is as fast as one with a whole one.
    """
    for tenths in range(round(wanted * 10), 0, -1):
        cpus = tenths / 10
        fits = [workers_that_fit([node], cpus, gpus) for node in nodes]
        left = max((node.get("CPU", 0.0) - n * cpus for node, n in zip(nodes, fits, strict=True)), default=0.0)
        if sum(fits) > workers or (sum(fits) == workers and left + 1e-6 >= READER_CPUS):
            return cpus
    return None


def nodes_of(ray: Any) -> list[dict[str, float]]:
    """The resources of every node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def workers_that_fit(nodes: list[dict[str, float]], cpus: float, gpus: float) -> int:
    """How many workers fit; each must fit on one node."""
    fits = (min(node.get("CPU", 0.0) / cpus, node.get("GPU", 0.0) / gpus if gpus else math.inf) for node in nodes)
    return sum(int(count + 1e-6) for count in fits)


def _wait_for(ray: Any, need: dict[str, float]) -> None:
    """Wait a while for other jobs to end; then raise an error that says what is missing."""
    for _ in range(SECONDS_FOR_RESOURCES):
        free = ray.available_resources()
        missing = {name: amount for name, amount in need.items() if free.get(name, 0.0) + 1e-6 < amount}
        if not missing:
            return
        time.sleep(1)
    what = ", ".join(f"{amount:g} {name}s, {free.get(name, 0.0):g} free" for name, amount in missing.items())
    raise UserError(f"Ray: other jobs hold what this run needs ({what}); wait for them or ask for fewer workers")


class NodeMonitor:
    """Keeps a run from waiting forever for a node that is gone.

    Ray holds the tasks of a lost worker until there is room for another one. When there has been no room for a while,
    this kills the remaining workers, which ends the run of Ray Data, and the driver starts one with a smaller pool.
    """

    def __init__(self, ray: Any, pool: Pool, registry: Any) -> None:
        self.lost, self.over = False, threading.Event()
        threading.Thread(target=self._monitor, args=(ray, pool, registry), daemon=True).start()

    def _monitor(self, ray: Any, pool: Pool, registry: Any) -> None:
        short = 0.0
        while not self.over.wait(SECONDS_BETWEEN_CHECKS):
            has_room = workers_that_fit(nodes_of(ray), pool.cpus, pool.gpus) >= pool.workers
            short = 0.0 if has_room else short + SECONDS_BETWEEN_CHECKS
            if short >= SECONDS_FOR_NODES:
                self.lost = True
                for worker in ray.get(registry.workers.remote()):
                    ray.kill(worker)
                return
