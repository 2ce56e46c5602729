"""Speed of live models: sampling and beam search against `generate` of transformers.

    python bench/models.py [--model bundled | FOLDER] [--device cuda] [--trials 3]

Both have the same weights, precision, limits and tokenizer. models.md and models.json go to bench/results (or `--out`).
`--tiny` rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import mbrace
from mbrace.io.candidates import read_records

CANDIDATES = Path(__file__).parent.parent / "experiments" / "candidates" / "de-en.test.jsonl.xz"


class Peer:
    """The weights of one of our models in transformers."""

    def __init__(self, name: str, ours: mbrace.Seq2Seq) -> None:
        self.ours = ours
        self.model = peer_model(name).to(ours.device, ours.dtype).eval()

    def generate(self, sources: Sequence[str], **options: Any) -> list[str]:
        """The texts of one call."""
        rows = self.ours.codec.encode(sources)
        width = max(map(len, rows))
        pad = int(self.model.config.pad_token_id)
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self.ours.device)
        with torch.inference_mode():
            mask = (ids != pad).long()
            out = self.model.generate(ids, attention_mask=mask, max_length=2 * width + 32, **options)
        return self.ours.codec.decode(out.tolist())

    def sample(self, sources: Sequence[str], n: int, together: int) -> None:
        for first in range(0, len(sources), together):
            part = sources[first : first + together]
            self.generate(part, do_sample=True, epsilon_cutoff=0.02, top_k=0, num_beams=1, num_return_sequences=n)

    def beam(self, sources: Sequence[str], k: int, together: int) -> None:
        for first in range(0, len(sources), together):
            part = sources[first : first + together]
            self.generate(part, do_sample=False, num_beams=k, num_return_sequences=k, length_penalty=1.0)


def peer_model(name: str) -> Any:
    if name != "bundled":
        return transformers.AutoModelForSeq2SeqLM.from_pretrained(name)
    from mbrace.models.marian_network import load_bundled

    network, _ = load_bundled()
    model = transformers.MarianMTModel(transformers.MarianConfig(**vars(network.config)))
    model.load_state_dict(network.state_dict(), strict=False)
    model.tie_weights()
    model.generation_config.bad_words_ids = network.generation_config.bad_words_ids
    return model


def rate(work: Callable[[Sequence[str]], Any], sources: Sequence[str], trials: int) -> float:
    """Sources per second, the best of the trials after a warm-up."""
    work(sources[:2])
    best = 0.0
    for _ in range(trials):
        synchronize()
        started = time.perf_counter()
        work(sources)
        synchronize()
        best = max(best, len(sources) / (time.perf_counter() - started))
    return best


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    count, widths = (16, (4,)) if args.tiny else (256, (10, 256))
    if args.tiny:
        args.sentences, args.trials = 4, 1
    transformers.utils.logging.set_verbosity_error()
    ours = mbrace.Seq2Seq(args.model, device=args.device)
    peer = Peer(args.model, ours)
    records = list(read_records(str(CANDIDATES)))
    sources = [record.source or "" for record in random.Random(0).sample(records, args.sentences)]
    works: dict[str, dict[str, Callable[[Sequence[str]], Any]]] = {
        f"{count} samples": {
            "mbrace": lambda texts: ours.sample(texts, count),
            **{
                f"generate, {n} sources per call": lambda texts, n=n: peer.sample(texts, count, n)  # type: ignore[misc]
                for n in (1, 8, 32)
            },
        }
    }
    for k in widths:
        works[f"beam {k}"] = {
            "mbrace": lambda texts, k=k: ours.beam(texts, k=k),  # type: ignore[misc]
            **{
                f"generate, {n} sources per call": lambda texts, k=k, n=n: peer.beam(texts, k, n)  # type: ignore[misc]
                for n in (1, 8)
            },
        }
    found: dict[str, dict[str, float]] = {}
    for task, ways in works.items():
        for name, work in ways.items():
            found.setdefault(task, {})[name] = rate(work, sources, args.trials)
            print(f"{task}, {name}: {found[task][name]:.2f} sources per second", flush=True)
    machine = torch.cuda.get_device_name() if ours.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    lines = [
        "# Speed of live models",
        "",
        f"{machine}, {str(ours.dtype).removeprefix('torch.')}, Python {platform.python_version()}, torch "
        f"{torch.__version__.split('+')[0]}, transformers {transformers.__version__}; {len(sources)} sentences of "
        f"newstest2018 de-en, model `{args.model}`; best of {args.trials}; written by `python bench/models.py`.",
        "",
        "| | | sources per second | mbrace is |",
        "|---|---|---:|---:|",
    ]
    for task, rates in found.items():
        for name, each in rates.items():
            faster = "" if name == "mbrace" else f"{rates['mbrace'] / each:.1f}x faster"
            lines.append(f"| {task} | {name} | {each:.2f} | {faster} |")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "models.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (args.out / "models.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
