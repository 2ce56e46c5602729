"""Given candidates at COMET-22's size: our own unpruned run against racing, and against racing with fewer strings.

    python bench/fewer_strings.py CANDIDATES.jsonl.gz [--decisions learned | chrf++] [--out bench/results]

Weights are random (see bench/neural.py), so this is speed only; who is pruned is decided by tables of a real utility
for the same strings, computed beforehand. All rows are bfloat16 with 64 sentences racing. fewer_strings.md and .json
are written after every row. `--tiny` rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from neural import Bench
from random_comet import SpeedOnlyComet
from speed_only import Table

import mbrace
from mbrace.result import Phases
from mbrace.settings import with_preset

UNPRUNED = "no pruning"


def ways(size: int) -> dict[str, dict[str, Any]]:
    """Options of `decode_corpus`, by name."""
    preset, _ = with_preset("fast", "decode", "encoder", {})
    fast = preset.pop("regret")
    return {
        UNPRUNED: {"prune": None},
        "racing, alpha 0.99": {"prune": mbrace.Confidence(0.99)},
        f"regret {fast}": {"prune": mbrace.Confidence(0.99, regret=fast)},
        f"fast: regret {fast}, forecast {preset['forecast']}, cover": {
            "prune": mbrace.Confidence(0.99, regret=fast),
            **preset,
        },
    }


def measure(bench: Bench, utility: SpeedOnlyComet, options: dict[str, Any], trials: int) -> dict[str, Any]:
    """The best of some trials, after one on a part of the sentences."""

    own_order = {} if options.get("cover") else {"shuffle": False}

    def run(records: Any) -> tuple[float, Phases, list[Any]]:
        phases = Phases()
        bench.wait()
        started = time.perf_counter()
        answers = list(mbrace.decode_corpus(records, utility=utility, window=64, phases=phases, **own_order, **options))
        bench.wait()
        return time.perf_counter() - started, phases, answers

    run(bench.records[: max(1, len(bench.records) // 4)])
    seconds, phases, answers = min((run(bench.records) for _ in range(trials)), key=lambda found: found[0])
    count = len(answers)
    return {
        "seconds": seconds,
        "encode": phases.encode,
        "pairs": phases.score,
        "prune": phases.prune,
        "strings": sum(answer.strings for answer in answers) / count,
        "calls": sum(answer.utility_calls for answer in answers) / count,
        "answers": [answer.text for answer in answers],
    }


def page(about: dict[str, Any], rows: dict[str, dict[str, Any]]) -> str:
    first = rows[UNPRUNED]
    lines = [
        "# Fewer strings at COMET-22's size: speed only",
        "",
        f"{about['device']}, torch {about['torch']}; {about['sentences']} sentences, "
        f"{about['hypotheses and pseudo-references per sentence']} hypotheses and pseudo-references each, random "
        f"weights in {about['precision']}, 64 sentences racing, decisions by {about['decisions']}; "
        f"best of {about['trials']}. Written by `python bench/fewer_strings.py`.",
        "",
        "| | seconds | times as fast as no pruning | strings per sentence | share | calls per sentence | encoding, s "
        "| pairs, s | answers as without pruning |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        same = sum(a == b for a, b in zip(row["answers"], first["answers"], strict=True))
        cells = [f"{row['seconds']:.2f}", f"**{first['seconds'] / row['seconds']:.2f}x**", f"{row['strings']:.0f}"]
        cells += [f"{row['strings'] / first['strings']:.2f}x", f"{row['calls']:,.0f}"]
        cells += [f"{row['encode']:.2f}", f"{row['pairs']:.2f}", f"{same} of {len(row['answers'])}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--size", type=int, default=256, help="hypotheses and pseudo-references per sentence")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--decisions", choices=("learned", "chrf++"), default="learned")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the CPU")
    args = parser.parse_args()
    if args.tiny:
        args.sentences, args.size, args.trials = 4, 24, 1
    args.slice = 1
    bench = Bench(args)
    decider: Any = mbrace.ChrF()
    if args.decisions == "learned":
        try:
            decider = mbrace.Learned(device=bench.device.type)
        except mbrace.UserError as error:  # rather these rows than none
            print(f"decisions by chrF++: {error}", flush=True)
            args.decisions = "chrf++"
    started = time.perf_counter()
    bench.tables = {record.id: Table.of(record, decider) for record in bench.records}
    print(f"tables of {args.decisions}: {time.perf_counter() - started:.1f} s", flush=True)
    precision = "float32" if args.tiny else "bfloat16"
    with torch.inference_mode():
        utility = bench.utility(precision)
    about = bench.about | {"precision": precision, "decisions": args.decisions, "trials": args.trials}
    args.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    for name, options in ways(args.size).items():
        rows[name] = measure(bench, utility, options, args.trials)
        (args.out / "fewer_strings.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        (args.out / "fewer_strings.md").write_text(page(about, rows), encoding="utf-8")
        print(page(about, rows).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
