"""This checkout against an older one, in instructions: `python bench/house_instructions.py --old OLD/.venv/bin/python`.

Writes bench/results/house-instructions.md. Seconds vary by more than a few percent on most machines, the number of
instructions that a program runs hardly at all: valgrind counts them. They are no seconds (caches, branches and the
kernel's own work are not in them): bench/house.py measures those, with the same commands and calls.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

from house import CALL_NAMES, CALLS, LIMIT, RESULTS, commands, two_checkouts
from texts import newstest_records

VALGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]


def count(command: list[str]) -> int:
    """The instructions that a command runs. It runs once before, so that it finds bytecode."""
    subprocess.run(command, check=True, capture_output=True)
    ran = subprocess.run([*VALGRIND, *command], check=True, capture_output=True, text=True)
    found = re.search(r"I +refs: +([\d,]+)", ran.stderr)
    assert found is not None, ran.stderr
    return int(found[1].replace(",", ""))


def count_call(python: str, candidates: Path, name: str) -> int:
    """The instructions of one call inside a Python that is warm: a program with three more, less one with one."""
    few, more = (count([python, "-c", CALLS, str(candidates), str(times), name]) for times in (1, 3))
    return (more - few) // 2


def main() -> None:
    args = two_checkouts(__doc__, sentences=32).parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}  # threads that wait for work spin
    rows: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        candidates, one = folder / "candidates.jsonl", folder / "one.jsonl"
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in newstest_records(args.sentences)]
        candidates.write_text("".join(lines), encoding="utf-8")
        one.write_text(lines[0], encoding="utf-8")
        for label, arguments in commands(candidates, one, folder / "out.jsonl").items():
            rows[label] = [count([python, "-m", "mbrace", *arguments]) for python in (args.old, args.new)]
        for label in CALL_NAMES:
            rows[label] = [count_call(python, candidates, label) for python in (args.old, args.new)]
    table = [
        "# This checkout against an older one, in instructions",
        "",
        f"Written by `python bench/house_instructions.py`. Old: {args.old_name}. {args.sentences} records of de-en",
        "with 256 hypotheses and 256 pseudo-references each, chrF++. Millions of instructions, counted by valgrind;",
        "commands include start-up, calls are inside a Python that is warm.",
        f"A ratio above {LIMIT} is in bold: new runs more.",
        "",
        "| | old | new | ratio |",
        "|---|---|---|---|",
    ]
    for label, (old, new) in rows.items():
        ratio = f"**{new / old:.2f}**" if new / old > LIMIT else f"{new / old:.2f}"
        table.append(f"| {label} | {old / 1e6:.1f} | {new / 1e6:.1f} | {ratio} |")
    text = "\n".join([*table, ""])
    print(text)
    (RESULTS / "house-instructions.md").write_text(text)


if __name__ == "__main__":
    main()
