"""Encoding strings on a GPU: the network alone, and everything from strings to vectors, packed and padded.

    python bench/encoder.py [--minilm FOLDER] [--out bench/results]

Weights are random, which takes as long: XLM-R-large's shape with COMET-22's readout, MiniLM's with the mean of its last
layer, and COMET-22's head. Strings are the bundled demo's translations and joins of them. The best trial counts.
`--tiny` rehearses on a CPU. encoder.md and encoder.json go to bench/results (or `--out`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from random_comet import make_config, make_tokenizer

import mbrace
from mbrace.io.candidates import read_records
from mbrace.neural.encoder import Encoder, Readout
from mbrace.neural.head import Estimator, PairBlock

DEMO = Path(mbrace.__file__).parent / "data" / "demo.jsonl.xz"
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def strings(count: int) -> list[str]:
    """Distinct translations of the bundled demo, then joined ones."""
    records = list(read_records(str(DEMO)))
    base = list(dict.fromkeys(text for r in records for text in [*r.hypotheses, *(r.pseudo_references or [])]))  # type: ignore[misc]
    found = dict.fromkeys(base)
    for shift in range(1, 10):
        for first, second in zip(base, base[shift:], strict=False):
            if len(found) >= count:
                return list(found)[:count]
            found[f"{first} {second[: len(second) // 2]}"] = None
    return list(found)[:count]


def make_encoder(name: str, texts: Sequence[str], args: argparse.Namespace) -> Encoder:
    """A network of random weights of one of the two shapes."""
    torch.manual_seed(0)
    device = torch.device("cpu" if args.tiny else "cuda")
    dtype = torch.float32 if args.tiny else torch.bfloat16
    if name == "xlmr":
        tokenizer, config = make_tokenizer(texts), make_config(args.tiny)
        layers = config.num_hidden_layers + 1
        network: Any = transformers.XLMRobertaModel
        readout = Readout("avg", tuple([1 / layers] * layers))
    else:
        tokenizer = (
            transformers.AutoTokenizer.from_pretrained(str(args.minilm)) if args.minilm else make_tokenizer(texts)
        )
        config = transformers.BertConfig(
            vocab_size=30522, **(MINILM | {"num_hidden_layers": 1} if args.tiny else MINILM)
        )
        network, readout = transformers.BertModel, Readout("avg")
    with device:
        model = network(config, add_pooling_layer=False).to(dtype).eval()
    return Encoder(model, tokenizer, readout, max_length=256, device=device, dtype=dtype)


def seconds(work: Callable[[], Any], trials: int) -> float:
    """The best of some trials, after one to warm up."""
    times = []
    for _ in range(trials + 1):
        wait()
        started = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_encoder(encoder: Encoder, texts: Sequence[str], trials: int) -> dict[str, float]:
    """Seconds of the network over all strings in one stream, of a few strings, and from strings to vectors."""
    tokens = encoder.tokenize(texts)
    few = [*texts[:: max(1, len(texts) // 256)]]

    def network() -> None:
        rows = list(tokens)

        def ready(some: np.ndarray[Any, Any]) -> Any:
            return type(tokens).of([rows[index] for index in some])

        list(encoder.stream.run(tokens.lengths, ready, encoder._forward))

    found = {"tokens": float(tokens.lengths.sum()), "network": seconds(network, trials)}
    found["everything"] = seconds(lambda: encoder.embed(texts), trials)
    return found | {"256 strings": seconds(lambda: encoder.embed(few), 5 * trials)}


def measure_head(trials: int, tiny: bool) -> dict[str, float]:
    """Seconds of COMET-22's head over all pairs of 20 sentences of 256 x 256 strings, float32."""
    units, size, device = (32, 16, "cpu") if tiny else (1024, 256, "cuda")
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    widths = [6 * units, 3 * units, units, 1]
    layers = [(normal(b, a) / a**0.5, normal(b)) for a, b in itertools.pairwise(widths)]
    head = Estimator(layers, units, torch.nn.Tanh())
    blocks = [PairBlock(normal(size, units), normal(size, units), normal(1, units)) for _ in range(20)]
    with torch.inference_mode():
        found = {"pairs": 20.0 * size * size, "seconds": seconds(lambda: head.score(blocks), trials)}
        head._kernels = None
        return found | {"by torch's operations": seconds(lambda: head.score(blocks), trials)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, help="a folder with MiniLM's tokenizer")
    parser.add_argument("--strings", type=int, default=47000)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    if args.tiny:
        args.strings, args.trials = 60, 1
    texts, found = strings(args.strings), {"head": measure_head(args.trials, args.tiny)}
    for name in ("xlmr", "minilm"):
        encoder = make_encoder(name, texts, args)
        found[name] = measure_encoder(encoder, texts, args.trials)
        vectors = encoder.embed(texts[:500])
        encoder._packed, encoder.stream.packed = None, False
        error = float((encoder.embed(texts[:500]) - vectors).norm() / vectors.norm())
        found[f"{name}, padded"] = measure_encoder(encoder, texts, args.trials) | {"relative difference": error}
        print(json.dumps(found), file=sys.stderr, flush=True)
    about = {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU rehearsal",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "encoder.json").write_text(json.dumps(about | found, indent=1) + "\n", encoding="utf-8")
    (args.out / "encoder.md").write_text(page(about, found), encoding="utf-8")
    print(page(about, found))


def page(about: dict[str, Any], found: dict[str, dict[str, float]]) -> str:
    """The table."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = ["# Encoding strings", "", f"{about['machine']}; {versions}; written by `python bench/encoder.py`.", ""]
    lines += ["| | network, s | strings to vectors, s | 256 strings, ms | |", "|---|---|---|---|---|"]
    for name, row in found.items():
        if name == "head":
            continue
        note = f"{row['tokens']:,.0f} tokens"
        if "relative difference" in row:
            note += f"; vectors differ by {row['relative difference']:.1e}"
        numbers = f"{row['network']:.3f} | {row['everything']:.3f} | {1000 * row['256 strings']:.1f}"
        lines.append(f"| {name} | {numbers} | {note} |")
    kernels, plain = (found["head"]["pairs"] / found["head"][key] / 1e6 for key in ("seconds", "by torch's operations"))
    lines += ["", f"COMET-22's head, float32, million pairs/s: {kernels:.2f}; by torch's operations {plain:.2f}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
