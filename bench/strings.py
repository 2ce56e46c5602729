"""Sentence BLEU against sacreBLEU: `python bench/strings.py` writes bench/results/strings.md.

A table of 256 x 256 sampled translations of one sentence, from Python strings to a NumPy table, on one thread. Ratios
are of processor times of the same run, the best of several each; sacreBLEU is timed on some of the rows, as its cost is
per pair (it remembers the strings it has tokenised).
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sacrebleu
from sacrebleu.metrics import BLEU
from texts import newstest

import mbrace
from mbrace.utility import Ask, Sentence

RESULTS = Path(__file__).parent / "results"
SIZE, SACREBLEU_ROWS = 256, 16


def best(work: Callable[[], object], rounds: int) -> float:
    """The shortest of several runs, in seconds of processor time."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def table(utility: mbrace.BLEU, hypotheses: list[str], references: list[str]) -> np.ndarray:
    return utility.start([Sentence(0, None, hypotheses)]).score([Ask(0, np.arange(len(hypotheses)), references)])[0]


def one_tokenizer(tokenize: str, hypotheses: list[str], references: list[str]) -> str:
    ours, metric = mbrace.BLEU(tokenize=tokenize, threads=1), BLEU(tokenize=tokenize, effective_order=True)

    def sacrebleu_rows() -> np.ndarray:
        return np.array(
            [[metric.sentence_score(h, [r]).score for r in references] for h in hypotheses[:SACREBLEU_ROWS]]
        )

    theirs = best(sacrebleu_rows, 2) * len(hypotheses) / SACREBLEU_ROWS
    own = best(lambda: table(ours, hypotheses, references), 10)
    theirs = min(theirs, best(sacrebleu_rows, 1) * len(hypotheses) / SACREBLEU_ROWS)
    difference = np.abs(table(ours, hypotheses, references)[:SACREBLEU_ROWS] - sacrebleu_rows()).max()
    return f"| {tokenize} | {theirs:.2f} s | {1000 * own:.1f} ms | **{theirs / own:,.0f}x** | {difference:.1e} |"


def main() -> None:
    hypotheses, references = newstest(SIZE, SIZE, beam=False)
    tokens = np.mean([len(text.split()) for text in hypotheses])
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    lines = [
        "# Sentence BLEU",
        "",
        f"`python bench/strings.py`: {SIZE} x {SIZE} sampled translations of one sentence (newstest, {tokens:.0f} "
        f"words on average), one thread, processor time, sacreBLEU {sacrebleu.__version__} timed on {SACREBLEU_ROWS} "
        f"of the {SIZE} rows in the same run; Python {platform.python_version()}, {platform.machine()}; "
        f"load average {load} when it began.",
        "",
        "| tokenizer | sacreBLEU | mbrace | ratio | largest difference |",
        "|---|---|---|---|---|",
        *[one_tokenizer(tokenize, hypotheses, references) for tokenize in ("13a", "none", "char")],
    ]
    (RESULTS / "strings.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
