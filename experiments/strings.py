"""The study of strings with freshly trained models on one GPU, and how long translating takes.

    python experiments/strings.py DATA OUT --train --study --translate [--pairs de-en tr-en] [--small]

DATA has train.PAIR.tsv.* (source, target, origin), valid.PAIR.* and test.PAIR.* (source, reference). `--train` leaves
OUT/models/PAIR; `--study` writes OUT/data/PAIR.SPLIT.*.strings.json.gz (one row per sentence and way; see
mbrace.experiments.strings); `--translate` writes OUT/translate.json. `--small` rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mbrace
from mbrace.experiments.claims import CHRF_MARGIN, margins
from mbrace.experiments.significance import equivalence
from mbrace.experiments.strings import MARGIN, RACED, STANDARD, StringsTable, strings_rows, strings_tables, summarise
from mbrace.experiments.strings_section import load_rows, save_rows
from mbrace.experiments.trials import Outcomes
from mbrace.io.sentence_pairs import read_pairs
from mbrace.models.vocabulary import Vocabulary
from mbrace.records import Record

MINUTES = {"de-en": 6.5, "tr-en": 5.0}
DROPOUT = {"de-en": 0.1, "tr-en": 0.2}
HELD_OUT = 768


def train(args: argparse.Namespace) -> None:
    """Train all pairs side by side."""
    running = []
    for pair in args.pairs:
        folder, spm = args.out / "models" / pair, args.out / f"{pair}.spm"
        training, valid = one(args.data, f"train.{pair}.*"), one(args.data, f"valid.{pair}.*")
        if not spm.exists():
            lines = [line for both in read_pairs(training) for line in both if len(line) < 400]
            spm.write_bytes(
                Vocabulary.train(
                    lines[:2000] if args.small else lines, 500 if args.small else 16000, limit=200_000
                ).model
            )
        minutes = str(args.minutes or MINUTES[pair])
        budget = ["--size", "base", "--minutes", minutes, "--rate", "5e-4", "--dropout", str(DROPOUT[pair])]
        if args.small:
            budget = ["--size", "tiny", "--steps", "30", "--tokens", "1024"]
        command = [sys.executable, "-m", "mbrace", "train", "--train", str(training), "--valid", str(valid), "-o",
                   str(folder), "--spm", str(spm), *budget]  # fmt: skip
        running.append(
            subprocess.Popen(command, stdout=(args.out / f"{pair}.log").open("wb"), stderr=subprocess.STDOUT)
        )
    if any(process.wait() for process in running):
        raise SystemExit(f"training failed; see {args.out}/*.log")


def one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise SystemExit(f"{folder}: no {pattern}")
    return found[0]


def records_of(args: argparse.Namespace, model: Any, pair: str, split: str, count: int) -> Iterator[dict[str, Record]]:
    """For each sentence its record with independent draws and with arithmetic ones; the held-out draws are the same."""
    beam, raced, held_out = (8, 8, 8) if args.small else (256, RACED, HELD_OUT)
    pairs = read_pairs(one(args.data, f"{split}.{pair}.*"))[:count]
    for first in range(0, len(pairs), 100):
        part = pairs[first : first + 100]
        sources, ids = [source for source, _ in part], [f"{pair}.{split}.{first + i}" for i in range(len(part))]
        beams = model.beam(sources, k=beam)
        independent = model.sample(sources, raced + held_out, ids=ids, seed=1)
        arithmetic = model.sample(sources, raced, ids=ids, seed=2, sampling="arithmetic")
        for i, (source, reference) in enumerate(part):
            rest = list(independent[i].texts)[raced:]
            draws = {"independent": list(independent[i].texts)[:raced], "arithmetic": list(arithmetic[i].texts)}
            yield {
                name: Record(list(beams[i].texts), texts + rest, id=ids[i], source=source, reference=reference)
                for name, texts in draws.items()
            }


def study(args: argparse.Namespace) -> None:
    """Tables on the GPU, races on the processors."""
    metrics: dict[str, Any] = {"learned": mbrace.Learned(), "chrF++": mbrace.ChrF()}
    sizes = {"valid": 3, "test": 4} if args.small else {"valid": args.valid, "test": args.test}
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for pair in args.pairs:
            model = mbrace.Seq2Seq(str(args.out / "models" / pair), rows=8192)
            for split, count in sizes.items():
                started, futures = time.time(), []
                sentences = records_of(args, model, pair, split, count)
                while group := list(itertools.islice(sentences, 10)):
                    for sampling in ("independent", "arithmetic"):
                        records = [variants[sampling] for variants in group]
                        for kind, utility in metrics.items():
                            for table in strings_tables(records, utility, metrics, raced=8 if args.small else RACED):
                                future = pool.submit(rows_of, table, utility.name, utility.schedule)
                                futures.append(((kind, sampling), future))
                found: dict[tuple[str, str], list[dict[str, Any]]] = {}
                for kind, future in futures:
                    found.setdefault(kind, []).extend(future.result())
                for (utility_name, sampling), rows in found.items():
                    about = {"pair": pair, "split": split, "utility": utility_name, "sampling": sampling}
                    save_rows(rows, args.out / "data", about)
                print(f"{pair} {split}: {count} sentences in {time.time() - started:.0f} s", flush=True)


def rows_of(table: StringsTable, name: str, schedule: tuple[int, ...]) -> list[dict[str, Any]]:
    utility = mbrace.Pairwise(lambda h, r: 0.0, name=name, schedule=schedule)  # only its name and schedule are used
    return list(strings_rows(table, utility))


def translate(args: argparse.Namespace) -> None:
    """Seconds for 100 sentences of the first pair, best of three, in one run."""
    pair = args.pairs[0]
    model, learned = mbrace.Seq2Seq(str(args.out / "models" / pair)), mbrace.Learned()
    pairs = read_pairs(one(args.data, f"test.{pair}.*"))
    sources, warm = [s for s, _ in pairs[: 4 if args.small else 100]], [s for s, _ in pairs[200:210]]
    size = 8 if args.small else 256
    paper, race = {"beam": size, "utility": learned, "window": 100}, mbrace.Confidence(0.99)
    fast = {"utility": learned, "window": 100, "pool": True, "sampling": "arithmetic"}
    ways: dict[str, Any] = {
        "beam 10": lambda s: [beam.texts[0] for beam in model.beam(s, k=10)],
        "standard MBR, 256 + 256": lambda s: list(model.translate(s, prune=None, **paper)),
        "racing, alpha 0.99": lambda s: list(model.translate(s, prune=race, **paper)),
        **{
            f"fast: pool from beam {beam}, regret {x:g}": lambda s, beam=beam, x=x: list(
                model.translate(s, beam=beam, prune=mbrace.Confidence(0.99, regret=x), **fast)
            )
            for beam, x in ((64, 0.04), (32, 0.04), (64, 0.08), (16, 0.08))
        },
    }
    found: dict[str, Any] = {}
    for name, way in ways.items():
        way(warm)
        seconds = []
        for _ in range(1 if args.small else 3):
            synchronize()
            began = time.perf_counter()
            answers = way(sources)
            synchronize()
            seconds.append(time.perf_counter() - began)
        found[name] = {"seconds": seconds, "best": min(seconds)}
        if hasattr(answers[0], "strings"):
            found[name]["strings"] = sum(answer.strings for answer in answers) / len(answers)
            found[name]["pseudo_references"] = sum(answer.pseudo_references for answer in answers) / len(answers)
            found[name]["utility"] = sum(answer.utility or 0 for answer in answers) / len(answers)
        print(f"{name}: {min(seconds):.2f} s {found[name]}", flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    (args.out / "translate.json").write_text(
        json.dumps({"device": device, "sentences": len(sources), "ways": found}, indent=1)
    )


SHOWN = ("standard 256 + 256", "standard 128 + 128", "standard 64 + 64", "alpha 0.99", "regret 0.02", "regret 0.04",
         "pool from beam 16, regret 0.08", "pool from beam 64, regret 0.04", "pool from beam 64, regret 0.02",
         "pool from beam 128, regret 0.04")  # fmt: skip

ABOUT = """# Fewer strings

How much is lost when fewer strings are made and encoded. {sentences} of newstest2018, by the
translators of [RESULTS.md](RESULTS.md); 256 beam hypotheses, 256 draws to race with, 768 independent draws held out.
Made by `python experiments/full_scale.py run DATA OUT`, this page by `python experiments/strings.py DATA results
--report`; rows of every sentence are in `data/`. What counts as equal was [written down before](rules.md).

- *strings*: distinct strings encoded per sentence, and as a share of standard MBR's.
- *utility*: expected utility on the held-out draws minus standard MBR's, in standard deviations between hypotheses
  (95% interval). **Equal** if the interval is above -{margin}.
- *decoded with*, *other metric*: change of the score against the human reference (90% interval), by the metric that
  was decoded with and by the one that was not. **Equal**: the interval is inside the margin ({margins}). **Worse**:
  below it altogether. **Lower**, **higher**: not inside the margin, and below or above 0.
- The baseline of every row is standard MBR with 256 + 256 independent draws; `arithmetic` rows draw evenly.

{said}"""


def report(args: argparse.Namespace) -> None:
    """Write OUT/STRINGS.md from the rows in OUT/data; OUT/strings-notes.md says what they say."""
    stored = [row for row in load_rows(args.out / "data") if row["split"] == "test"]
    pairs = sorted({row["pair"] for row in stored})
    counts = {pair: len({row["id"] for row in stored if row["pair"] == pair}) for pair in pairs}
    margin_of = {pair: {"chrF++": CHRF_MARGIN, "learned": learned_margin(args.out / "data", pair)} for pair in pairs}
    notes = args.out / "strings-notes.md"
    lines = [
        ABOUT.format(
            sentences=" and ".join(f"{count:,} sentences ({pair})" for pair, count in counts.items()),
            margin=MARGIN,
            margins=f"{CHRF_MARGIN} chrF++; "
            + ", ".join(f"{margin_of[pair]['learned']:.4f} learned on {pair}" for pair in pairs),
            said=notes.read_text(encoding="utf-8") if notes.exists() else "",
        )
    ]
    for pair in pairs:
        rows = [row for row in stored if row["pair"] == pair]
        for utility, other in (("learned", "chrF++"), ("chrF++", "learned")):
            lines.append(f"\n## {pair}, decoded with {utility}\n")
            lines.append(f"| | strings | share | calls | utility | decoded with ({utility}) | other metric ({other}) |")
            lines.append("|---|---:|---:|---:|---:|---:|---:|")
            own = [row for row in rows if row["utility"] == utility]
            base = [row for row in own if row["sampling"] == "independent" and row["way"] == STANDARD.name]
            for sampling in ("independent", "arithmetic"):
                chosen = [row for row in own if row["sampling"] == sampling and row["way"] in SHOWN]
                if sampling == "arithmetic":
                    chosen = base + [{**row, "way": f"{row['way']}, arithmetic"} for row in chosen]
                for found in summarise(chosen):
                    if sampling == "independent" or sampling in found["way"]:
                        of_way = [row for row in chosen if row["way"] == found["way"]]
                        changes = [_change(of_way, base, name, margin_of[pair][name]) for name in (utility, other)]
                        lines.append(_line(found, changes))
    (args.out / "STRINGS.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def learned_margin(data: Path, pair: str) -> float:
    """As for the claims of RESULTS.md: as large a part of what separates sentences as 0.2 chrF++ is."""
    learned, lexical = (Outcomes.load(data / f"{pair}.valid.{name}.npz") for name in ("learned", "chrf++"))
    return margins(learned, lexical)["score"]


def _change(rows: list[dict[str, Any]], base: list[dict[str, Any]], metric: str, margin: float) -> str:
    """The change of a human score with its 90% interval, and the verdict."""
    assert [row["id"] for row in rows] == [row["id"] for row in base]
    ours, standard = (np.array([row[f"human {metric}"] for row in each]) for each in (rows, base))
    test = equivalence(ours, standard, margin)
    below, above = ("worse" if test.high < -margin else "lower" if test.high < 0 else ""), "higher" * (test.low > 0)
    verdict = "equal" if test.inside else below or above
    digits = 2 if metric == "chrF++" else 3
    value = f"{test.difference:+.{digits}f} [{test.low:+.{digits}f}, {test.high:+.{digits}f}]"
    return f"{value} **{verdict}**" if verdict else value


def _line(found: dict[str, Any], changes: list[str]) -> str:
    low, high = found["utility interval"]
    worth = f"{found['utility']:+.3f} [{low:+.3f}, {high:+.3f}]" + (" **equal**" if low > -MARGIN else "")
    share, calls = found["share of strings"], found["utility_calls"]
    if found["way"] == STANDARD.name:
        worth, changes = "0", ["0", "0"]
    return (
        f"| {found['way']} | {found['strings']:.0f} | {share:.2f}x | {calls:,.0f} | {worth} | {' | '.join(changes)} |"
    )


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", nargs="+", default=["de-en", "tr-en"])
    parser.add_argument("--minutes", type=float, help="of training, for each pair")
    parser.add_argument("--valid", type=int, default=200, help="sentences of the validation set (200)")
    parser.add_argument("--test", type=int, default=500, help="sentences of the test set (500)")
    parser.add_argument("--workers", type=int, default=12, help="processes for races (12)")
    for step in (train, study, translate, report):
        parser.add_argument(f"--{step.__name__}", action="store_true", help=step.__doc__)
    parser.add_argument("--small", action="store_true", help="a rehearsal on a CPU: tiny models, few sentences")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for step in (train, study, translate, report):
        if getattr(args, step.__name__):
            step(args)


if __name__ == "__main__":
    main()
