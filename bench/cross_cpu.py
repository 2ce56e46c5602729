"""Racing with small cross-encoders on a CPU, against our own unpruned run.

    python bench/cross_cpu.py                      # about two minutes on two cores
    python bench/cross_cpu.py --tiny --out out     # a rehearsal; its numbers mean nothing

Networks in BLEURT's layout with random weights, so this is SPEED ONLY: every forward pass is paid, and then the value
that another utility (`--values`) has for the same two strings is returned, so that races prune as they do with a real
metric. The unpruned run is measured in part and multiplied by its pairs; the results say how much was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import texts
import torch
import transformers
from safetensors.torch import save_file
from speed_only import SpeedOnly, Table, references_of

import mbrace
from mbrace.cross.bleurt import SIZES, BleurtNetwork
from mbrace.experiments.runtimes import processor_name
from mbrace.neural import pretrained
from mbrace.utility import Ask, Sentence

NETWORKS = {  # layers, units, heads, inner units
    "BLEURT-Tiny": (2, 128, 2, 512),
    "MiniLM-L6-H384": (6, 384, 12, 1536),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--values", choices=["learned", "chrf++"], default="learned", help="what races prune by")
    parser.add_argument("--sentences", type=int, default=2)
    parser.add_argument("--size", type=int, default=256, help="hypotheses and pseudo-references per sentence")
    parser.add_argument("--repeats", type=int, default=1, help="timed runs, of which the median counts")
    parser.add_argument("--part", type=int, default=4, help="pseudo-references that the unpruned run is measured with")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal of 16 x 16 strings")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    size = 16 if args.tiny else args.size
    rows = texts.newstest_records(args.sentences * 4)[::4]  # of different sentences
    records = [
        mbrace.Record(row["hypotheses"][:size], row["pseudo_references"][:size], id=row["id"], source=row["source"])
        for row in rows
    ]
    decider = mbrace.Learned(device="cpu") if args.values == "learned" else mbrace.ChrF()
    tables = {record.id: Table.of(record, decider) for record in records}
    results = []
    for name in args.networks:
        with tempfile.TemporaryDirectory() as folder:
            make_checkpoint(Path(folder), *NETWORKS[name])
            utility = mbrace.BLEURT(folder, device="cpu")
        results.append({"network": name, **measure(utility, records, tables, args.repeats, args.part)})
        print(json.dumps(results[-1]), flush=True)
    about = {
        "machine": f"{processor_name()} ({os.cpu_count()} CPUs), {torch.get_num_threads()} threads",
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "sentences": args.sentences,
        "size": size,
        "values": args.values,
        "repeats": args.repeats,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "cross-cpu.json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    (args.out / "cross-cpu.md").write_text(report(about, results), encoding="utf-8")
    print(report(about, results))


def measure(
    utility: Any, records: Sequence[mbrace.Record], tables: dict[Any, Table], repeats: int, part: int
) -> dict[str, Any]:
    """Seconds of the race and of the unpruned run, for all sentences; both after a warm-up, interleaved."""
    pays = SpeedOnly(utility, tables)
    unpruned(utility, tables, 1)
    races, others, answers = [], [], []
    for _ in range(repeats):
        began = time.perf_counter()
        answers = list(mbrace.decode_corpus(records, utility=pays))
        races.append(time.perf_counter() - began)
        began = time.perf_counter()
        pairs = unpruned(utility, tables, part)
        others.append((time.perf_counter() - began) / pairs)
    every = sum(table.scores.size for table in tables.values())
    standard = [tables[record.id].values(record.hypotheses, references_of(record)) for record in records]
    best = [int(table.astype(np.float64).mean(axis=1).argmax()) for table in standard]
    race, whole = statistics.median(races), statistics.median(others) * every
    scored = sum(answer.pairs_scored for answer in answers)
    return {
        "race": race,
        "unpruned": whole,
        "times": whole / race,
        "pairs_scored": scored,
        "pairs": every,
        "race_pairs_per_second": scored / race,
        "unpruned_pairs_per_second": every / whole,
        "measured": pairs / every,
        "calls": sum(answer.utility_calls for answer in answers),
        "standard_calls": sum(table.size for table in standard),
        "same": sum(answer.index == index for answer, index in zip(answers, best, strict=True)),
        "sentences": len(answers),
    }


def unpruned(utility: Any, tables: dict[Any, Table], references: int) -> int:
    """All hypotheses against the first pseudo-references (which are samples), all sentences in one call; how many
    pairs."""
    sides = [(list(table.rows), list(table.columns)[:references]) for table in tables.values()]
    window = [Sentence(number, None, hypotheses) for number, (hypotheses, _) in enumerate(sides)]
    asks = [Ask(number, np.arange(len(h)), tuple(r)) for number, (h, r) in enumerate(sides)]
    return sum(table.size for table in utility.start(window).score(asks))


def make_checkpoint(folder: Path, layers: int, units: int, heads: int, inner: int) -> None:
    """A checkpoint of bleurt-pytorch's format with random weights and BERT's vocabulary."""
    packaged = pretrained.find(pretrained.MINILM)
    shutil.copy(packaged / "vocab.txt", folder)
    words = len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    sizes = dict(zip(SIZES, (words, units, layers, heads, inner, 512, 2), strict=True))
    settings = {"model_type": "bleurt", "architectures": ["BleurtForSequenceClassification"], **sizes}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BleurtTokenizer", "do_lower_case": true}')
    torch.manual_seed(0)
    network = BleurtNetwork(transformers.BertConfig(**sizes), None)
    weights = {name: torch.randn(weight.shape) * 0.02 for name, weight in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def report(about: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [
        "# Racing with small cross-encoders on a CPU: speed only",
        "",
        f"Written by `python bench/cross_cpu.py`. {about['machine']}; {about['versions']}; float32.",
        "",
        f"Random weights in BLEURT's layout; {about['size']} hypotheses x {about['size']} pseudo-references per "
        "sentence (newstest2018, German to English),",
        f"{about['sentences']} sentences in one window. Races pay every forward pass and prune by the values of "
        f"`{about['values']}` for the same strings, alpha 0.99.",
        f"Median of {about['repeats']}; the unpruned run is ours too, with equal batches, measured in part.",
        "",
        "| network | run | seconds per sentence | pairs per second | measured | racing is |",
        "|---|---|---|---|---|---|",
    ]
    for found in results:
        count = found["sentences"]
        lines += [
            f"| {found['network']} | racing | {found['race'] / count:.3g} | {found['race_pairs_per_second']:,.0f} "
            "| all | |",
            f"| | unpruned | {found['unpruned'] / count:.3g} | {found['unpruned_pairs_per_second']:,.0f} "
            f"| {found['measured']:.1%} of the pairs | {found['times']:.1f}x |",
        ]
    lines.append("")
    for found in results:
        lines.append(
            f"{found['network']}: the race made {found['calls']:,} utility calls, "
            f"{found['standard_calls'] / found['calls']:.1f}x fewer than standard MBR, and decoded the same string "
            f"for {found['same']} of {found['sentences']} sentences."
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
