"""One whole decoding job in a process of its own, for bench/peers.py: `python bench/jobs.py JOB FILE` prints JSON.

It runs in mbrace's environment or in a peer's, so each job imports what it needs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import memory

SCHEDULE = [16, 32, 64, 128, 256]
ALPHA, BOOTSTRAPS = 0.99, 500


def mbrace_job(records: list[dict], word_order: int, pruning: bool) -> tuple[list[int], int]:
    import mbrace

    answers = mbrace.decode_corpus(
        [mbrace.Record(r["hypotheses"], r["pseudo_references"], id=r["id"]) for r in records],
        utility=mbrace.ChrF(word_order=word_order, threads=1),
        prune=mbrace.Confidence(alpha=ALPHA, bootstraps=BOOTSTRAPS) if pruning else None,
        shuffle=False,
    )
    done = list(answers)
    return [answer.index for answer in done], sum(answer.utility_calls for answer in done)


def mbrs_job(records: list[dict], pruning: bool) -> tuple[list[int], int]:
    import torch
    from mbrs.decoders.mbr import DecoderMBR
    from mbrs.decoders.pruning_mbr import DecoderPruningMBR
    from mbrs.metrics.chrf import MetricChrF

    torch.set_num_threads(1)
    calls = 0

    class Counting(MetricChrF):
        def pairwise_scores(self, hypotheses, references, *args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += len(hypotheses) * len(references)
            return super().pairwise_scores(hypotheses, references, *args, **kwargs)

    metric = Counting(MetricChrF.Config(fastchrf=True))
    if pruning:
        config = DecoderPruningMBR.Config(alpha=ALPHA, sampling_scheduler=SCHEDULE, num_bootstrap_samples=BOOTSTRAPS)
        decoder = DecoderPruningMBR(config, metric)
    else:
        decoder = DecoderMBR(DecoderMBR.Config(), metric)
    return [decoder.decode(r["hypotheses"], r["pseudo_references"]).idx[0] for r in records], calls


def paper_job(records: list[dict], pruning: bool) -> tuple[list[int], int]:
    """Algorithms 1 and 2 as printed: a sacreBLEU call for every pair, a gather for every resample."""
    import numpy as np
    from sacrebleu.metrics import CHRF

    metric, rng = CHRF(word_order=2), np.random.default_rng(0)
    answers, calls = [], 0
    for record in records:
        texts, references = record["hypotheses"], record["pseudo_references"]
        alive = np.arange(len(texts))
        scores = np.empty((len(texts), 0), dtype=np.float32)
        for size in SCHEDULE if pruning else [len(references)]:
            new = references[scores.shape[1] : size]
            table = [[metric.sentence_score(texts[h], [r]).score for r in new] for h in alive]
            calls += len(alive) * len(new)
            scores = np.concatenate([scores, np.array(table, dtype=np.float32)], axis=1)
            if pruning:
                resamples = rng.integers(0, scores.shape[1], (BOOTSTRAPS, scores.shape[1]))
                means = scores[:, resamples].mean(axis=2)
                keep = (means >= means[scores.mean(axis=1).argmax()]).mean(axis=1) > 1 - ALPHA
                alive, scores = alive[keep], scores[keep]
            if len(alive) == 1:
                break
        answers.append(int(alive[scores.mean(axis=1).argmax()]))
    return answers, calls


JOBS: dict[str, Callable[[list[dict]], tuple[list[int], int]]] = {
    "mbrace chrF++": lambda records: mbrace_job(records, 2, False),
    "mbrace chrF++ pruning": lambda records: mbrace_job(records, 2, True),
    "mbrace chrF": lambda records: mbrace_job(records, 0, False),
    "mbrace chrF pruning": lambda records: mbrace_job(records, 0, True),
    "mbrs mbr, fastChrF": lambda records: mbrs_job(records, False),
    "mbrs pruning_mbr, fastChrF": lambda records: mbrs_job(records, True),
    "paper: sacreBLEU, standard": lambda records: paper_job(records, False),
    "paper: sacreBLEU, gather bootstrap": lambda records: paper_job(records, True),
}


def fastchrf_file(each: int) -> None:
    """Standard MBR of hypotheses.txt with fastChrF in a loop, for the chart of bench/peers.py; writes out.txt."""
    import fastchrf

    with open("hypotheses.txt", encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    with open("out.txt", "w", encoding="utf-8") as out:
        for first in range(0, len(lines), each):
            texts = lines[first : first + each]
            means = [sum(row) for row in fastchrf.pairwise_chrf([texts], [texts])[0]]
            out.write(texts[means.index(max(means))] + "\n")


def main(job: str, path: str) -> None:
    with open(path, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    JOBS[job](
        [{**records[0], "hypotheses": ["a b", "a c"], "pseudo_references": ["a b c"] * 16}]
    )  # imports are not timed
    started = time.process_time()  # unlike wall time, it does not depend on the load of the machine
    indices, calls = JOBS[job](records)
    seconds = time.process_time() - started
    peak = memory.peak()
    print(json.dumps({"indices": indices, "calls": calls, "seconds": seconds, "peak": peak}))


if __name__ == "__main__":
    if sys.argv[1] == "fastchrf":
        fastchrf_file(int(sys.argv[2]))
    else:
        main(*sys.argv[1:])
