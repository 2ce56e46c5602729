"""BERTScore of all pairs of a sentence: mbrace against bert-score's own code, the same strings and equal scores.

    python -m pip install --target out/bertscore/package --no-deps bert-score==0.3.13
    python bench/bertscore.py prepare                              # out/bertscore: strings and a tokenizer, 1 MB
    python bench/bertscore.py run --shape minilm                   # on a CPU
    python bench/bertscore.py run --device cuda --shape roberta-large     # on a GPU, which needs out/bertscore

Strings are beam hypotheses and samples of newstest2018. Both sides encode every distinct string once. `matching` is all
that follows: bert-score copies the token vectors of each pair to the device, pads 64 pairs at a time and matches them.
`products` is only its matching function (`greedy_cos_idf`), as if the vectors of every batch were on the device.
Shapes have random weights, so this is SPEED ONLY; scores are compared all the same. `--tiny` rehearses.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import shutil
import sys
import tempfile
import time
import types
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import texts
import torch
import transformers

from mbrace import BERTScore
from mbrace.neural import pretrained
from mbrace.utility import Ask, Sentence

SHAPES = {  # units, heads, layers, and the layer read
    "minilm": (384, 12, 6, 5),
    "roberta-base": (768, 12, 12, 10),
    "roberta-large": (1024, 16, 24, 17),
}
TOKENIZER = ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare_parser = commands.add_parser("prepare")
    prepare_parser.add_argument("--sentences", type=int, default=8)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run_parser.add_argument("--shape", choices=SHAPES, default="minilm")
    run_parser.add_argument("--size", type=int, default=256, help="hypotheses and pseudo-references per sentence")
    run_parser.add_argument("--sentences", type=int, default=1)
    run_parser.add_argument("--repeats", type=int, default=2, help="timed runs after one to warm up")
    run_parser.add_argument("--tiny", action="store_true", help="a rehearsal of 12 x 12 strings")
    run_parser.add_argument("--out", type=Path, default=Path("bench/results"))
    for each in (prepare_parser, run_parser):
        each.add_argument("--folder", type=Path, default=Path("out/bertscore"), help="what prepare writes")
    args = parser.parse_args()
    prepare(args) if args.command == "prepare" else run(args)


def prepare(args: argparse.Namespace) -> None:
    """Write the strings and MiniLM's tokenizer into a folder."""
    args.folder.mkdir(parents=True, exist_ok=True)
    records = texts.newstest_records(args.sentences * 4)[::4]  # of different sentences
    (args.folder / "strings.json").write_text(json.dumps([[r["hypotheses"], r["pseudo_references"]] for r in records]))
    packaged = pretrained.find(pretrained.MINILM)
    for name in TOKENIZER:
        shutil.copy(packaged / name, args.folder)


def run(args: argparse.Namespace) -> None:
    """Measure, interleaved, and write the table."""
    original = load_original(args.folder / "package")
    size = 12 if args.tiny else args.size
    strings = json.loads((args.folder / "strings.json").read_text(encoding="utf-8"))[: args.sentences]
    sides = [(hypotheses[:size], references[:size]) for hypotheses, references in strings]
    with tempfile.TemporaryDirectory() as folder:
        model = make_encoder(Path(folder, "encoder"), args.folder, args.shape)
        layer = SHAPES[args.shape][3]
        rows: list[dict[str, Any]] = []
        tables: dict[str, Any] = {}
        their_side = Theirs(original, model, layer, args.device)
        ways: dict[str, Callable[[], Any]] = {"bert-score": lambda: their_side.score(sides)}
        for dtype in ["float32", "bfloat16"] if args.device.startswith("cuda") else ["float32"]:
            utility = BERTScore(model, layer=layer, device=args.device, dtype=dtype)
            ways[f"mbrace, {dtype}"] = lambda utility=utility: ours(utility, sides)
        for repeat in range(args.repeats + 1):  # the first one warms up
            for name, way in ways.items():
                seconds, tables[name] = way()
                print(repeat, name, {phase: round(value, 3) for phase, value in seconds.items()}, flush=True)
                if repeat:
                    rows.append({"name": name, **seconds})
    report(args, size, rows, tables)


def load_original(folder: Path) -> Any:
    """bert-score's module of functions, without what its package imports for plots and tables."""
    if folder.is_dir():
        sys.path.insert(0, str(folder))
    spec = importlib.util.find_spec("bert_score")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"bert_score: not found, nor in {folder}; see the top of this file")
    package = types.ModuleType("bert_score")
    package.__path__ = list(spec.submodule_search_locations)
    package.__dict__["__version__"] = "0.3.13"
    sys.modules["bert_score"] = package
    return importlib.import_module("bert_score.utils")


class Theirs:
    """All pairs as bert-score computes them, one sentence at a time, in batches of 64: its default."""

    def __init__(self, original: Any, model: Path, layer: int, device: str) -> None:
        self.original, self.device = original, device
        self.tokenizer = original.get_tokenizer(str(model), True)
        self.network = original.get_model(str(model), layer, False).to(device).eval()
        self.idf: dict[int, float] = defaultdict(lambda: 1.0)
        self.idf[self.tokenizer.sep_token_id] = self.idf[self.tokenizer.cls_token_id] = 0

    def score(self, sides: list[tuple[list[str], list[str]]]) -> tuple[dict[str, float], Any]:
        """Seconds of encoding, of matching, and of the matching function alone; F1 of all pairs."""
        encoding = self.in_function("get_bert_embedding", sides)
        products = self.in_function("greedy_cos_idf", sides)
        tables, began = [], clock(self.device)
        for hypotheses, references in sides:
            left = [h for h in hypotheses for _ in references]
            right = [r for _ in hypotheses for r in references]
            found = self.original.bert_cos_score_idf(
                self.network, right, left, self.tokenizer, self.idf, device=self.device
            )
            tables.append(found[:, 2].reshape(len(hypotheses), -1).numpy())
        total = clock(self.device) - began
        return {"encoding": encoding, "matching": total - encoding, "products": products}, tables

    def in_function(self, name: str, sides: list[tuple[list[str], list[str]]]) -> float:
        """Seconds inside one of its functions, in a separate run: reading the clock makes the rest wait for the GPU."""
        whole, seconds = getattr(self.original, name), 0.0

        def timed(*args: Any, **options: Any) -> Any:
            nonlocal seconds
            began = clock(self.device)
            found = whole(*args, **options)
            seconds += clock(self.device) - began
            return found

        setattr(self.original, name, timed)
        try:
            for hypotheses, references in sides:
                # Encoding is the same for few pairs as for all; the matching function's share is that of all pairs.
                every = name == "greedy_cos_idf"
                left = [h for h in hypotheses for _ in references] if every else hypotheses
                right = [r for _ in hypotheses for r in references] if every else references[: len(hypotheses)]
                self.original.bert_cos_score_idf(
                    self.network, right, left, self.tokenizer, self.idf, device=self.device
                )
        finally:
            setattr(self.original, name, whole)
        return seconds


def ours(utility: BERTScore, sides: list[tuple[list[str], list[str]]]) -> tuple[dict[str, float], Any]:
    """All pairs of all sentences in one window, as a race without pruning asks for them."""
    device = str(utility.encoder.device)
    began = clock(device)
    scorer = utility.start([Sentence(number, None, hypotheses) for number, (hypotheses, _) in enumerate(sides)])
    asks = [Ask(number, np.arange(len(h)), r) for number, (h, r) in enumerate(sides)]
    tables = scorer.score(asks)
    total = clock(device) - began
    return {"encoding": scorer.encode_seconds, "matching": total - scorer.encode_seconds}, tables


def clock(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def make_encoder(folder: Path, prepared: Path, shape: str) -> Path:
    """An encoder of a shape with MiniLM's tokenizer and random weights."""
    folder.mkdir()
    for name in TOKENIZER:
        shutil.copy(prepared / name, folder)
    units, heads, layers, _ = SHAPES[shape]
    config = transformers.AutoConfig.from_pretrained(prepared)
    config.update({"hidden_size": units, "num_attention_heads": heads, "num_hidden_layers": layers})
    config.update({"intermediate_size": 4 * units})
    torch.manual_seed(0)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def report(args: argparse.Namespace, size: int, rows: list[dict[str, Any]], tables: dict[str, Any]) -> None:
    """The best of the repeats, and how far apart the scores are."""
    machine = (
        torch.cuda.get_device_name() if args.device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"
    )
    best = {n: min((r for r in rows if r["name"] == n), key=lambda r: r["encoding"] + r["matching"]) for n in tables}
    base = best["bert-score"]
    lines = [
        "# BERTScore of all pairs: speed only",
        "",
        f"Written by `python bench/bertscore.py run --device {args.device} --shape {args.shape}`. {machine}; "
        f"bert-score 0.3.13, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"Python {platform.python_version()}.",
        "",
        f"{size} x {size} strings per sentence, {len(tables['bert-score'])} in all; shape of {args.shape} with random "
        f"weights; seconds, best of {args.repeats}.",
        "bert-score's matching is all that it does after encoding; its products are its matching function alone.",
        "",
        "| | encoding | matching | products | matching, times as fast | as its products alone | in all "
        "| largest difference of F1 |",
        "|---|---|---|---|---|---|---|---|",
        f"| bert-score, float32 | {base['encoding']:.3f} | {base['matching']:.3f} | {base['products']:.3f} | | | | |",
    ]
    for name, row in best.items():
        if name == "bert-score":
            continue
        apart = max(np.abs(a - b).max() for a, b in zip(tables[name], tables["bert-score"], strict=True))
        whole = (base["encoding"] + base["matching"]) / (row["encoding"] + row["matching"])
        lines.append(
            f"| {name} | {row['encoding']:.3f} | {row['matching']:.3f} | | {base['matching'] / row['matching']:.1f}x "
            f"| {base['products'] / row['matching']:.1f}x | {whole:.1f}x | {apart:.1e} |"
        )
    print("\n".join(lines))
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"bertscore-{args.device.partition(':')[0]}-{args.shape}"
    (args.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (args.out / f"{name}.json").write_text(json.dumps({"options": vars(args), "rows": rows}, default=str, indent=1))


if __name__ == "__main__":
    main()
