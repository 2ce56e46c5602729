"""Scores of beam 5 and sampling speed of a trained model; `--bundle` also writes and scores its int8 form.

python experiments/evaluate.py MODEL --test FILE.tsv.gz --valid FILE.tsv.gz -o SCORES.json [--bundle FOLDER]
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics import BLEU, CHRF
from safetensors.numpy import save_file

from mbrace.io.atomic import give_usual_mode
from mbrace.jobs.translate import read_sources
from mbrace.models.marian_network import load_bundled, read_network
from mbrace.models.seq2seq import Seq2Seq


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, metavar="FOLDER")
    parser.add_argument("--small", action="store_true", help="a rehearsal: a few sentences")
    args = parser.parse_args()
    model = Seq2Seq(args.model)
    report: dict[str, Any] = {"model": Path(args.model).name}
    for part in ("test", "valid"):
        report[f"{part} beam 5"] = scores(model, getattr(args, part), args.small)
    report["speed"] = speed(model, args.model, args.test, args.small)
    if args.bundle:
        report["bundle"] = {"MiB": round(quantise(args.model, args.bundle) / 2**20, 2)}
        shutil.copyfile(Path(args.model) / "training.json", args.bundle / "training.json")
        weights, vocabulary = load_bundled(args.bundle)
        report["int8 beam 5"] = scores(Seq2Seq.of(weights.to(model.device), vocabulary), args.test, args.small)
    if torch.cuda.is_available():
        report["memory GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    args.out.write_text(json.dumps(report, indent=1) + "\n")


def quantise(folder: str | Path, out: str | Path) -> int:
    """Write a trained Marian folder as int8 matrices and float16 vectors; returns the bytes on disk.

    Each row of a matrix is stored as round(w / scale) with scale = max |w| / 127. Position embeddings are not stored,
    since they can be computed; the three token embeddings are one matrix, stored once.
    """
    model = read_network(Path(folder))
    tensors: dict[str, Any] = {}
    for name, tensor in model.stored().items():
        if name == "final_logits_bias":  # zeros
            continue
        weights = tensor.numpy()
        if weights.ndim == 2:
            scale = np.maximum(np.abs(weights).max(axis=1, keepdims=True), 1e-12).astype(np.float32) / 127
            tensors[name] = np.round(weights / scale).astype(np.int8)
            tensors[name + ".scale"] = scale[:, 0].astype(np.float32)
        else:
            tensors[name] = weights.astype(np.float16)
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "weights.safetensors")
    give_usual_mode(target / "weights.safetensors")
    (target / "config.json").write_text(json.dumps(vars(model.config), indent=1), encoding="utf-8")
    shutil.copyfile(Path(folder) / "source.spm", target / "joint.spm")
    return sum(path.stat().st_size for path in target.iterdir())


def scores(model: Seq2Seq, path: Path, small: bool) -> dict[str, Any]:
    """BLEU and chrF++ of beam 5 over the whole set."""
    rows = list(read_sources(str(path)))[: 8 if small else None]
    texts = [beams.texts[0] if beams.texts else "" for beams in model.beam([source for source, _ in rows], k=5)]
    references = [[reference or "" for _, reference in rows]]
    bleu, chrf = BLEU(), CHRF(word_order=2)
    return {
        "sentences": len(rows),
        "BLEU": round(bleu.corpus_score(texts, references).score, 2),
        "chrF++": round(chrf.corpus_score(texts, references).score, 2),
        "signatures": [str(bleu.get_signature()), str(chrf.get_signature())],
        "first": texts[:3],
    }


def speed(model: Seq2Seq, folder: str, path: Path, small: bool) -> dict[str, Any]:
    """Samples per second of `sample` and of transformers' generate, same model and precision, after a warm-up."""
    from transformers import AutoModelForSeq2SeqLM

    n, count = (4, 8) if small else (256, 32)
    sources = [source for source, _ in list(read_sources(str(path)))[:count]]
    peer = AutoModelForSeq2SeqLM.from_pretrained(folder).to(model.device, model.dtype).eval()
    rows = model.codec.encode(sources)

    def theirs(some: list[list[int]]) -> None:
        for row in some:  # 256 samples of one source already make a batch as wide as ours
            ids = torch.tensor([row], device=model.device)
            peer.generate(
                ids, do_sample=True, epsilon_cutoff=0.02, num_return_sequences=n, top_k=0, max_length=2 * len(row) + 32
            )

    def theirs_batched(some: list[list[int]]) -> None:
        width = max(map(len, some))
        ids = torch.full((len(some), width), peer.config.pad_token_id)
        for index, row in enumerate(some):
            ids[index, : len(row)] = torch.tensor(row)
        ids = ids.to(model.device)
        mask = (ids != peer.config.pad_token_id).long()
        peer.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            epsilon_cutoff=0.02,
            num_return_sequences=n,
            top_k=0,
            max_length=2 * width + 32,
        )

    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "dtype": str(model.dtype),
    }
    for name, method in {
        "mbrace": lambda part: model.sample(sources[:part], n),
        "transformers, one source per call": lambda part: theirs(rows[: min(part, 8)]),
        "transformers, 32 sources per call": lambda part: theirs_batched(rows[:part]),
    }.items():
        method(2)
        sync()
        started = time.monotonic()
        method(count)
        sync()
        made = n * (min(count, 8) if "one" in name else count)
        result[name] = round(made / (time.monotonic() - started), 1)
    return result


def sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
