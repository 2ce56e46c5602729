"""`mbrace decode --utility learned` on a CPU, end to end: with pruning against without, and where the time goes.

python bench/learned.py CANDIDATES.jsonl.gz --sentences 20 --out bench/results
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from mbrace.io.candidates import read_records

MODES = {
    "standard MBR (--prune none)": ["--prune", "none"],
    "confidence (--prune confidence)": ["--prune", "confidence"],
    "fast (--preset fast)": ["--preset", "fast"],
    "regret alone (--regret 0.04)": ["--regret", "0.04"],
    "confidence, one sentence at a time (--window 1)": ["--prune", "confidence", "--window", "1"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates")
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--size", type=int, default=256, help="hypotheses and pseudo-references per sentence")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    rows, texts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "candidates.jsonl")
        write_candidates(args, file)
        for repeat, (name, options) in itertools.product(range(args.repeats), MODES.items()):  # interleaved
            row, text = run(file, [*options, "--threads", str(args.threads)])
            print(repeat, name, row, flush=True)
            rows.append({"name": name, **row})
            texts[name] = text
    best = [min((row for row in rows if row["name"] == name), key=lambda row: row["wall"]) for name in MODES]
    first = next(iter(texts.values()))
    write(args, best, [sum(a == b for a, b in zip(first, own, strict=True)) for own in texts.values()])


def write_candidates(args: argparse.Namespace, file: Path) -> None:
    """The first sentences, cut to `size` hypotheses and pseudo-references."""
    lines = []
    for record in itertools.islice(read_records(args.candidates), args.sentences):
        row = {"id": record.id, "source": record.source, "hypotheses": list(record.hypotheses[: args.size])}
        row["pseudo_references"] = list(record.pseudo_references or ())[: args.size]  # type: ignore[arg-type]
        lines.append(json.dumps(row) + "\n")
    file.write_text("".join(lines), encoding="utf-8")


def run(file: Path, options: list[str]) -> tuple[dict[str, float], list[str]]:
    """Run the command as a user would: wall seconds with start-up, and the numbers of its summary."""
    out = file.with_suffix(".out")
    command = [sys.executable, "-m", "mbrace", "decode", str(file), "-o", str(out), "--force", "--text"]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "--utility", "learned", "--device", "cpu", *options], capture_output=True, text=True
    )
    wall = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stderr)
    summary = " ".join(done.stderr.split())
    found = {name: float(re.search(rf"{name} ([\d.]+) s", summary)[1]) for name in ("encode", "score", "prune")}  # type: ignore[index]
    found["decoding"] = float(re.search(r"in ([\d.]+) s", summary)[1])  # type: ignore[index]
    found["pairs"] = float(re.search(r"([\d,]+) pairs", summary)[1].replace(",", ""))  # type: ignore[index]
    return {"wall": wall, **found}, out.read_text(encoding="utf-8").splitlines()


def start_up() -> float:
    """Seconds to import torch and load the metric, with its files in the disk cache."""
    code = "from mbrace.neural.comet import Learned; Learned(device='cpu')"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - started


def write(args: argparse.Namespace, best: list[dict[str, float]], same: list[int]) -> None:
    """learned.md: the totals and their parts."""
    standard, pruned = best[0], best[1]
    lines = [
        "# The learned metric on a CPU, end to end",
        "",
        f"`mbrace decode --utility learned` on {args.sentences} sentences with {args.size} hypotheses and {args.size}"
        f" pseudo-references each ({Path(args.candidates).name}), {args.threads} threads of"
        f" {platform.machine()}, torch {torch.__version__}. Best of {args.repeats} interleaved runs; the whole command"
        " includes start-up. Written by `bench/learned.py`.",
        "",
        "| | whole command, s | decoding, s | times as fast | embedding, s | scoring pairs, s | pruning, s "
        "| pairs scored | answers as without pruning |",
        "|---" + "|---:" * 8 + "|",
    ]
    for row, equal in zip(best, same, strict=True):
        parts = " | ".join(f"{row[name]:.2f}" for name in ("encode", "score", "prune"))
        times = f"{row['wall']:.2f} | {row['decoding']:.2f} | {standard['decoding'] / row['decoding']:.2f}x"
        lines.append(f"| {row['name']} | {times} | {parts} | {row['pairs']:,.0f} | {equal} of {args.sentences} |")
    lines += [
        "",
        f"With pruning the command takes {pruned['wall'] / standard['wall']:.0%} of the time"
        f" ({standard['wall'] / pruned['wall']:.2f}x faster); decoding without start-up is"
        f" {standard['decoding'] / pruned['decoding']:.2f}x faster. {same[1]} of {args.sentences} answers are the same."
        f" Importing torch and loading the metric takes {start_up():.1f} s of each command.",
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "learned.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
