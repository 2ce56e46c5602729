"""`mbrace decode` from file to file: `python bench/decode.py` writes bench/results/decode.md."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from chrf import machine
from texts import candidates, newstest_records

from mbrace.api import decode
from mbrace.io.candidates import read_items
from mbrace.io.output import answer_line

RESULTS = Path(__file__).parent / "results"
MODES = {
    "no pruning": (["--prune", "none"], 1),
    "alpha 0.99": (["--prune", "confidence", "--alpha", "0.99"], 1),
    "alpha 0.9": (["--prune", "confidence", "--alpha", "0.9"], 1),
    "no pruning, 2 threads": (["--prune", "none"], 2),
    "alpha 0.99, 2 threads": (["--prune", "confidence", "--alpha", "0.99"], 2),
}


def command(path: Path, out: Path, options: list[str], threads: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "mbrace",
        "decode",
        str(path),
        "-o",
        str(out),
        "--force",
        "--threads",
        str(threads),
        *options,
    ]


def timed(arguments: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(arguments, check=True, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def reading_and_writing(path: Path, rounds: int) -> float:
    """Processor seconds to read and parse every record of the file and to write an answer for each."""
    best = float("inf")
    answer = decode(["a b", "a c"], ["a b c"] * 16)
    for _ in range(rounds):
        started = time.process_time()
        count = sum(1 for _ in read_items([str(path)]))
        with open(os.devnull, "wb") as sink:
            for _ in range(count):
                sink.write(answer_line(answer, text=False, nbest=1))
        best = min(best, time.process_time() - started)
    return best


def one_file(name: str, records: list[dict], rounds: int, folder: Path) -> dict:
    """Every mode on a file of these records."""
    path, one, out = folder / "candidates.jsonl", folder / "one.jsonl", folder / "out.jsonl"
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    one.write_text(json.dumps(records[0]) + "\n", encoding="utf-8")
    walls: dict[str, list[float]] = {mode: [] for mode in MODES}
    processor: dict[str, float] = {}
    for number in range(rounds):  # interleaved, to and fro, so that all see the same machine
        for mode, (options, threads) in list(MODES.items())[:: 1 if number % 2 else -1]:
            took, busy = timed(command(path, out, options, threads))
            walls[mode].append(took)
            processor[mode] = min(processor.get(mode, busy), busy)
    wall = {mode: min(took) for mode, took in walls.items()}
    starts = [timed(command(one, out, [], 1)) for _ in range(rounds)]
    length = sum(len(text) for record in records for text in record["hypotheses"]) / len(records) / 256
    return {
        "name": name,
        "characters": length,
        "megabytes": path.stat().st_size / 2**20,
        "wall": wall,
        "walls": walls,
        "processor": processor,
        "start": min(start[0] for start in starts),
        "start_processor": min(start[1] for start in starts),
        "json": reading_and_writing(path, rounds),
    }


def against_none(file: dict, mode: str) -> str:
    """The time of a mode against no pruning on as many threads: the median over rounds, and its 95% interval."""
    threads = MODES[mode][1]
    none = next(name for name, (options, own) in MODES.items() if own == threads and "none" in options)
    if mode == none:
        return "1"
    took, base = (np.array(file["walls"][name]) - file["start"] for name in (mode, none))
    ratios = took / base
    picks = np.random.default_rng(0).integers(0, len(ratios), (2000, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), (0.025, 0.975))
    return f"{np.median(ratios):.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    line = machine()
    with tempfile.TemporaryDirectory() as folder:
        files = [
            one_file(name, records, args.rounds, Path(folder))
            for name, records in (
                ("newstest, German to English", newstest_records(args.sentences)),
                ("captions", candidates(args.sentences)),
                ("three captions joined", candidates(args.sentences, captions=3)),
            )
        ]
    lines = [
        "# `mbrace decode`, from file to file",
        "",
        f"Written by `python bench/decode.py`. {line}",
        "",
        f"{args.sentences:,} records of 256 hypotheses and 256 pseudo-references: newstest sentences with their beam",
        "hypotheses and a quarter of their 1,024 samples each (`experiments/candidates`), and the captions bundled",
        "with `mbrace demo`, one or three per record. Best of several interleaved rounds. The rates leave out",
        "start-up (Python, imports, one record); processor seconds do not depend on the load of the machine.",
        "JSON: reading, parsing and writing timed separately, as a share of the processor time.",
        "Against no pruning: its time on as many threads in the same round, median over rounds and its 95% interval.",
    ]
    for file in files:
        lines += [
            "",
            f"## {file['name']}: {file['characters']:.0f} characters per text",
            "",
            f"({file['megabytes']:.0f} MiB; start {file['start']:.2f} s.)",
            "",
            "| | wall seconds | sentences per second | against no pruning | processor seconds | per processor second "
            "| JSON's share |",
            "|---|---|---|---|---|---|---|",
        ]
        for mode in MODES:
            wall = file["wall"][mode] - file["start"]
            processor = file["processor"][mode] - file["start_processor"]
            lines.append(
                f"| {mode} | {wall:.2f} | {args.sentences / wall:,.0f} | {against_none(file, mode)} | {processor:.2f} "
                f"| {args.sentences / processor:,.0f} | {file['json'] / processor:.0%} |"
            )
    text = "\n".join([*lines, ""])
    print(text)
    (RESULTS / "decode.md").write_text(text)
    (RESULTS / "decode.json").write_text(json.dumps({"machine": line, "files": files}, indent=1) + "\n")


if __name__ == "__main__":
    main()
