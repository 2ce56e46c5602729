"""chrF++ against sacreBLEU and fastChrF: `python bench/chrf.py` writes bench/results/chrf.{md,json}.

Every ratio compares two times from the same run, each the best of several. Our time is from Python strings to a NumPy
table, with words (chrF++) unless the column says chrF; fastChrF does not count words.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("RAYON_NUM_THREADS", "1")  # fastChrF on one thread, like ours

import fastchrf
import memory as memory_use
import numpy as np
from sacrebleu.metrics import CHRF
from texts import documents, newstest, newstest_records, sides

import mbrace
from mbrace import _native
from mbrace.utility import Ask, Sentence, cores

RESULTS = Path(__file__).parent / "results"
SACREBLEU_PAIRS = 32  # sacreBLEU is timed on 32 x 32 pairs and extrapolated: its cost is per pair


def best(
    function: Callable[[], object], *, seconds: float, least: int = 1, clock: Callable[[], float] = time.process_time
) -> float:
    """The shortest of as many runs of `function` as fit in `seconds`, at least `least`.

    Processor time by default: on one thread it equals the wall time of an idle machine, and on a busy machine it does
    not make a peer's long run look slower than a short run of ours.
    """
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < least or time.perf_counter() - began < seconds:
        start = clock()
        function()
        times.append(clock() - start)
    return min(times)


def table(hypotheses: list[str], references: list[str], utility: mbrace.ChrF) -> np.ndarray:
    scorer = utility.start([Sentence(0, None, hypotheses)])
    return scorer.score([Ask(0, np.arange(len(hypotheses)), references)])[0]


# The texts to score, by name; the first is the headline.
TEXTS: dict[str, Callable[[int, int], tuple[list[str], list[str]]]] = {
    "samples": lambda hypotheses, references: newstest(hypotheses, references, beam=False),
    "beam": lambda hypotheses, references: newstest(hypotheses, references, beam=True),
    "captions": sides,
}


def one_size(size: int, budget: float, peers: bool, texts: str = "captions") -> dict:
    hypotheses, references = TEXTS[texts](size, size)
    plus, plain = mbrace.ChrF(threads=1), mbrace.ChrF(word_order=0, threads=1)
    few = min(size, SACREBLEU_PAIRS)
    metric = CHRF(word_order=2)

    def sacrebleu() -> list[list[float]]:
        return [[metric.sentence_score(h, [r]).score for r in references[:few]] for h in hypotheses[:few]]

    row: dict = {"texts": texts, "size": size}
    # Ours and the peers take turns, so that all see the same machine.
    rounds: list[dict[str, float]] = []
    for _ in range(3 if peers else 1):
        times = {
            "ours": best(lambda: table(hypotheses, references, plus), seconds=budget, least=3),
            "ours_chrf": best(lambda: table(hypotheses, references, plain), seconds=budget, least=3),
        }
        if peers:
            times["pairwise"] = best(lambda: fastchrf.pairwise_chrf([hypotheses], [references]), seconds=budget)
            times["aggregate"] = best(lambda: fastchrf.aggregate_chrf([hypotheses], [references]), seconds=budget)
            times["sacrebleu"] = best(sacrebleu, seconds=budget) * (size / few) ** 2
        rounds.append(times)
        if sum(times.values()) > 60:
            break
    row |= {name: min(times[name] for times in rounds) for name in rounds[0]}
    if peers:
        ours = table(hypotheses[:few], references[:few], plus)
        row["difference"] = float(np.abs(ours - np.array(sacrebleu())).max())
    return row


def variants(budget: float) -> list[dict]:
    hypotheses, references = TEXTS["samples"](256, 256)
    rows = []
    for name in _native.simd_variants():
        os.environ["MBRACE_SIMD"] = name
        rows.append(
            {
                "simd": name,
                "seconds": best(lambda: table(hypotheses, references, mbrace.ChrF(threads=1)), seconds=budget),
            }
        )
    del os.environ["MBRACE_SIMD"]
    return rows


def steps(budget: float) -> list[dict]:
    """The steps of a race: index once, then many hypotheses against few references, then few against many."""
    hypotheses, references = TEXTS["samples"](256, 256)
    utility = mbrace.ChrF(threads=1)
    scorer = utility.start([Sentence(0, None, hypotheses)])
    rows = [
        {
            "step": "index 256 hypotheses",
            "seconds": best(lambda: utility.start([Sentence(0, None, hypotheses)]), seconds=budget),
        }
    ]
    for alive, new in ((256, 16), (64, 16), (16, 32), (4, 64), (2, 128)):
        ask = Ask(0, np.arange(alive), references[:new])
        took = best(lambda ask=ask: scorer.score([ask]), seconds=budget)
        rows.append({"step": f"{alive} survivors x {new} references", "seconds": took})
    return rows


def threads(budget: float, sentences: int = 64) -> list[dict]:
    """A window of a corpus: newstest sentences with 256 hypotheses and 256 samples."""
    records = newstest_records(4 * sentences)[::4]
    window = [(list(dict.fromkeys(record["hypotheses"])), record["pseudo_references"]) for record in records]

    def corpus(count: int) -> None:
        scorer = mbrace.ChrF(threads=count).start([Sentence(i, None, h) for i, (h, _) in enumerate(window)])
        scorer.score([Ask(i, np.arange(len(h)), r) for i, (h, r) in enumerate(window)])

    counts = sorted({1, 2, cores()})
    times, processor = dict.fromkeys(counts, float("inf")), dict.fromkeys(counts, float("inf"))
    began = time.perf_counter()
    while time.perf_counter() - began < 8 * budget:  # interleaved, so that all see the same machine
        for count in counts:
            processor[count] = min(processor[count], best(lambda count=count: corpus(count), seconds=0))
            times[count] = min(
                times[count], best(lambda count=count: corpus(count), seconds=0, clock=time.perf_counter)
            )
    return [
        {"threads": count, "seconds": times[count], "processor": processor[count], "sentences": sentences}
        for count in counts
    ]


def memory(size: int) -> dict:
    """Peak resident memory of a fresh process that scores size x size pairs, without the strings and the result."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory-of", str(size)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def memory_of(size: int) -> None:
    hypotheses, references = sides(size, size)
    table(hypotheses[:2], references[:2], mbrace.ChrF(threads=1))
    before = memory_use.start()
    start = time.perf_counter()
    result = table(hypotheses, references, mbrace.ChrF(threads=1))
    seconds = time.perf_counter() - start
    peak = memory_use.peak() - before
    print(
        json.dumps({"size": size, "seconds": seconds, "beyond": max(0, peak - result.nbytes), "result": result.nbytes})
    )


def lengths(budget: float) -> list[dict]:
    return [one_length(characters, budget) for characters in (30, 100, 300, 1000, 3000, 10_000)]


def one_length(characters: int, budget: float) -> dict:
    hypotheses, references = documents(64, characters)
    utility = mbrace.ChrF(threads=1)
    few = 64 if characters <= 300 else 8
    peer = best(lambda: fastchrf.pairwise_chrf([hypotheses[:few]], [references[:few]]), seconds=0)
    aggregate = best(lambda: fastchrf.aggregate_chrf([hypotheses], [references]), seconds=0)
    ours = best(lambda: table(hypotheses, references, utility), seconds=budget)
    times = {"ours": ours, "pairwise": peer * (64 / few) ** 2, "aggregate": aggregate}
    return {"characters": characters, **times}


def seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale or unit == "µs":
            return f"{value / scale:.3g} {unit}"
    raise AssertionError


def report(results: dict) -> str:
    lines = [
        "# chrF++ on one thread",
        "",
        "Written by `python bench/chrf.py`. " + results["machine"],
        "",
        "Our time is from Python strings to a NumPy table; chrF++ counts words, fastChrF does not. Each number is the",
        "best processor time of several in the same run (for threads also the wall time).",
        f"sacreBLEU: {SACREBLEU_PAIRS} x {SACREBLEU_PAIRS} pairs, extrapolated.",
    ]
    headings = {
        "samples": "Real samples of a newstest2018 sentence, 186 characters, against other samples of it",
        "beam": "Its 256 beam hypotheses against samples",
        "captions": "Samples of two captions joined to 190 characters (`bench/data/README.md`): more diverse",
    }
    for texts, heading in headings.items():
        lines += [
            "",
            f"## {heading}",
            "",
            "| pairs | mbrace chrF++ | mbrace chrF | fastChrF pairwise | fastChrF aggregate (approximate) "
            "| sacreBLEU chrF++ | x pairwise | x aggregate | x sacreBLEU | largest difference |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in results["sizes"]:
            if "pairwise" not in row or row["texts"] != texts:
                continue
            ours = row["ours"]
            lines.append(
                f"| {row['size']} x {row['size']} | {seconds(ours)} | {seconds(row['ours_chrf'])} "
                f"| {seconds(row['pairwise'])} | {seconds(row['aggregate'])} "
                f"| {seconds(row['sacrebleu'])} | {row['pairwise'] / ours:,.0f} "
                f"| {row['aggregate'] / ours:,.1f} | {row['sacrebleu'] / ours:,.0f} | {row['difference']:.1e} |"
            )
    lines += ["", "## The steps of a race", "", "| step | time |", "|---|---|"]
    lines += [f"| {row['step']} | {seconds(row['seconds'])} |" for row in results["steps"]]
    lines += ["", "## Instruction sets, 256 x 256", "", "| forced with `MBRACE_SIMD` | time |", "|---|---|"]
    lines += [f"| {row['simd']} | {seconds(row['seconds'])} |" for row in results["variants"]]
    single = results["threads"][0]["seconds"]
    lines += [
        "",
        f"## Threads, {results['threads'][0]['sentences']} newstest sentences of 256 x 256",
        "",
        "Wall time needs idle cores; equal processor time shows that threads do not repeat work.",
        "",
        "| threads | wall time | speed-up | processor time |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['threads']} | {seconds(row['seconds'])} | {single / row['seconds']:.2f}x "
        f"| {seconds(row['processor'])} |"
        for row in results["threads"]
    ]
    lines += [
        "",
        "## Memory",
        "",
        "| pairs | time, first call | result | peak without the result |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['size']} x {row['size']} | {seconds(row['seconds'])} | {row['result'] / 2**20:.0f} MiB "
        f"| {row['beyond'] / 2**20:.0f} MiB |"
        for row in results["memory"]
    ]
    lines += [
        "",
        "## Length, 64 x 64 pairs",
        "",
        "| characters | mbrace chrF++ | fastChrF pairwise (from 8 x 8 above 300) | ratio |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['characters']:,} | {seconds(row['ours'])} | {seconds(row['pairwise'])} "
        f"| {row['pairwise'] / row['ours']:,.0f} |"
        for row in results["lengths"]
    ]
    return "\n".join([*lines, ""])


def machine() -> str:
    """The machine, its load and the Python that measure, in a sentence."""
    from mbrace.experiments.runtimes import processor_name

    load = f"load average at the start {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    simd = _native.simd_variants()[0]
    return f"Machine: {processor_name()}, {os.cpu_count()} cores, {simd}, Python {platform.python_version()}, {load}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds per measurement")
    parser.add_argument("--quick", action="store_true", help="small sizes only, nothing written")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        memory_of(args.memory_of)
        return
    peers = (16, 64, 256) if args.quick else (16, 64, 256, 1024)
    without_peers = () if args.quick else (2048, 4096)
    results = {
        "machine": machine(),
        "sizes": [one_size(size, args.seconds, True, texts) for texts in ("samples", "beam") for size in (16, 64, 256)]
        + [one_size(size, args.seconds, True) for size in peers]
        + [one_size(size, args.seconds, False) for size in without_peers],
        "steps": steps(args.seconds / 3),
        "variants": variants(args.seconds),
        "threads": threads(args.seconds),
        "memory": [memory(size) for size in ((1024,) if args.quick else (1024, 4096))],
        "lengths": lengths(args.seconds),
    }
    text = report(results)
    print(text)
    if not args.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "chrf.json").write_text(json.dumps(results, indent=1) + "\n")
        (RESULTS / "chrf.md").write_text(text)


if __name__ == "__main__":
    main()
