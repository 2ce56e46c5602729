"""Encoding strings on a GPU: the network alone, and everything from strings to vectors, here and in another checkout.

    python bench/encoder.py [--baseline OTHER/src] [--minilm FOLDER] [--rounds 3] [--out bench/results]

Weights are random, which takes as long: XLM-R-large's shape with COMET-22's readout, MiniLM's with the mean of its last
layer, and COMET-22's head. Strings are the bundled demo's translations and joins of them. Each checkout is measured by
a process of its own, in turns; the best of its rounds counts. Tokenising is measured with no word known beforehand.
`--tiny` rehearses on a CPU. encoder.md and encoder.json go to bench/results (or `--out`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
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
from mbrace.neural.encoder import Encoder
from mbrace.neural.head import Estimator
from mbrace.neural.tokens import TokenBatch

try:
    from mbrace.neural.encoder import Readout
    from mbrace.neural.head import PairBlock
except ImportError:  # a baseline from before 33b3c27
    from mbrace.neural.pairs import PairBlock
    from mbrace.neural.readout import Readout

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
        config = transformers.BertConfig(vocab_size=30522, **MINILM)
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
    there = TokenBatch.copy(tokens, tokens.longest_first(), encoder.device, pad=encoder._pad)
    few = [*texts[:: max(1, len(texts) // 256)]]

    def network() -> None:
        with torch.inference_mode():
            torch.cat([encoder._vectors(batch) for batch in encoder._batches(there)])

    def everything() -> None:
        if encoder._words is not None:
            encoder._words.forget()
        encoder.embed(texts)

    found = {"tokens": float(tokens.lengths.sum()), "network": seconds(network, trials)}
    found |= {"everything": seconds(everything, trials), "256 strings": seconds(lambda: encoder.embed(few), 5 * trials)}
    return found


def measure_head(trials: int, tiny: bool) -> dict[str, float]:
    """Seconds of COMET-22's head over all pairs of 20 sentences of 256 x 256 strings, float32."""
    units, size, device = (32, 16, "cpu") if tiny else (1024, 256, "cuda")
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    widths = [6 * units, 3 * units, units, 1]
    head = Estimator(
        [(normal(b, a) / a**0.5, normal(b)) for a, b in itertools.pairwise(widths)], units, torch.nn.Tanh()
    )
    blocks = []
    for _ in range(20):
        h, r, s = normal(size, units), normal(size, units), normal(1, units)
        sides: Any = (h, head.prepare(h, s), r)
        if "names" in PairBlock.__dataclass_fields__:  # a baseline from before 33b3c27
            sides += ((np.arange(size), np.arange(size) + size),)
        blocks.append(PairBlock(*sides))
    with torch.inference_mode():
        found = {"pairs": 20.0 * size * size, "seconds": seconds(lambda: head.score(blocks), trials)}
        if hasattr(head, "pairs"):
            head._kernels = None
            found["by torch's operations"] = seconds(lambda: head.score(blocks), trials)
        return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Everything with the mbrace that this process imports."""
    texts, found = strings(args.strings), {"head": measure_head(args.trials, args.tiny)}
    for name in ("xlmr", "minilm"):
        encoder = make_encoder(name, texts, args)
        found[name] = measure_encoder(encoder, texts, args.trials)
        network = getattr(encoder, "_packed", None)
        if network is None:
            continue
        vectors = encoder.embed(texts[:500])
        encoder.__dict__["_packed"] = None
        error = float((encoder.embed(texts[:500]) - vectors).norm() / vectors.norm())
        found[f"{name}, padded"] = measure_encoder(encoder, texts, args.trials) | {"relative difference": error}
        encoder.__dict__["_packed"] = network
        network.compile()
        started = time.perf_counter()
        error = float((encoder.embed(texts[:500]) - vectors).norm() / vectors.norm())
        wait()
        compiling = time.perf_counter() - started
        found[f"{name}, compiled"] = measure_encoder(encoder, texts, args.trials)
        found[f"{name}, compiled"] |= {"relative difference": error, "compiling": compiling}
        print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def best(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The best of each number of several rounds."""
    return {kind: {key: min(each[kind][key] for each in rounds) for key in rounds[0][kind]} for kind in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, help="the src folder of another checkout, kernel built")
    parser.add_argument("--minilm", type=Path, help="a folder with MiniLM's tokenizer")
    parser.add_argument("--strings", type=int, default=47000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tiny:
        args.strings, args.trials, args.rounds = 200, 1, 1
    if args.measure:
        print(json.dumps(measure(args)))
        return
    sources = {"before": args.baseline, "now": Path(mbrace.__file__).parents[1]}
    rounds: dict[str, list[dict[str, Any]]] = {}
    for _, (name, source) in itertools.product(range(args.rounds), sources.items()):
        if source is not None:
            command = [sys.executable, __file__, *sys.argv[1:], "--measure"]
            environment = {**os.environ, "PYTHONPATH": f"{source}:{os.environ.get('PYTHONPATH', '')}"}
            output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            rounds.setdefault(name, []).append(json.loads(output.splitlines()[-1]))
    found: dict[str, Any] = {name: best(each) for name, each in rounds.items()}
    found["machine"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU rehearsal"
    found["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "encoder.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (args.out / "encoder.md").write_text(page(found), encoding="utf-8")
    print(page(found))


def page(found: dict[str, Any]) -> str:
    """The table."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = ["# Encoding strings", "", f"{found['machine']}; {versions}; written by `python bench/encoder.py`.", ""]
    lines += [
        "| | network, s | strings to vectors, s | 256 strings, ms | compiling, s | |",
        "|---|---|---|---|---|---|",
    ]
    for when, kind in itertools.product(("before", "now"), ("xlmr", "minilm")):
        for name in (kind, f"{kind}, padded", f"{kind}, compiled"):
            row = found.get(when, {}).get(name)
            if row:
                compiling = f"{row['compiling']:.1f}" if "compiling" in row else ""
                note = f"{row['tokens']:,.0f} tokens"
                if "relative difference" in row:
                    note += f"; vectors differ by {row['relative difference']:.1e}"
                numbers = f"{row['network']:.3f} | {row['everything']:.3f} | {1000 * row['256 strings']:.1f}"
                lines.append(f"| {when}: {name} | {numbers} | {compiling} | {note} |")
    for when in ("before", "now"):
        head = found.get(when, {}).get("head")
        own = "by torch's operations"
        if head:
            lines += [
                "",
                f"COMET-22's head, float32, {when}, million pairs/s: {head['pairs'] / head['seconds'] / 1e6:.2f}"
                + (f"; by torch's operations {head['pairs'] / head[own] / 1e6:.2f}" if own in head else ""),
            ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
