"""What a GPU has to show, in 260 seconds: embedding, translating, and given candidates at COMET-22's size.

    python bench/h200.py --out FOLDER [--tiny] [--only encoder translating fewer_strings bfloat16]

Each part is a process of its own with a time limit and writes its results as they come, so that one that fails or takes
too long costs only its own rows. FOLDER gets their tables and logs, and h200.md: which targets were met. `--tiny`
rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CANDIDATES = HERE.parent / "experiments" / "candidates" / "de-en.test.jsonl.xz"
# Of each part: its arguments, and the most seconds it may take.
PARTS: dict[str, tuple[list[str], int]] = {
    "encoder": (["--trials", "3"], 60),
    "translating": (["--model", "base", "--trials", "2"], 100),
    "fewer_strings": ([str(CANDIDATES)], 70),
    "bfloat16": (["--bfloat16"], 25),  # of the machine's CPU
}
SCRIPTS = {"bfloat16": "encoder"}  # where a part is not named after its script


def run(name: str, arguments: list[str], limit: float, out: Path) -> str:
    """Run a part; how it ended."""
    started = time.perf_counter()
    with (out / f"{name}.log").open("wb") as log:
        command = [sys.executable, str(HERE / f"{SCRIPTS.get(name, name)}.py"), *arguments, "--out", str(out)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(limit)
            ended = "finished" if status == 0 else f"failed with status {status}, see {name}.log,"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = "was stopped"
    return f"{ended} after {time.perf_counter() - started:.0f} s of {limit:.0f}"


def stored(out: Path, name: str) -> Any:
    file = out / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def targets(out: Path) -> list[tuple[str, float, str, bool]]:
    """What was measured, the target, and whether it was met."""
    found = []
    if encoder := stored(out, "encoder"):
        for row in encoder["rows"]:
            least = 4.0 if row["what"].startswith("embedding") else 1.6
            ratio = row["times faster"]
            found.append((f"{row['what']}: times as fast as the former way", ratio, f">= {least}", ratio >= least))
    translating = stored(out, "translating") or stored(out, "translating-cpu")
    if translating:
        seconds = {name: row["seconds"] for name, row in translating["ways"].items()}
        standard = next(seconds[name] for name in seconds if name.startswith("standard"))
        for name in seconds:
            if name.startswith(("fast", "pool")):
                share, beams = seconds[name] / standard, seconds[name] / seconds["beam 10"]
                found.append((f"translating, {name}: share of standard MBR's time", share, "<= 0.35", share <= 0.35))
                found.append((f"translating, {name}: times beam 10's time", beams, "<= 7", beams <= 7))
    if fewer := stored(out, "fewer_strings"):
        rows = fewer["rows"]
        for name, row in list(rows.items())[1:]:
            ratio = rows["no pruning"]["seconds"] / row["seconds"]
            found.append((f"COMET-22's size, {name}: times as fast as no pruning", ratio, ">= 2", ratio >= 2))
    if precision := stored(out, "bfloat16"):
        ratio = precision["embedding"]["float32"] / precision["embedding"]["bfloat16"]
        same = f"{precision['equal']} of {precision['of']} answers equal"
        found.append((f"embedding on the CPU, bfloat16 against float32 ({same})", ratio, ">= 1.7", ratio >= 1.7))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    ends = {}
    for name in args.only:
        arguments, limit = PARTS[name]
        ends[name] = run(name, [*arguments, *(["--tiny"] if args.tiny else [])], 600 if args.tiny else limit, args.out)
        print(name, ends[name], flush=True)
        for line in (args.out / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-6:]:
            print("   ", line[:240], flush=True)
    lines = ["# Targets on a GPU", "", *(f"- {name} {end}" for name, end in ends.items()), ""]
    lines += ["| | measured | target | met |", "|---|---:|---:|---|"]
    for what, value, target, met in targets(args.out):
        lines.append(f"| {what} | {value:.2f} | {target} | {'yes' if met else 'no'} |")
    (args.out / "h200.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
