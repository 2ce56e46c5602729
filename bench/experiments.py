"""How long the paper's evaluation takes: its reference procedure on a slice, `mbrace experiment` on the same data.

The procedure of the paper's public scripts: sacreBLEU for each pair of a utility table; for each trial and setting a
decoding over the permuted table, with resamples gathered into an array (hypotheses, resamples, pseudo-references).
Processor seconds on both sides. Run: python bench/experiments.py CANDIDATES.jsonl -o bench/results/experiments.md
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

from mbrace import ChrF
from mbrace.experiments.runtimes import device_name
from mbrace.experiments.tables import CandidateFile, Table, compute, tables
from mbrace.experiments.trials import ALPHAS, BETAS, SIZES, TRADEOFF, run_trials

SCHEDULE = (16, 32, 64, 128, 256)
FULL = {"sentences": 150, "trials": 10}


def gathered_wins(table: NDArray[np.float32], size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Win rates against the leader, by gathering 500 resamples of the first `size` columns."""
    leader = table[:, :size].sum(axis=1).argmax()
    draws = rng.integers(size, size=500 * size)
    totals = table[:, draws].reshape(len(table), 500, size).sum(axis=2)
    return (totals >= totals[leader]).mean(axis=1)


def decode(table: NDArray[np.float32], keep: Callable[[NDArray[np.float32], int], NDArray[np.int64]]) -> int:
    """Algorithm 1 over a permuted table."""
    alive = np.arange(len(table))
    for size in SCHEDULE:
        if len(alive) == 1:
            break
        alive = alive[keep(table[alive], size)]
    return int(alive[table[alive][:, : SCHEDULE[-1]].mean(axis=1).argmax()])


def reference_trial(table: NDArray[np.float32], rng: np.random.Generator) -> None:
    """One trial of one sentence: standard MBR, every alpha, every beta, and false pruning at every size."""
    table = rng.permutation(table, axis=1)
    table[:, : SCHEDULE[-1]].sum(axis=1).argmax()
    for alpha in ALPHAS:
        decode(table, lambda rows, size, a=alpha: np.flatnonzero(gathered_wins(rows, size, rng) > 1 - a))  # type: ignore[misc]
    for beta in BETAS:
        kept = lambda rows, size, b=beta: (-rows[:, :size].sum(axis=1)).argsort()[: max(1, int(len(rows) * (1 - b)))]  # noqa: E731
        decode(table, kept)  # type: ignore[arg-type]
    winner = table.sum(axis=1).argmax()
    for size in SIZES:  # here the scripts compare only the winner with the leader
        leader = table[:, :size].sum(axis=1).argmax()
        gathered_wins(table[[winner, leader]], size, rng)


def seconds(function: Callable[[], object]) -> float:
    """Processor seconds, so that other load on the machine does not count."""
    started = time.process_time()
    function()
    return time.process_time() - started


def measure(path: str, sentences: int) -> list[tuple[str, float, float]]:
    """Rows (what, reference seconds, our seconds), both scaled to the full size."""
    file = CandidateFile.from_path(path)
    records = file.records(sentences)
    metric = CHRF(word_order=2)
    pairs = [
        (h, r)
        for record in records
        for h in record.hypotheses[:8]
        for r in list(record.pseudo_references)[:12]  # type: ignore[arg-type]
    ]
    scored = sum(len(set(r.hypotheses)) * len(set(r.pseudo_references)) for r in records)  # type: ignore[arg-type]
    everything = scored / len(records) * FULL["sentences"]  # distinct pairs: the scripts merge equal strings too
    theirs = seconds(lambda: [metric.sentence_score(h, [r]).score for h, r in pairs]) / len(pairs) * everything
    utility = ChrF(threads=1)
    ours = seconds(lambda: compute(records, utility)) / scored * everything
    rows = [("utility tables", theirs, ours)]
    with tempfile.TemporaryDirectory() as folder:
        stored = tables(file, records, utility, Path(folder))
        full = [expanded(table) for table in stored]
        rng = np.random.default_rng(0)
        scale = FULL["sentences"] * FULL["trials"] / len(stored)
        theirs = seconds(lambda: [reference_trial(table, rng) for table in full]) * scale
        options = {"name": "x", "schedule": SCHEDULE, "settings": TRADEOFF, "trials": 1}
        ours = seconds(lambda: run_trials(stored, **options)) * scale  # type: ignore[arg-type]
        rows.append(("trials: 24 settings, false pruning", theirs, ours))
    return rows


def whole(path: str) -> str:
    """The full evaluation, not scaled: 150 sentences, 10 trials, 24 settings, false pruning, two processes."""
    file = CandidateFile.from_path(path)
    records = file.records(FULL["sentences"])
    utility = ChrF(threads=2)
    with tempfile.TemporaryDirectory() as folder:
        clock, busy = time.perf_counter(), sum(os.times()[:4])
        stored = tables(file, records, utility, Path(folder))
        built = time.perf_counter() - clock, sum(os.times()[:4]) - busy
        clock, busy = time.perf_counter(), sum(os.times()[:4])
        options = {"name": "x", "schedule": SCHEDULE, "settings": TRADEOFF, "trials": FULL["trials"], "workers": 2}
        run_trials(stored, **options)  # type: ignore[arg-type]
        raced = time.perf_counter() - clock, sum(os.times()[:4]) - busy
    return (
        f"The full evaluation with two processes on {len(records)} sentences: tables {built[0]:.0f} s "
        f"({built[1]:.0f} processor seconds), races {raced[0]:.0f} s ({raced[1]:.0f} processor seconds), "
        f"with a load of {os.getloadavg()[1]:.0f} for {os.cpu_count()} cores."
    )


def expanded(table: Table) -> NDArray[np.float32]:
    """The table with one column per draw."""
    return np.array(table.utilities[:, [table.columns[text] for text in table.draws]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("candidates")
    parser.add_argument("--sentences", type=int, default=10, help="number of sentences to measure")
    parser.add_argument("-o", "--output", default="-")
    args = parser.parse_args()
    rows = measure(args.candidates, args.sentences)
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    lines = [
        "# The evaluation, timed",
        "",
        f"Processor seconds ({device_name().rsplit(',', 1)[0]}), one pair and chrF++: {FULL['sentences']} sentences, "
        f"256 x 1,024 tables, {FULL['trials']} trials, 24 settings.",
        f"Both sides measured on {args.sentences} sentences of `{Path(args.candidates).name}` in the same run "
        "(reference tables on 96 pairs per sentence) and scaled up.",
        "The reference is the procedure of the paper's public scripts: sacreBLEU pair by pair, resamples gathered.",
        "",
        "| | reference (s) | mbrace (s) | ratio |",
        "| :-- | --: | --: | --: |",
        *(f"| {what} | {theirs:,.0f} | {ours:,.1f} | {theirs / ours:,.0f}x |" for what, theirs, ours in rows),
        "",
        whole(args.candidates),
        "",
        f"Written by `python bench/experiments.py {Path(args.candidates).name}`.",
    ]
    text = "\n".join(lines) + "\n"
    if args.output == "-":
        sys.stdout.write(text)
    else:
        Path(args.output).write_text(text)


if __name__ == "__main__":
    main()
