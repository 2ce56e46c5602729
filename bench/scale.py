"""Time and memory of whole runs: 1,000 to 100,000 sentences on one machine, and Ray against the plain command.

    python bench/scale.py            # writes bench/results/scale.md and scale.png, about ten minutes on two cores

Sentences are those of the bundled demo data under new ids. Every run is the command itself, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import mbrace

DEMO = Path(mbrace.__file__).parent / "data" / "demo.jsonl.xz"
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Run:
    """One run of the command."""

    seconds: float
    cpu: float  # seconds of processor time, which other work on the machine does not stretch
    peak: float  # MiB of the process
    out: Path


def write_corpus(path: Path, sentences: int, hypotheses: int, references: int) -> None:
    """`sentences` records of so many candidates each, cut from the demo data at places that differ."""
    with lzma.open(DEMO, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    cuts = max(1, min(256 // hypotheses, 256 // references))
    with path.open("w", encoding="utf-8") as file:
        for number in range(sentences):
            row, cut = rows[number % len(rows)], number // len(rows) % cuts
            fields = {
                "id": f"segment-{number}",
                "source": row["source"],
                "hypotheses": row["hypotheses"][cut * hypotheses : (cut + 1) * hypotheses],
                "pseudo_references": row["pseudo_references"][cut * references : (cut + 1) * references],
            }
            file.write(json.dumps(fields) + "\n")


def decode(source: Path, out: Path, *options: str) -> Run:
    """Run `mbrace decode` and measure it from outside."""
    command = [sys.executable, "-m", "mbrace", "decode", str(source), "-o", str(out), "--force", *options]
    started = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out)


def on_one_machine(folder: Path, sizes: list[int]) -> tuple[list[str], list[tuple[int, Run]]]:
    """Time and peak memory by size."""
    runs = []
    for size in sizes:
        source = folder / "small.jsonl"
        write_corpus(source, size, 16, 32)
        runs.append((size, decode(source, folder / "small.out.jsonl", "--threads", "1")))
        print(f"{size:,}: {runs[-1][1].seconds:.1f} s, {runs[-1][1].peak:.0f} MiB", file=sys.stderr)
    lines = [
        "| sentences | seconds | CPU seconds | sentences a CPU second | peak memory (MiB) |",
        "|---:|---:|---:|---:|---:|",
    ]
    lines += [f"| {n:,} | {r.seconds:.1f} | {r.cpu:.1f} | {n / r.cpu:,.0f} | {r.peak:.1f} |" for n, r in runs]
    by_size = dict(runs)
    if 10_000 in by_size and 100_000 in by_size:
        growth = by_size[100_000].peak / by_size[10_000].peak - 1
        lines += ["", f"Peak memory from 10,000 to 100,000 sentences: {growth:+.1%}."]
    return lines, runs


def running_rate(folder: Path, sentences: int, workers: int) -> float:
    """Sentences a second between the first round of shards and the last shard, by the times of the files."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    ends = sorted(((folder / shard["file"]).stat().st_mtime, shard["lines"]) for shard in manifest["shards"])
    return float(sum(lines for _, lines in ends[workers:]) / (ends[-1][0] - ends[workers - 1][0]))


def on_ray(folder: Path, sentences: int, shard_size: int) -> list[str]:
    """The plain command against Ray, on as many cores, one right after the other."""
    source = folder / "large.jsonl"
    write_corpus(source, sentences, 256, 256)
    lines = [
        "| cores | run | seconds in all | overhead in all | sentences a second while running | overhead while running "
        "| same bytes |",
        "|---:|---|---:|---:|---:|---:|---|",
    ]
    for cores in (1, 2):
        before = decode(source, folder / "large.out.jsonl", "--threads", str(cores))
        options = ["--ray", "--workers", str(cores), "--threads", "1", "--shard-size", str(shard_size)]
        ray = decode(source, folder / "large.out", *options)
        after = decode(source, folder / "large.out.jsonl", "--threads", str(cores))
        plain = (before.seconds + after.seconds) / 2
        expected = after.out.read_bytes()
        found = b"".join(path.read_bytes() for path in sorted(ray.out.glob("part-*")))
        base, rate = sentences / plain, running_rate(ray.out, sentences, cores)
        lines.append(f"| {cores} | plain, `--threads {cores}` | {plain:.1f} | | {base:,.1f} | | |")
        lines.append(
            f"| {cores} | `--ray --workers {cores}` | {ray.seconds:.1f} | {ray.seconds / plain - 1:+.1%} "
            f"| {rate:,.1f} | {base / rate - 1:+.1%} | {'yes' if found == expected else 'NO'} |"
        )
        print("\n".join(lines[-2:]), file=sys.stderr)
    return lines


def plot(runs: list[tuple[int, Run]], path: Path) -> None:
    """Time and memory by corpus size, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = [size for size, _ in runs]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.loglog(sizes, [run.seconds for _, run in runs], "s--", color="#8fb8d6", label="elapsed")
    left.loglog(sizes, [run.cpu for _, run in runs], "o-", color="#1b6ca8", label="CPU")
    left.loglog(sizes, [runs[-1][1].cpu * size / sizes[-1] for size in sizes], ":", color="grey", label="linear")
    left.set(xlabel="sentences", ylabel="seconds", title="Time")
    left.legend(frameon=False)
    right.semilogx(sizes, [run.peak for _, run in runs], "o-", color="#b8471b")
    right.set(xlabel="sentences", ylabel="MiB", title="Peak memory", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,3000,10000,30000,100000")
    parser.add_argument("--ray-sentences", type=int, default=30_000, metavar="N", help="of 256 x 256 candidates")
    parser.add_argument("--shard-size", type=int, default=256)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, runs = on_one_machine(folder, [int(size) for size in args.sizes.split(",")])
        plot(runs, args.out / "scale.png")
        many = on_ray(folder, args.ray_sentences, args.shard_size) if args.ray_sentences else []
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    text = [
        "# Scale",
        "",
        f"Written by `python bench/scale.py` on {machine}.",
        "chrF++, confidence pruning with alpha 0.99, default window; times are of the whole process.",
        "",
        "## One machine, 16 hypotheses and 32 pseudo-references a sentence, one thread",
        "",
        *one,
        "",
        "![time and peak memory by corpus size](scale.png)",
        "",
        f"## Ray against the plain command: {args.ray_sentences:,} sentences, 256 hypotheses x 256 pseudo-references",
        "",
        "The plain time is the mean of a run before and one after. Start-up and shut-down of Ray are in the times in",
        "all, not in the rates while running.",
        "",
        *many,
        "",
    ]
    (args.out / "scale.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
