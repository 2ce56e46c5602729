"""Runs a job on a Ray cluster through Ray Data: blocks of lines are read, go to a pool of workers, and come back here.

    files -> read (tasks) -> blocks of lines -> workers (actors, each with the utility loaded once) -> results -> folder

Ray Data holds readers back while blocks wait, so memory is bounded. When a worker or a node dies, Ray starts another
and gives it the block again; a block's result does not depend on the worker, and is written once, here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mbrace.cluster.folder import ShardFolder
from mbrace.cluster.pool import READER_CPUS, NodeMonitor, Pool, nodes_of, plan, workers_that_fit
from mbrace.cluster.shards import Block, Result, add_costs, blocks, changed, failed, process_block
from mbrace.errors import ServiceError, UserError, require
from mbrace.io.candidates import expand, id_prefixes
from mbrace.io.reading import estimated_bytes
from mbrace.jobs.run import ErrorPolicy, Job, SavingJob, Summary, Worker, check_run
from mbrace.jobs.signals import Stop

TRIES = 4  # how often a block that kills its worker is given to another, before the run gives up

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
    shard_size: int = 1024,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Callable[[int, float], None] = lambda lines, share: None,
    options: dict[str, Any] | None = None,
) -> Summary:
    """Run a job over every line of `inputs` (files, patterns, URLs); shards and a manifest go into the folder `output`.

    `address` is that of a running cluster; None starts one on this machine. `threads` are those of a worker (0: its
    share of the CPUs). The shards, one after another, are byte for byte the file that a run on one machine writes.
    `progress` is called with the lines done since its last call and the share of the input done so far. `options`, the
    command line's, are kept in the manifest.
    """
    check_run(threads=threads, resume=resume, force=force, on_error=on_error)
    if isinstance(job, SavingJob) and job.save_utilities is not None:
        raise UserError(
            f"save_utilities={job.save_utilities}: not on a cluster, whose workers may not see that folder; "
            "run on one machine, one input after another"
        )
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
    if shard_size < 1:
        raise UserError(f"shard_size={shard_size}: must be 1 or more")
    started = time.perf_counter()
    summary, skip = Summary(), on_error == "skip"
    with ShardFolder(output, job, paths, size=shard_size, resume=resume, force=force, options=options) as folder:
        summary.kept = sum(done.shard.answers for done in folder.done.values())
        if folder.complete:
            folder.check_inputs()
            return summary
        with _Connection(address) as ray, Stop() as stop:
            pool = plan(ray, len(paths), workers, gpus_per_worker, threads)
            while True:
                try:
                    results = _results(ray, pool, job, paths, shard_size, folder, threads=threads, skip=skip)
                    _collect(results, folder, summary, stop, progress, paths)
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
    progress: Callable[[int, float], None],
    paths: list[str],
) -> None:
    """Write results as they come."""
    total = sum(map(estimated_bytes, paths))
    read = 0
    while (result := stop.read(results)) is not None:
        if result.failure:
            raise (ServiceError if result.of_service else UserError)(result.failure)
        folder.add(result)
        add_costs(summary, result.costs)
        read += result.input_bytes
        progress(result.count, read / total if total else 0.0)


class _Connection:
    """A connection to a cluster, closed at the end of the run unless it was open before."""

    def __init__(self, address: str | None) -> None:
        self._ray = require("ray", extra="cluster")
        require("ray.data", extra="cluster")
        self._started_here = not self._ray.is_initialized()
        if not self._started_here:
            return
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            with _quiet():
                if address is None:
                    self._ray.init(address="local", include_dashboard=False, **options)
                else:
                    self._ray.init(address=address, **options)
        except Exception as error:
            raise UserError(
                f"Ray at {address or 'this machine'}: cannot be reached or started ({_short(error)})"
            ) from error

    def __enter__(self) -> Any:
        return self._ray

    def __exit__(self, *error: object) -> None:
        if self._started_here:
            self._ray.shutdown()


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
) -> Iterator[Result]:
    """The results of all blocks that are not done, as they come."""
    data = ray.data
    prefixes = id_prefixes(paths)
    files = [
        {"path": path, "input": index, "done": list(done), "digests": list(done.values())}
        for index, path in enumerate(paths)
        for done in [folder.finished(index)]
    ]
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    registry = ray.remote(num_cpus=0, scheduling_strategy=here)(_Registry).remote()
    rows = data.from_items(files, override_num_blocks=len(files))
    for name, value in SETTINGS.items():
        if hasattr(rows.context, name):
            setattr(rows.context, name, value)
    rows = rows.map_batches(
        _Reader(size, job.reads_records),
        batch_size=1,
        batch_format="pyarrow",
        compute=data.TaskPoolStrategy(size=pool.readers),
        num_cpus=READER_CPUS,
    )
    rows = rows.map_batches(
        _Actor,
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
        raise UserError(f"Ray: {_short(error)}; finished shards are kept: go on with resume=True") from error
    finally:
        monitor.over.set()
        ray.kill(registry)


@dataclass(frozen=True)
class _Reader:
    """A task that reads a file and yields its blocks."""

    size: int
    records: bool

    def __call__(self, batch: Any) -> Iterator[Any]:
        for row in batch.to_pylist():
            done = dict(zip(row["done"], row["digests"], strict=True))
            for block in blocks(row["path"], row["input"], size=self.size, done=done, records=self.records):
                yield _table([asdict(block)])


class _Actor:
    """A worker: started once, given block after block. When it dies, Ray starts another, which gets the block again."""

    def __init__(
        self, job: Job, paths: list[str], prefixes: list[str], threads: int, skip: bool, registry: Any
    ) -> None:
        self._job, self._paths, self._prefixes, self._skip, self._registry = job, paths, prefixes, skip, registry
        ray = require("ray", extra="cluster")
        ray.get(registry.add.remote(ray.get_runtime_context().current_actor))
        self._worker: Worker | None = None
        self._failure = ""
        try:
            self._worker = job.start(threads)
        except UserError as error:  # reported with the first block: Ray would restart an actor that cannot start
            self._failure = str(error)

    def __call__(self, batch: Any) -> Any:
        return _table([asdict(self._result(Block(**row))) for row in batch.to_pylist()])

    def _result(self, block: Block) -> Result:
        path, prefix = self._paths[block.input], self._prefixes[block.input]
        if block.changed:
            return failed(block, changed(path, block))
        if self._worker is None:
            return failed(block, self._failure)
        if require("ray", extra="cluster").get(self._registry.count.remote((block.input, block.number))) > TRIES:
            lines = f"{path}:{block.first_line}"
            return failed(block, f"{lines}: the block that starts here ended its worker {TRIES} times; see Ray's logs")
        return process_block(block, self._worker, self._job, path=path, prefix=prefix, skip=self._skip)


class _Registry:
    """An actor on the driver's machine that knows the workers, and how often each block was started: one that kills its
    worker is not tried forever."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}
        self._workers: list[Any] = []

    def add(self, worker: Any) -> None:
        self._workers.append(worker)

    def workers(self) -> list[Any]:
        return self._workers

    def count(self, block: tuple[int, int]) -> int:
        self._counts[block] = self._counts.get(block, 0) + 1
        return self._counts[block]


def _table(rows: list[dict[str, Any]]) -> Any:
    return require("pyarrow", extra="cluster").Table.from_pylist(rows)


def _short(error: BaseException) -> str:
    """The last line of an error from Ray, which says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
