"""`mbrace decode` from file to file: `python bench/decode.py` writes bench/results/decode.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chrf import machine
from texts import candidates

from mbrace.decode import decode
from mbrace.files import read_items
from mbrace.output import answer_line

RESULTS = Path(__file__).parent / "results"
MODES = {
    "no pruning": ["--prune", "none"],
    "alpha 0.99": ["--prune", "confidence", "--alpha", "0.99"],
    "alpha 0.9": ["--prune", "confidence", "--alpha", "0.9"],
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


def timed(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(arguments, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def reading_and_writing(path: Path, rounds: int) -> float:
    """Seconds to read and parse every record of the file and to write an answer for each, without decoding."""
    best = float("inf")
    answer = decode(["a b", "a c"], ["a b c"] * 16)
    for _ in range(rounds):
        started = time.perf_counter()
        count = sum(1 for _ in read_items([str(path)]))
        with open(os.devnull, "wb") as sink:
            for _ in range(count):
                sink.write(answer_line(answer, text=False, nbest=1))
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, one, out = Path(folder) / "candidates.jsonl", Path(folder) / "one.jsonl", Path(folder) / "out.jsonl"
        records = candidates(args.sentences)
        path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
        one.write_text(json.dumps(records[0]) + "\n", encoding="utf-8")
        size = path.stat().st_size
        times: dict[tuple[str, int], float] = {}
        for _ in range(args.rounds):  # in turns, so that all see the same machine
            for threads in (1, 2):
                for mode, options in MODES.items():
                    took = timed(command(path, out, options, threads))
                    times[mode, threads] = min(times.get((mode, threads), float("inf")), took)
        start = min(timed(command(one, out, [], 1)) for _ in range(args.rounds))
        files = reading_and_writing(path, args.rounds)
    lines = [
        "# `mbrace decode`, from file to file",
        "",
        f"Written by `python bench/decode.py`. {machine()}",
        "",
        f"{args.sentences:,} records of 256 hypotheses and 256 pseudo-references ({size / 2**20:.0f} MiB of JSON): the candidates",
        "bundled with `mbrace demo` over and over. Wall time of the command, best of several rounds; starting Python and",
        f"decoding one record takes {start:.2f} s of it. Reading, parsing and writing JSON, timed alone: {files:.2f} s.",
        "",
        "| | threads | seconds | sentences a second | without the start | JSON's share of that |",
        "|---|---|---|---|---|---|",
    ]
    for (mode, threads), took in sorted(times.items(), key=lambda item: item[0][1]):
        work = took - start
        lines.append(
            f"| {mode} | {threads} | {took:.2f} | {args.sentences / took:,.0f} | {args.sentences / work:,.0f} | {files / work:.0%} |"
        )
    text = "\n".join([*lines, ""])
    print(text)
    (RESULTS / "decode.md").write_text(text)
    result = {
        "times": {f"{mode}, {threads} threads": t for (mode, threads), t in times.items()},
        "start": start,
        "json": files,
    }
    (RESULTS / "decode.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
