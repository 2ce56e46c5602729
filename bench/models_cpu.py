"""How long a model's searches take on a CPU, with the past of each path copied and shared.

    python bench/models_cpu.py [--sentences 8] [--trials 3]

Sources of newstest2018 de-en and the bundled translator. The paths of a beam share their past where it was stored
(kv_cache.py) instead of copying it at every step. Writes bench/results/models-cpu.md.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import mbrace
from mbrace import _native
from mbrace.experiments.runtimes import processor_name
from mbrace.io.candidates import read_records
from mbrace.models import kv_cache, marian
from mbrace.utility import cores

HERE = Path(__file__).parent
CANDIDATES = HERE.parent / "experiments" / "candidates" / "de-en.test.jsonl.xz"


def copied(device: torch.device, dtype: torch.dtype, layers: int, shape: Any, *, shared: bool) -> kv_cache.CopiedCache:
    return kv_cache.CopiedCache(torch.float32, layers)


@contextmanager
def reading(threads: int) -> Iterator[None]:
    """The past is shared and read by this many threads; 0: it is copied."""
    kernel = mock.Mock(attend=partial(_native.attend, threads=threads))
    patches = mock.patch.object(marian, "cache_for", copied), mock.patch.object(kv_cache, "_native", kernel)
    with patches[0 if threads == 0 else 1]:
        yield


def searches(sources: list[str], dtype: str) -> dict[str, Callable[[mbrace.Seq2Seq], Any]]:
    """By name; draws in 16 bits are left out, since nothing has changed for them."""
    found: dict[str, Callable[[mbrace.Seq2Seq], Any]] = {
        "beam 256": lambda model: model.beam(sources, k=256),
        "beam 10": lambda model: model.beam(sources, k=10),
        "64 draws": lambda model: model.sample(sources, 64, epsilon=0.02),
        "8 draws": lambda model: model.sample(sources, 8, epsilon=0.02),
    }
    return {name: search for name, search in found.items() if dtype == "float32" or "draws" not in name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    sources = [record.source or "" for record in islice(read_records(str(CANDIDATES)), args.sentences)]
    ways = {"copied past": 0, "shared past": 1, f"shared past, {cores()} threads": cores()}  # threads that read it
    lines = [
        "# A model's searches on a CPU",
        "",
        f"{processor_name()}, {cores()} cores, Python {platform.python_version()}, torch {torch.__version__}; "
        f"{len(sources)} sentences of newstest2018 de-en, the bundled translator; seconds, best of {args.trials} "
        "rounds, interleaved; written by `python bench/models_cpu.py`.",
        "",
        "| precision | search | " + " | ".join(ways) + " | shared, times as fast |",
        "|---|---|" + "---:|" * (len(ways) + 1),
    ]
    for dtype in ("float32", "bfloat16"):
        model = mbrace.Seq2Seq("bundled", device="cpu", dtype=dtype)
        for name, search in searches(sources, dtype).items():
            best = dict.fromkeys(ways, float("inf"))
            for trial in range(args.trials + 1):  # the first is a warm-up
                for label, threads in ways.items():
                    with reading(threads):
                        started = time.perf_counter()
                        search(model)
                        best[label] = min(best[label], time.perf_counter() - started if trial else float("inf"))
            seconds = list(best.values())
            cells = " | ".join(f"{each:.2f}" for each in seconds)
            lines.append(f"| {dtype} | {name} | {cells} | {seconds[0] / seconds[1]:.2f} |")
            print(lines[-1], flush=True)
    (args.out / "models-cpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
