"""This checkout against an older one: `python bench/house.py --old OLD/.venv/bin/python` writes bench/results/house.md.

Both run the same commands and calls in turns, so that they see the same machine; each time is the best of several
rounds. The older one takes part twice: how far its two times are apart is the noise, in a column beside each ratio.
Processor seconds depend little on the load of the machine, wall seconds do: run it on an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from chrf import machine
from decode import timed
from texts import newstest_records

Value = TypeVar("Value")

RESULTS = Path(__file__).parent / "results"
LIMIT = 1.03  # "nothing slower than 3%"
CALL_ROUNDS = 4  # times that each call is timed in a round
RACING = {"no pruning": ["--prune", "none"], "alpha 0.99": ["--prune", "confidence", "--alpha", "0.99"]}

# Calls of the library, timed inside a Python that is warm. Arguments: a file of candidates; how often, and which calls
# (all by default), for JSON with the best seconds of each; or "asked", for the seconds of one call per line of input.
CALLS = """
import itertools, json, sys, time
import mbrace
records = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
pairs = [(r["hypotheses"], r["pseudo_references"]) for r in records]
def corpus(**options):
    return lambda: list(
        mbrace.decode_corpus([mbrace.Record(h, r, id=i) for i, (h, r) in enumerate(pairs[:64])], **options))
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
def seconds(call):
    started = time.process_time()
    call()
    return time.process_time() - started
if sys.argv[2] == "asked":
    for line in sys.stdin:
        print(seconds(calls[line.strip()]), flush=True)
    sys.exit()
times = {}
for name in sys.argv[3:] or calls:
    calls[name]()
    times[name] = min(seconds(calls[name]) for _ in range(int(sys.argv[2])))
print(json.dumps(times))
"""
CALL_NAMES = re.findall(r'^    "(.+)": ', CALLS, re.MULTILINE)


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
        for name in commands(candidates, one, folder / "out"):
            for checkout, python in in_turns(pythons, number):
                arguments = commands(candidates, one, folder / f"{checkout}.jsonl")[name]
                wall, processor = timed([python, "-m", "mbrace", *arguments])
                note(name, checkout, "wall", wall)
                note(name, checkout, "processor", processor)
            check_same_answers(folder / "old.jsonl", folder / "new.jsonl", name)
        with ExitStack() as stack:  # new processes in every round: some are faster than others for as long as they live
            warm = {checkout: WarmCalls(stack, python, candidates) for checkout, python in pythons.items()}
            for turn in range(CALL_ROUNDS):
                for name in CALL_NAMES:
                    for checkout, asked in in_turns(warm, turn):
                        note(name, checkout, "processor", asked.seconds(name))
    return times


def in_turns(checkouts: dict[str, Value], number: int) -> list[tuple[str, Value]]:
    """The checkouts in the order of a round: every other one goes backwards."""
    return list(checkouts.items())[:: 1 if number % 2 else -1]


class WarmCalls:
    """A Python that stays warm and times one call after another, each when it is asked to."""

    def __init__(self, stack: ExitStack, python: str, candidates: Path) -> None:
        command = [python, "-c", CALLS, str(candidates), "asked"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process = stack.enter_context(process)
        for name in CALL_NAMES:
            self.seconds(name)

    def seconds(self, name: str) -> float:
        """Processor seconds of a call."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(name + "\n")
        asked.flush()
        return float(answers.readline())


def cells(times: dict[str, dict[str, float]], kind: str) -> list[str]:
    """Old seconds, new seconds, their ratio and the noise, or nothing where this was not timed."""
    if kind not in times["old"]:
        return [""] * 4
    old, new, again = (times[checkout][kind] for checkout in ("old", "new", "old again"))
    ratio, noise = new / old, max(again, old) / min(again, old)
    return [f"{old:.3f}", f"{new:.3f}", f"**{ratio:.2f}**" if ratio > LIMIT else f"{ratio:.2f}", f"{noise:.2f}"]


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
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    records = newstest_records(args.sentences)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        candidates, one = folder / "candidates.jsonl", folder / "one.jsonl"
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        candidates.write_text("".join(lines), encoding="utf-8")
        one.write_text(lines[0], encoding="utf-8")
        pythons = {"old": args.old, "new": args.new, "old again": args.old}
        times = measure(pythons, candidates, one, folder, args.rounds)
    table = [
        "# This checkout against an older one",
        "",
        f"Written by `python bench/house.py`. {machine()}",
        "",
        f"Old: {args.old_name}. {args.sentences} records of de-en with 256 hypotheses and 256 pseudo-references each,",
        f"chrF++; best of {args.rounds} rounds, and of {CALL_ROUNDS * args.rounds} for calls of the library, in turns.",
        f"A ratio above {LIMIT} is in bold: new is slower there. Noise compares the old one with itself in the same",
        "turns: a difference below it says nothing. Commands include start-up, from compiled bytecode; calls are timed",
        "in a Python that is warm, on one thread. Both must write the same answers.",
        "",
        "| | wall, old | new | ratio | noise | processor, old | new | ratio | noise |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, checkouts in times.items():
        table.append(f"| {name} | {' | '.join(cells(checkouts, 'wall') + cells(checkouts, 'processor'))} |")
    table += ["", "Racing (alpha 0.99) as a multiple of no pruning, in the new one:", "", *racing_lines(times)]
    text = "\n".join([*table, ""])
    print(text)
    (RESULTS / "house.md").write_text(text)


if __name__ == "__main__":
    main()
