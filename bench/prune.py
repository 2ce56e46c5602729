"""One pruning decision: bootstrap by counts against the gather form and mbrs's: `python bench/prune.py`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import memory
import numpy as np

BOOTSTRAPS = 500
HERE = Path(__file__).parent
RESULTS = HERE / "results"
FORMS = {
    "counts": "mbrace: counts, native (resamples drawn)",
    "shared": "mbrace: counts, native (resamples of an earlier sentence)",
    "exact": "mbrace: all win rates, native (nothing stopped early)",
    "product": "NumPy: counts, float32 product",
    "gather": "NumPy: gather (Algorithm 2 as printed)",
    "mbrs": "mbrs: gather in torch",
}


def utilities(hypotheses: int, references: int) -> np.ndarray:
    """Similar to chrF++ tables: a mean for each hypothesis, noise for each pair, the best few nearly equal."""
    rng = np.random.default_rng(0)
    means = 45 - 6 * np.sqrt(np.linspace(0, 1, hypotheses))
    return (means[:, None] + rng.normal(0, 9, references) + rng.normal(0, 4, (hypotheses, references))).astype(
        np.float32
    )


def standings(table: np.ndarray):  # type: ignore[no-untyped-def]
    from mbrace.prune import Standings

    columns = table.shape[1]
    counts = np.ones(columns, dtype=np.int64)
    return Standings(table, counts, counts / columns, table.mean(axis=1, dtype=np.float64), 1, 7, 7)


def mbrs_wins(table: np.ndarray) -> np.ndarray:
    """The same code as in mbrs's pruning_mbr decoder, which uses torch."""
    import torch

    torch.set_num_threads(1)
    scores = torch.from_numpy(table)
    indices = torch.randint(
        table.shape[1], size=(BOOTSTRAPS, table.shape[1]), generator=torch.Generator().manual_seed(0)
    )
    means = scores[:, indices].mean(dim=-1)
    return (means >= means[scores.mean(dim=1).argmax()]).float().mean(dim=1).numpy()


def measure(form: str, hypotheses: int, references: int) -> dict:
    """Seconds and peak memory of one decision, in this process."""
    from mbrace import prune

    table = utilities(hypotheses, references)
    rng = np.random.default_rng(0)
    leader = table.mean(axis=1).argmax()
    ours, seen = prune.Confidence(bootstraps=BOOTSTRAPS), standings(table)

    def decide() -> np.ndarray:
        if form in ("counts", "shared", "exact"):
            if form == "counts":
                prune._resamples.cache_clear()
            return ours.win_rates(seen) if form == "exact" else ours(seen)
        if form == "product":
            draws = rng.multinomial(references, np.full(references, 1 / references), BOOTSTRAPS).astype(np.float32)
            return ((table - table[leader]) @ draws.T >= 0).mean(axis=1)
        if form == "gather":
            means = table[:, rng.integers(0, references, (BOOTSTRAPS, references))].mean(axis=2)
            return (means >= means[leader]).mean(axis=1)
        return mbrs_wins(table)

    small = utilities(4, 16)
    ours(standings(small))
    if form == "mbrs":
        mbrs_wins(small)
    before = memory.start()
    if form in ("shared", "exact"):
        decide()
    times = []
    while not times or (sum(times) < 1.5 and len(times) < 200):
        start = time.process_time()
        decide()
        times.append(time.process_time() - start)
    peak = memory.peak() - before
    return {"form": form, "hypotheses": hypotheses, "references": references, "seconds": min(times), "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        form, hypotheses, references = args.measure
        print(json.dumps(measure(form, int(hypotheses), int(references))))
        return
    from chrf import machine, seconds

    rows = []
    for size in (256, 1024):
        for form in FORMS:
            command = [sys.executable, __file__, "--measure", form, str(size), str(size)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout))
    line = machine()
    lines = [
        "# One pruning decision",
        "",
        f"Written by `python bench/prune.py`. {line}",
        "",
        f"{BOOTSTRAPS} resamples, processor time on one thread, each form in its own process; memory: the increase.",
    ]
    for size in (256, 1024):
        chosen = [row for row in rows if row["hypotheses"] == size]
        ours = chosen[0]["seconds"]
        lines += ["", f"## {size} hypotheses x {size} pseudo-references", ""]
        lines += ["| form | time | of mbrace's | memory |", "|---|---|---|---|"]
        lines += [
            f"| {FORMS[row['form']]} | {seconds(row['seconds'])} | {row['seconds'] / ours:,.1f}x "
            f"| {row['peak'] / 2**20:,.0f} MiB |"
            for row in chosen
        ]
    text = "\n".join([*lines, ""])
    print(text)
    (RESULTS / "prune.md").write_text(text)
    (RESULTS / "prune.json").write_text(json.dumps({"machine": line, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
