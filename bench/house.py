"""This checkout against an older one: `python bench/house.py --old OLD/.venv/bin/python` writes bench/results/house.md.

Both run the same commands and calls in turns, so that they see the same machine; each time is the best of several
rounds. Processor seconds hardly depend on the load of the machine, wall seconds do: run it on an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from chrf import machine
from decode import timed
from texts import newstest_records

RESULTS = Path(__file__).parent / "results"
LIMIT = 1.03  # "nothing slower than 3%"
RACING = {"no pruning": ["--prune", "none"], "alpha 0.99": ["--prune", "confidence", "--alpha", "0.99"]}

# Calls of the library, timed inside a Python that is warm; arguments: a file of candidates, how often, and which calls
# (all by default). Prints JSON.
CALLS = """
import itertools, json, sys, time
import mbrace
records = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
pairs = [(r["hypotheses"], r["pseudo_references"]) for r in records]
def corpus(**options):
    return lambda: list(mbrace.decode_corpus([mbrace.Record(h, r, id=i) for i, (h, r) in enumerate(pairs)], **options))
one = mbrace.ChrF(threads=1)
few = [(h[:16], r[:16]) for h, r in pairs[:32]]
calls = {
    "decode, 256 + 256": lambda: [mbrace.decode(h, r, utility=one) for h, r in pairs[:16]],
    "decode, 16 + 16": lambda: [mbrace.decode(h, r, utility=one) for h, r in few],
    "decode_corpus, no pruning": corpus(utility=one, prune=None),
    "decode_corpus, alpha 0.99": corpus(utility=one, prune=mbrace.Confidence(0.99)),
    "decode_corpus, alpha 0.9": corpus(utility=one, prune=mbrace.Confidence(0.9)),
    "decode_corpus, beta 0.5": corpus(utility=one, prune=mbrace.Bottom(0.5)),
    "decode_corpus, a Python function": lambda: [
        mbrace.decode(h, r, utility=lambda a, b: float(len(a) - len(b))) for h, r in few],
    "ChrF.pairs": lambda: [one.pairs(h, r[:len(h)]) for h, r in pairs[:64]],
}
times = {}
for name in sys.argv[3:] or calls:
    call = calls[name]
    call()
    for _ in range(int(sys.argv[2])):
        started = time.process_time()
        call()
        took = time.process_time() - started
        times[name] = min(times.get(name, took), took)
print(json.dumps(times))
"""


def commands(candidates: Path, one: Path, out: Path) -> dict[str, list[str]]:
    """The arguments of every command that is timed, by its name in the table."""
    common = ["-o", str(out), "--force"]
    timed_commands = {
        "mbrace --version": ["--version"],
        "mbrace decode, one record": ["decode", str(one), *common, "--threads", "1"],
    }
    for threads in (1, 2):
        for name, options in RACING.items():
            label = f"mbrace decode, {name}, {threads} thread{'s'[: threads > 1]}"
            timed_commands[label] = ["decode", str(candidates), *common, "--threads", str(threads), *options]
    return timed_commands


def check_same_answers(old: Path, new: Path, name: str) -> None:
    """Refuse to compare runs that chose differently."""
    chosen = [[json.loads(line)["index"] for line in path.open("rb")] if path.exists() else [] for path in (old, new)]
    if chosen[0] != chosen[1]:
        sys.exit(f"{name}: the two checkouts chose different hypotheses")


def measure(
    pythons: dict[str, str], candidates: Path, one: Path, folder: Path, rounds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Wall and processor seconds by command and checkout; of calls inside Python, processor seconds alone."""
    times: dict[str, dict[str, dict[str, float]]] = {}
    # Installed packages have bytecode; without it, start-up is mostly compiling.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    for python in pythons.values():
        timed([python, "-m", "mbrace", "decode", str(one), "-o", str(folder / "warm.jsonl"), "--force"])

    def note(name: str, checkout: str, kind: str, seconds: float) -> None:
        kinds = times.setdefault(name, {}).setdefault(checkout, {})
        kinds[kind] = min(kinds.get(kind, seconds), seconds)

    for number in range(rounds):
        order = list(pythons.items())[:: 1 if number % 2 else -1]
        for name in commands(candidates, one, folder / "out"):
            for checkout, python in order:
                arguments = commands(candidates, one, folder / f"{checkout}.jsonl")[name]
                wall, processor = timed([python, "-m", "mbrace", *arguments])
                note(name, checkout, "wall", wall)
                note(name, checkout, "processor", processor)
            check_same_answers(folder / "old.jsonl", folder / "new.jsonl", name)
        for checkout, python in order:
            ran = subprocess.run([python, "-c", CALLS, str(candidates), "3"], check=True, capture_output=True)
            for name, seconds in json.loads(ran.stdout).items():
                note(name, checkout, "processor", seconds)
    return times


def cells(times: dict[str, dict[str, float]], kind: str) -> list[str]:
    """Old seconds, new seconds and their ratio, or nothing where this was not timed."""
    if kind not in times["old"]:
        return ["", "", ""]
    old, new = times["old"][kind], times["new"][kind]
    ratio = new / old
    return [f"{old:.3f}", f"{new:.3f}", f"**{ratio:.2f}**" if ratio > LIMIT else f"{ratio:.2f}"]


def racing_lines(times: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """How racing compares with no pruning in this checkout."""
    lines = ["| threads | wall | processor |", "|---|---|---|"]
    for threads in ("1 thread", "2 threads"):
        racing, standard = (times[f"mbrace decode, {name}, {threads}"]["new"] for name in ("alpha 0.99", "no pruning"))
        ratios = [f"{racing[kind] / standard[kind]:.2f}" for kind in ("wall", "processor")]
        lines.append(f"| {threads.split()[0]} | {ratios[0]} | {ratios[1]} |")
    return lines


def two_checkouts(description: str | None, *, sentences: int) -> argparse.ArgumentParser:
    """The options of a benchmark of two checkouts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--old", required=True, metavar="PYTHON", help="the Python of the older checkout")
    parser.add_argument("--new", default=sys.executable, metavar="PYTHON", help="default: this one")
    parser.add_argument("--old-name", default="before", help="what the table calls the older checkout")
    parser.add_argument("--sentences", type=int, default=sentences)
    return parser


def main() -> None:
    parser = two_checkouts(__doc__, sentences=600)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    records = newstest_records(args.sentences)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        candidates, one = folder / "candidates.jsonl", folder / "one.jsonl"
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        candidates.write_text("".join(lines), encoding="utf-8")
        one.write_text(lines[0], encoding="utf-8")
        times = measure({"old": args.old, "new": args.new}, candidates, one, folder, args.rounds)
    table = [
        "# This checkout against an older one",
        "",
        f"Written by `python bench/house.py`. {machine()}",
        "",
        f"Old: {args.old_name}. {args.sentences} records of de-en with 256 hypotheses and 256 pseudo-references each,",
        f"chrF++; best of {args.rounds} rounds, in turns. A ratio above {LIMIT} is in bold: new is slower there.",
        "Commands include start-up, from compiled bytecode; calls of the library are timed in a Python that is warm,",
        "on one thread. Both must write the same answers.",
        "",
        "| | wall, old | new | ratio | processor, old | new | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, checkouts in times.items():
        table.append(f"| {name} | {' | '.join(cells(checkouts, 'wall') + cells(checkouts, 'processor'))} |")
    table += ["", "Racing (alpha 0.99) as a multiple of no pruning, in the new one:", "", *racing_lines(times)]
    text = "\n".join([*table, ""])
    print(text)
    (RESULTS / "house.md").write_text(text)


if __name__ == "__main__":
    main()
