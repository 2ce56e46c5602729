"""How many workers a cluster has room for, what each one gets, and a watch for nodes that are lost."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Any

from mbrace.errors import UserError

READER_CPUS = 0.1  # reading waits for the disk: a small share is enough, but with none Ray Data waits forever
WORKERS_PER_READER = 8  # one reader keeps about a dozen workers busy with chrF++ (bench/results/scale.md)
SECONDS_FOR_RESOURCES = 60  # to wait for other jobs to end
SECONDS_FOR_NODES = 20  # to wait for a lost node to be replaced
SECONDS_BETWEEN_CHECKS = 2.0


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
        raise UserError(f"workers={workers}: must be 1 or more")
    if gpus < 0:
        raise UserError(f"gpus_per_worker={gpus}: must be 0 or more")
    nodes = nodes_of(ray)
    total = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    if workers is None:
        workers = int(total["GPU"] // gpus) if gpus else max(1, int(total["CPU"]) - 1)
        if workers == 0:
            raise UserError(f"gpus_per_worker={gpus:g}: the cluster has {total['GPU']:g} GPUs; ask for fewer")
    cpus = cpus_per_worker(nodes, workers, float(max(1, threads)), gpus)
    if cpus is None:
        cluster = f"{total['CPU']:g} CPUs, {total['GPU']:g} GPUs on {len(nodes)} nodes"
        raise UserError(
            f"workers={workers}, gpus_per_worker={gpus:g}: the cluster ({cluster}) has room for "
            f"{workers_that_fit(nodes, 0.5, gpus)} such workers, and reading needs some; ask for fewer or add nodes"
        )
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
        self.lost = False
        self.over = threading.Event()
        self._ray, self._pool, self._registry = ray, pool, registry
        threading.Thread(target=self._monitor, daemon=True).start()

    def _monitor(self) -> None:
        short = 0.0
        while not self.over.wait(SECONDS_BETWEEN_CHECKS):
            enough = workers_that_fit(nodes_of(self._ray), self._pool.cpus, self._pool.gpus) >= self._pool.workers
            short = 0.0 if enough else short + SECONDS_BETWEEN_CHECKS
            if short >= SECONDS_FOR_NODES:
                self.lost = True
                for worker in self._ray.get(self._registry.workers.remote()):
                    self._ray.kill(worker)
                return
