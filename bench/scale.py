"""Time and memory of whole runs: 1,000 to 100,000 sentences on one machine, and Ray against the plain command.

    python bench/scale.py            # writes bench/results/scale.md, about ten minutes on two cores

Sentences are those of the bundled demo data under new ids. Every run is the command itself, in a separate process.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
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
from typing import Any

import numpy as np

import mbrace
from mbrace.cluster.folder import ShardFolder
from mbrace.cluster.shards import Result, blocks

DEMO = Path(mbrace.__file__).parent / "data" / "demo.jsonl.xz"
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Run:
    """One run of the command."""

    seconds: float
    cpu: float  # seconds of processor time, which does not depend on the load of the machine
    peak: float  # MiB of the process
    out: Path


def write_corpus(path: Path, sentences: int, hypotheses: int, references: int) -> None:
    """Write `sentences` records with the given numbers of candidates, each a different part of the demo data."""
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


def on_one_machine(folder: Path, sizes: list[int]) -> list[list[float]]:
    """[sentences, seconds, CPU seconds, peak MiB] by size."""
    rows: list[list[float]] = []
    for size in sizes:
        source = folder / "small.jsonl"
        write_corpus(source, size, 16, 32)
        run = decode(source, folder / "small.out.jsonl", "--threads", "1")
        rows.append([size, run.seconds, run.cpu, run.peak])
        print(f"{size:,}: {run.seconds:.1f} s, {run.cpu:.1f} CPU s, {run.peak:.0f} MiB", file=sys.stderr)
    return rows


def running_rate(folder: Path, workers: int) -> float:
    """Sentences per second between the first round of shards and the last shard, by the files' times."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    ends = sorted(((folder / shard["file"]).stat().st_mtime, shard["lines"]) for shard in manifest["shards"])
    return float(sum(lines for _, lines in ends[workers:]) / (ends[-1][0] - ends[workers - 1][0]))


def on_ray(folder: Path, shard_size: int) -> list[dict[str, float]]:
    """The plain command against Ray on the same number of cores, one right after the other."""
    rows = []
    for cores in (1, 2):
        options = ["--threads", str(cores)]
        before = decode(folder / "large.jsonl", folder / "large.out.jsonl", *options)
        cluster = [
            "--ray",
            "--ray-option",
            f"workers={cores}",
            "--threads",
            "1",
            "--ray-option",
            f"shard_size={shard_size}",
        ]
        ray = decode(folder / "large.jsonl", folder / "large.out", *cluster)
        after = decode(folder / "large.jsonl", folder / "large.out.jsonl", *options)
        found = b"".join(path.read_bytes() for path in sorted(ray.out.glob("part-*")))
        plain = (before.seconds + after.seconds) / 2
        rate = running_rate(ray.out, cores)
        same = found == after.out.read_bytes()
        rows.append({"cores": cores, "plain": plain, "ray": ray.seconds, "rate": rate, "same": same})
        print(rows[-1], file=sys.stderr)
    return rows


@dataclass(frozen=True)
class Idle:
    """A job that never runs: only its results are written."""

    text = False

    def describe(self) -> dict[str, str]:
        return {}


def ends(source: Path, folder: Path) -> dict[str, float]:
    """Rates of the two ends of a cluster run, each on its own: one reader, and the driver writing shards."""
    with source.open("rb") as file:
        lines = list(itertools.islice(file, 4096))
    sample, packed = folder / "sample.jsonl", folder / "sample.jsonl.gz"
    sample.write_bytes(b"".join(lines))
    packed.write_bytes(gzip.compress(sample.read_bytes(), 6))
    rates = {
        "bytes a sentence": sample.stat().st_size / len(lines),
        "bytes a sentence, packed": packed.stat().st_size / len(lines),
    }
    for name, path in (("read", sample), ("read packed", packed)):
        started = time.perf_counter()
        count = sum(block.data.count(b"\n") for block in blocks(str(path), 0, size=1024, done=frozenset()))
        rates[name] = count / (time.perf_counter() - started)
    answers = (folder / "large.out.jsonl").read_bytes().splitlines(keepends=True)[:1024]
    rates["bytes an answer"] = sum(map(len, answers)) / len(answers)
    ids = np.arange(1, len(answers) + 1, dtype=np.uint64)
    job: Any = Idle()
    with ShardFolder(str(folder / "ends"), job, [str(sample)], size=1024, resume=False, force=True) as out:
        started = time.perf_counter()
        for number in range(100):
            shard = (ids + np.uint64(number * len(ids))).tobytes()
            data = b"".join(answers)
            out.add(Result(0, number, 1, len(answers), lines=data, ids=shard))
        rates["write"] = 100 * len(answers) / (time.perf_counter() - started)
    return rates


def machine_lines(rows: list[list[float]]) -> list[str]:
    """The table of one machine."""
    lines = [
        "| sentences | seconds | CPU seconds | sentences per CPU second | peak memory (MiB) |",
        "|---:|---:|---:|---:|---:|",
    ]
    lines += [f"| {n:,} | {seconds:.1f} | {cpu:.1f} | {n / cpu:,.0f} | {peak:.1f} |" for n, seconds, cpu, peak in rows]
    peaks = {row[0]: row[3] for row in rows}
    if 10_000 in peaks and 100_000 in peaks:
        lines += ["", f"Peak memory from 10,000 to 100,000 sentences: {peaks[100_000] / peaks[10_000] - 1:+.1%}."]
    return lines


def ray_lines(rows: list[dict[str, float]], sentences: int) -> list[str]:
    """The table of Ray against the plain command."""
    lines = [
        "| cores | run | total seconds | total overhead | sentences per second while running | overhead while running "
        "| same bytes |",
        "|---:|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        cores, plain, ray, rate = (row[name] for name in ("cores", "plain", "ray", "rate"))
        base = sentences / plain
        lines.append(f"| {cores} | plain, `--threads {cores}` | {plain:.1f} | | {base:,.1f} | | |")
        lines.append(
            f"| {cores} | `--ray --ray-option workers={cores}` | {ray:.1f} | {ray / plain - 1:+.1%} "
            f"| {rate:,.1f} | {base / rate - 1:+.1%} | {'yes' if row['same'] else 'NO'} |"
        )
    return lines


def busy(load: float) -> list[str]:
    """A warning where the comparison was not a fair one."""
    cores = len(os.sched_getaffinity(0))
    if load <= cores / 2:
        return []
    return [
        f"**Other work had the machine at a load of {load} on {cores} cores when this part began: differences say",
        "little. Run `python bench/scale.py --parts ray` on a quiet machine.**",
        "",
    ]


def page(found: dict[str, Any]) -> str:
    """scale.md."""
    ends, sentences = found["ends"], found["ray sentences"]
    loads = ", ".join(f"{part} {load}" for part, load in found["load"].items())
    return "\n".join(
        [
            "# Scale",
            "",
            f"Written by `python bench/scale.py` on {found['machine']}. Load average of the machine at the start of",
            f"each part: {loads} (if above the number of cores, trust CPU times rather than elapsed times).",
            "chrF++, confidence pruning with alpha 0.99, default window; times are of the whole process.",
            "",
            "## One machine, 16 hypotheses and 32 pseudo-references per sentence, one thread",
            "",
            *machine_lines(found["one"]),
            "",
            f"## Ray against the plain command: {sentences:,} sentences, 256 hypotheses x 256 pseudo-references",
            "",
            "The plain time is the mean of a run before and one after. Start-up and shut-down of Ray (about ten",
            "seconds) count in the total times, not in the rates while running.",
            "",
            *ray_lines(found["ray"], sentences),
            "",
            *busy(found["load"]["ray"]),
            "## The two ends of a cluster run, each on its own",
            "",
            "| | sentences per second |",
            "|---|---:|",
            f"| one reader, JSON Lines ({ends['bytes a sentence'] / 1024:.1f} KiB each) | {ends['read']:,.0f} |",
            f"| one reader, .gz ({ends['bytes a sentence, packed'] / 1024:.1f} KiB) | {ends['read packed']:,.0f} |",
            f"| the driver, writing shards ({ends['bytes an answer']:.0f} bytes per answer) | {ends['write']:,.0f} |",
            "",
        ]
    )


def main() -> None:
    """Measure the parts that were asked for, and write the page from these and the last results of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="one,ray", help="one (machine), ray, or both (default)")
    parser.add_argument("--sizes", default="1000,3000,10000,30000,100000")
    parser.add_argument("--ray-sentences", type=int, default=40_000, metavar="N", help="of 256 x 256 candidates")
    parser.add_argument("--shard-size", type=int, default=256)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    store = args.out / "scale.json"
    found: dict[str, Any] = json.loads(store.read_bytes()) if store.exists() else {"load": {}}
    found["machine"] = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "one" in args.parts:
            found["load"]["one"] = round(os.getloadavg()[0], 1)
            found["one"] = on_one_machine(folder, [int(size) for size in args.sizes.split(",")])
        if "ray" in args.parts:
            found["load"]["ray"] = round(os.getloadavg()[0], 1)
            write_corpus(folder / "large.jsonl", args.ray_sentences, 256, 256)
            found["ray sentences"] = args.ray_sentences
            found["ray"] = on_ray(folder, args.shard_size)
            found["ends"] = ends(folder / "large.jsonl", folder)
    store.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if "one" in found and "ray" in found:
        (args.out / "scale.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
