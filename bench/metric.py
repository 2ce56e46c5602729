"""How well a learned metric agrees with people, compared with chrF++ and the plain cosine of the same encoder.

    python bench/metric.py DATA --model en --out bench/results
    python bench/metric.py DATA --model multilingual --lines 1000 --out bench/results

DATA holds judgements.wmt17-da-to-en.tsv.gz, judgements.mlqe-pe.tsv.gz, wmt18-systems.PAIR.tsv.gz and
wmt18-da-syslevel.tsv.gz. Segments are WMT17's of the held-out pairs, all of them and those whose reference no training
row has (WMT17's pairs share sentences written in English), and, for the multilingual metric, which was not trained on
them, the first 1,000 of each pair of MLQE-PE (ordinary text, but the reference is a post-edit). Systems are those
submitted to WMT18, each scored by its mean over the test set; `--lines` takes that many sentences, evenly spread, for
the metrics that need the encoder, and all of them for chrF++.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mbrace import ChrF
from mbrace.io.reading import read_lines
from mbrace.neural.comet import Learned
from mbrace.neural.encoder import Readout
from mbrace.training.metric_data import Judgement, kendall, pearson, read_judgements

METRICS = ("learned", "cosine", "chrF++")
WMT17, MLQE = "judgements.wmt17-da-to-en.tsv.gz", "judgements.mlqe-pe.tsv.gz"
TRAINED = {"en": (WMT17, MLQE), "multilingual": (WMT17,)}
PAIRS = ("de-en", "tr-en")  # held out, with judged segments
SYSTEMS = {"en": PAIRS, "multilingual": (*PAIRS, "en-et")}


class Neural:
    """The learned metric and the plain cosine (the mean of the last layer) from one run of their common encoder."""

    is_mean = False

    def __init__(self, model: str) -> None:
        learned = Learned(model, device="cpu")
        self.encoder, self.head, self.mix, self.last = (
            learned.encoder,
            learned.head,
            learned.encoder.readout,
            Readout("avg"),
        )
        self.encoder.readout = self  # type: ignore[assignment]

    def reads(self, layers: int) -> set[int]:
        """All hidden states."""
        return set(range(layers))

    def __call__(self, *states: Any) -> torch.Tensor:
        return torch.cat([self.mix(*states), self.last(*states)], dim=1)

    def scores(self, translations: Sequence[str], references: Sequence[str]) -> list[NDArray[np.float32]]:
        """Scores of the learned metric and of the cosine, each (pairs,)."""
        texts = list(dict.fromkeys([*translations, *references]))
        vectors, rows = self.encoder.embed(texts), {text: row for row, text in enumerate(texts)}
        found = []
        for begin in range(0, len(translations), 4096):
            sides = (
                vectors[[rows[text] for text in side[begin : begin + 4096]]] for side in (translations, references)
            )
            (h, h_last), (r, r_last) = (side.split(self.encoder.units, dim=1) for side in sides)
            cosine = torch.nn.functional.cosine_similarity(h_last, r_last)
            found.append(torch.stack([self.head.aligned(h, r, None), cosine]))
        return list(torch.cat(found, dim=1).numpy())


def unseen(rows: Sequence[Judgement], trained: Sequence[Judgement]) -> list[Judgement]:
    """The rows whose reference is in no training row of any language pair: pairs of a test set share sentences."""
    references = {row.reference for row in trained}
    return [row for row in rows if row.reference not in references]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", choices=TRAINED, default="en")
    parser.add_argument(
        "--lines", type=int, default=None, help="sentences of each WMT18 test set for the encoder (default: all)"
    )
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    neural = Neural(args.model)
    which, option = ("", "") if args.model == "en" else (f" ({args.model})", f" --model {args.model}")
    option += f" --lines {args.lines}" if args.lines else ""
    but = "" if args.model == "en" else " (except ru-en: other judgements, of WMT17)"
    lines = [
        f"# Agreement of the learned metric{which} with people",
        "",
        f'Held out: no judgement of these language pairs was trained on{but}. "Unseen references" leaves out segments',
        "whose reference a training row of another pair has too (WMT17's pairs share sentences written in English).",
        f"Written by `bench/metric.py{option}`.",
        "",
        "| | " + " | ".join(f"{metric} Pearson | {metric} Kendall" for metric in METRICS) + " |",
        "|---|" + "---|" * (2 * len(METRICS)),
    ]
    for rows in (segments(args, neural), systems(args, neural)):
        for row in rows:
            print(row, flush=True)
            lines.append(row)
    args.out.mkdir(parents=True, exist_ok=True)
    name = "metric.md" if args.model == "en" else f"metric-{args.model}.md"
    (args.out / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def segments(args: argparse.Namespace, neural: Neural) -> Iterator[str]:
    """WMT17 segments of each held-out pair, and MLQE-PE's where they were not trained on."""
    judged = {name: read_judgements(str(args.data / name)) for name in (WMT17, MLQE)}
    trained = [row for name in TRAINED[args.model] for row in judged[name] if row.pair not in PAIRS]
    chosen = {f"WMT17 {pair}": [row for row in judged[WMT17] if row.pair == pair] for pair in PAIRS}
    if args.model == "multilingual":
        for pair in sorted({row.pair for row in judged[MLQE]}):
            chosen[f"MLQE-PE {pair}"] = [row for row in judged[MLQE] if row.pair == pair][:1000]
    for what, rows in chosen.items():
        sides = [row.translation for row in rows], [row.reference for row in rows]
        scores, human = [*neural.scores(*sides), ChrF().pairs(*sides)], np.array([row.score for row in rows])
        yield line(f"{what}, {len(rows)} segments", scores, human)
        new = set(unseen(rows, trained))
        if len(new) < len(rows):
            kept = [index for index, row in enumerate(rows) if row in new]
            some = [np.asarray(each)[kept] for each in scores]
            yield line(f"{what}, {len(kept)} segments, unseen references", some, human[kept])


def systems(args: argparse.Namespace, neural: Neural) -> Iterator[str]:
    """WMT18 systems of each pair, by their mean."""
    table = [text.split("\t") for text in read_lines(str(args.data / "wmt18-da-syslevel.tsv.gz"))][1:]
    human = {(pair, system): float(z) for pair, system, z in table}
    for pair in SYSTEMS[args.model]:
        header, *rows = [text.split("\t") for text in read_lines(str(args.data / f"wmt18-systems.{pair}.tsv.gz"))]
        columns = [column for column, name in enumerate(header) if (pair, name) in human]
        some = spread(rows, args.lines or len(rows))
        scores = [*neural.scores(*sides_of(some, columns)), ChrF().pairs(*sides_of(rows, columns))]
        means = [np.asarray(each).reshape(len(columns), -1).mean(axis=1) for each in scores]
        what = f"WMT18 {pair}, {len(columns)} systems, all {len(rows)} sentences"
        if len(some) < len(rows):
            what = f"WMT18 {pair}, {len(columns)} systems, {len(some)} of {len(rows)} sentences (chrF++: all)"
        yield line(what, means, [human[pair, header[column]] for column in columns])


def spread(rows: list[list[str]], count: int) -> list[list[str]]:
    """`count` of the rows (all, if there are fewer), evenly spread: neighbours are of one document."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def sides_of(rows: list[list[str]], columns: list[int]) -> tuple[list[str], list[str]]:
    """Translations, system by system, and the reference of each."""
    return [row[column] for column in columns for row in rows], [row[1] for row in rows] * len(columns)


def line(what: str, scores: list[Any], human: Sequence[float] | NDArray[np.floating]) -> str:
    return f"| {what} | " + " | ".join(f"{pearson(s, human):.3f} | {kendall(s, human):.3f}" for s in scores) + " |"


if __name__ == "__main__":
    main()
