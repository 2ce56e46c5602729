"""BERTScore of all pairs of a sentence: mbrace's matching against bert-score's own, at equal scores.

python -m pip install --no-deps bert-score==0.3.13
python bench/bertscore.py --device cuda --shape roberta-large --out bench/results

Shapes other than minilm have random weights: speed only. Texts are beam hypotheses and samples of newstest2018.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import texts
import torch
import transformers
from bert_score import utils as original

from mbrace import BERTScore, Sentence
from mbrace.utilities.neural import pretrained
from mbrace.utility import Ask

SHAPES = {  # units, heads, layers, and the layer read
    "minilm": (384, 12, 6, 5),
    "roberta-base": (768, 12, 12, 10),
    "roberta-large": (1024, 16, 24, 17),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--size", type=int, default=256, help="hypotheses and pseudo-references per sentence")
    parser.add_argument("--sentences", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    records = texts.newstest_records(args.sentences * 4)[::4]  # of different sentences
    sides = [(r["hypotheses"][: args.size], r["pseudo_references"][: args.size]) for r in records]
    with tempfile.TemporaryDirectory() as folder:
        model = make_encoder(Path(folder, "encoder"), args.shape)
        layer = SHAPES[args.shape][3]
        rows, tables = [], {}
        precisions = ["float32", "bfloat16"] if args.device == "cuda" else ["float32"]
        ways: dict[str, Callable[[], Any]] = {"bert-score": lambda: theirs(model, layer, sides, args.device)}
        for dtype in precisions:
            utility = BERTScore(model, layer=layer, device=args.device, dtype=dtype)
            ways[f"mbrace, {dtype}"] = lambda utility=utility: ours(utility, sides)
        for repeat in range(args.repeats + 1):  # the first one warms up
            for name, way in ways.items():
                encoding, matching, tables[name] = way()
                print(repeat, name, round(encoding, 3), round(matching, 3), flush=True)
                if repeat:
                    rows.append({"name": name, "encoding": encoding, "matching": matching})
    report(args, rows, tables)


def theirs(model: Path, layer: int, sides: list[tuple[list[str], list[str]]], device: str) -> tuple[float, float, Any]:
    """All pairs as bert-score computes them, one sentence at a time, in batches of 64: its default."""
    tokenizer = original.get_tokenizer(str(model), True)
    network = original.get_model(str(model), layer, False).to(device)
    idf: dict[int, float] = defaultdict(lambda: 1.0)
    idf[tokenizer.sep_token_id] = idf[tokenizer.cls_token_id] = 0
    encoding, whole = 0.0, original.get_bert_embedding

    def timed(*args: Any, **options: Any) -> Any:
        nonlocal encoding
        began = clock(device)
        found = whole(*args, **options)
        encoding += clock(device) - began
        return found

    original.get_bert_embedding = timed
    tables, began = [], clock(device)
    for hypotheses, references in sides:
        left = [h for h in hypotheses for _ in references]
        right = [r for _ in hypotheses for r in references]
        found = original.bert_cos_score_idf(network, right, left, tokenizer, idf, device=device)
        tables.append(found[:, 2].reshape(len(hypotheses), -1).numpy())
    total = clock(device) - began
    original.get_bert_embedding = whole
    return encoding, total - encoding, tables


def ours(utility: BERTScore, sides: list[tuple[list[str], list[str]]]) -> tuple[float, float, Any]:
    """All pairs of all sentences in one window, as a race without pruning asks for them."""
    device = str(utility.encoder.device)
    began = clock(device)
    scorer = utility.start([Sentence(number, None, hypotheses) for number, (hypotheses, _) in enumerate(sides)])
    asks = [Ask(number, np.arange(len(h)), r) for number, (h, r) in enumerate(sides)]
    tables = scorer.score(asks)
    total = clock(device) - began
    return scorer.encode_seconds, total - scorer.encode_seconds, tables


def clock(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def make_encoder(folder: Path, shape: str) -> Path:
    """An encoder of a shape with MiniLM's tokenizer; MiniLM has its own weights."""
    packaged = pretrained.find(pretrained.MINILM)
    folder.mkdir()
    for file in packaged.iterdir():
        if file.is_file() and (
            shape == "minilm" or file.name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
        ):
            shutil.copy(file, folder)
    if shape != "minilm":
        units, heads, layers, _ = SHAPES[shape]
        config = transformers.AutoConfig.from_pretrained(packaged)
        config.update({"hidden_size": units, "num_attention_heads": heads, "num_hidden_layers": layers})
        config.update({"intermediate_size": 4 * units})
        torch.manual_seed(0)
        transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def report(args: argparse.Namespace, rows: list[dict[str, Any]], tables: dict[str, Any]) -> None:
    """The best of the repeats, and how far scores are apart."""
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    best = {n: min((r for r in rows if r["name"] == n), key=lambda r: r["matching"]) for n in tables}
    base = best["bert-score"]
    lines = [
        f"BERTScore, {args.sentences} sentences of {args.size} x {args.size}, shape of {args.shape}, {machine}; "
        f"bert-score {importlib.metadata.version('bert-score')}, torch {torch.__version__}, "
        f"Python {platform.python_version()}. Seconds, best of repeats.",
        "",
        "| | encoding | matching | matching, times as fast | in all, times as fast | largest difference of F1 |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in best.items():
        apart = max(np.abs(a - b).max() for a, b in zip(tables[name], tables["bert-score"], strict=True))
        whole = (base["encoding"] + base["matching"]) / (row["encoding"] + row["matching"])
        lines.append(
            f"| {name} | {row['encoding']:.3f} | {row['matching']:.3f} | {base['matching'] / row['matching']:.1f} | "
            f"{whole:.1f} | {apart:.1e} |"
        )
    print("\n".join(lines))
    if args.out:
        name = f"bertscore-{args.device}-{args.shape}"
        (args.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (args.out / f"{name}.json").write_text(json.dumps({"options": vars(args), "rows": rows}, default=str, indent=1))


if __name__ == "__main__":
    main()
