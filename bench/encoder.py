"""The host out of the way: embedding, sampling and beam search, the former way against the present one, in one process.

    python bench/encoder.py [--encoder FOLDER] [--strings 38000] [--sources 80] [--draws 256] [--device cuda]

encoder.md and encoder.json go to bench/results (or `--out`). `--encoder` is a folder with MiniLM's config.json and
tokenizer.json; without weights in it they are random, which takes as long. Without it, the package of `mbrace[minilm]`.
The present way is measured with no word known beforehand.
On a CPU it also compares the bundled demo's answers in bfloat16 with those in float32. `--tiny` rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers

import mbrace
from mbrace.io.candidates import read_records
from mbrace.models import beam_search, choice, marian, past, recorded
from mbrace.neural import norm, pretrained
from mbrace.neural.device import bfloat16_speedup, choose_device, choose_dtype, without_cudnn_attention
from mbrace.neural.encoder import Encoder
from mbrace.neural.learned import Learned
from mbrace.neural.readout import Readout
from mbrace.neural.tokens import TokenBatch, whole_texts
from mbrace.result import Phases

DATA = Path(mbrace.__file__).parent / "data"
NUMBERS = ("padded tokens per token", "batches")  # parts that are no seconds


def load_encoder(folder: Path, device: torch.device) -> Encoder:
    """MiniLM, with its own weights or random ones."""
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    if (folder / "model.safetensors").is_file():
        model = transformers.AutoModel.from_pretrained(str(folder), add_pooling_layer=False)
    else:
        config = transformers.AutoConfig.from_pretrained(str(folder))
        model = transformers.AutoModel.from_config(config, add_pooling_layer=False)
    dtype = choose_dtype(None, device)
    return Encoder(model, tokenizer, Readout("avg"), max_length=256, device=device, dtype=dtype)


def former_embed(encoder: Encoder, texts: Sequence[str]) -> torch.Tensor:
    """Lists of ids per string, padded and copied batch by batch, as it was."""
    from concurrent.futures import ThreadPoolExecutor

    def tokenize(chunk: list[int]) -> list[list[int]]:
        encoder._tokenizer.no_padding()
        encoder._tokenizer.enable_truncation(encoder._max_length)
        encodings = encoder._tokenizer.encode_batch([texts[index] for index in chunk])
        _ = sum(1 for encoding in encodings if encoding.overflowing)
        return [encoding.ids for encoding in encodings]

    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    chunks = [order[begin : begin + 8192] for begin in range(0, len(order), 8192)]
    parts, done = [], []
    with torch.inference_mode(), ThreadPoolExecutor(1) as ahead:
        for chunk, tokens in zip(chunks, ahead.map(tokenize, chunks), strict=True):
            for batch in former_batches(encoder, [len(ids) for ids in tokens]):
                parts.append(former_forward(encoder, [tokens[index] for index in batch]))
                done += [chunk[index] for index in batch]
        vectors = torch.cat(parts)
    rows = torch.empty(len(texts), dtype=torch.long)
    rows[done] = torch.arange(len(texts))
    return vectors[rows.to(encoder.device)]


def former_batches(encoder: Encoder, lengths: Sequence[int]) -> Iterator[list[int]]:
    half_full = 0 if encoder.device.type == "cpu" else encoder.batch_tokens // 2
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch:
            longest, tokens = lengths[batch[0]], lengths[batch[0]] * len(batch)
            changes = lengths[index] != lengths[batch[-1]]
            if tokens + longest > encoder.batch_tokens or (changes and tokens >= half_full):
                yield batch
                batch = []
        batch.append(index)
    if batch:
        yield batch


def former_forward(encoder: Encoder, rows: list[list[int]]) -> torch.Tensor:
    count, longest, pad, device = len(rows), max(map(len, rows)), encoder._pad, encoder.device
    if device.type == "cpu":
        fewest = 8 * torch.get_num_threads()
        rows = rows * -(-fewest // (count * longest)) if count * longest < fewest else rows
    even = all(len(row) == longest for row in rows)
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    if device.type == "cuda":
        ids, lengths = ids.pin_memory(), lengths.pin_memory()
    ids, lengths = ids.to(device, non_blocking=True), lengths.to(device, non_blocking=True)
    attention = None if even else torch.arange(longest, device=device)[None] < lengths[:, None]
    with without_cudnn_attention():
        out = encoder._model(input_ids=ids, attention_mask=attention, return_dict=True)
    kept = None if even and not any(pad in row for row in rows) else ids != pad
    return encoder.readout({-1: out.last_hidden_state}, kept, lengths)[:count]


def former_texts(self: Any, ids: torch.Tensor) -> list[str]:
    rows = ids.cpu().numpy()
    keys = [row.tobytes() for row in rows]
    row_of = {key: row for row, key in enumerate(keys)}
    decoded = self.codec.decode([rows[row].tolist() for row in row_of.values()])
    distinct = dict(zip(row_of, decoded, strict=True))
    return [distinct[key] for key in keys]


def former_best(
    logits: torch.Tensor, bias: Any, scores: torch.Tensor, count: int, row: torch.Tensor, used: None
) -> tuple[torch.Tensor, torch.Tensor]:
    totals = (choice.logprobs(logits, bias)[row] + scores[:, :, None]).flatten(1)
    found = totals.topk(min(count, totals.shape[1]), dim=1)
    return found.values, found.indices


@contextmanager
def former_decoding(model: Any) -> Iterator[None]:
    """Plain torch for every step, none recorded, 8192 rows at a time, and ids decoded with their filling."""
    (rows, wider), model.rows, model.wider = (model.rows, model.wider), min(model.rows, 8192), (0, 0)
    no_kernels = mock.Mock(return_value=None)
    with (
        mock.patch.object(choice, "kernels_for", no_kernels),
        mock.patch.object(past, "kernels_for", no_kernels),
        mock.patch.object(marian, "kernels_for", no_kernels),
        mock.patch.object(norm, "kernel_for", no_kernels),
        mock.patch.object(recorded, "usable", mock.Mock(return_value=False)),
        mock.patch.object(beam_search, "best_totals", former_best),
        mock.patch.object(type(model), "texts", former_texts),
    ):
        yield
    model.rows, model.wider = rows, wider


def seconds(work: Callable[[], Any], device: torch.device, trials: int) -> tuple[float, Any]:
    """The best of some trials, after one that is not counted."""
    result = work()
    times = []
    for _ in range(trials):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times), result


def present_embed(encoder: Encoder, texts: Sequence[str]) -> torch.Tensor:
    """As it is, no word known beforehand."""
    if encoder._words is not None:
        encoder._words.forget()
    return encoder.embed(texts)


def breakdown(encoder: Encoder, texts: Sequence[str], device: torch.device, trials: int) -> dict[str, float]:
    """Seconds of the parts of embedding, each alone."""

    def forget() -> None:
        if encoder._words is not None:
            encoder._words.forget()

    def cold() -> Any:
        forget()
        return encoder.tokenize(texts)

    tokens = encoder.tokenize(texts)

    def copy() -> Any:
        return TokenBatch.copy(tokens, tokens.longest_first(), device, pad=encoder._pad)

    strings_there = copy()

    def network() -> Any:
        with torch.inference_mode():
            return torch.cat([encoder._vectors(batch) for batch in encoder._batches(strings_there)])

    works = {
        "tokenising whole texts, as before": lambda: whole_texts(encoder._tokenizer, texts, encoder._max_length),
        "tokenising by words, none known": cold,
        "tokenising by words, all known": lambda: encoder.tokenize(texts),
        "order, ids and one copy to the device": copy,
        "the network, all strings in one stream": network,
        "everything, all words known": lambda: encoder.embed(texts),
    }
    found = {name: seconds(work, device, trials)[0] for name, work in works.items()}
    parts = list(encoder._batches(strings_there))
    batches = [batch.count if encoder._fuses else len(batch) * batch.longest for batch in parts]
    found["padded tokens per token"] = sum(batches) / float(tokens.lengths.sum())
    found["batches"] = len(batches)
    return found


def strings(count: int) -> list[str]:
    """Distinct translations of the bundled demo, then joined ones."""
    records = list(read_records(str(DATA / "demo.jsonl.xz")))
    found = dict.fromkeys(text for r in records for text in [*r.hypotheses, *(r.pseudo_references or [])])  # type: ignore[misc]
    base = list(found)
    for shift in range(1, 10):
        for first, second in zip(base, base[shift:], strict=False):
            if len(found) >= count:
                return list(found)[:count]
            found[f"{first} {second[: len(second) // 2]}"] = None
    return list(found)[:count]


def compare(name: str, former: Callable[[], Any], present: Callable[[], Any], args: Any, device: torch.device) -> Any:
    before, old = seconds(former, device, args.trials)
    after, new = seconds(present, device, args.trials)
    row = {"what": name, "former": before, "present": after, "times faster": before / after}
    print(json.dumps(row), flush=True)
    return row, old, new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--strings", type=int, default=38000)
    parser.add_argument("--sources", type=int, default=80)
    parser.add_argument("--draws", type=int, default=256)
    parser.add_argument("--demo", type=int, default=12, help="sentences of the demo, on a CPU")
    parser.add_argument("--bfloat16", action="store_true", help="only compare precisions on the CPU")
    parser.add_argument("--device")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    if args.tiny:
        args.strings, args.sources, args.draws, args.trials, args.demo = 200, 3, 8, 1, 2
    if args.bfloat16:
        measured = bfloat16(args)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "bfloat16.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        print("\n".join(bfloat16_lines(measured)))
        return
    device = choose_device(args.device)
    encoder = load_encoder(args.encoder or pretrained.find(pretrained.MINILM), device)
    texts = strings(args.strings)
    rows = []
    row, old, new = compare(
        f"embedding {len(texts):,} strings with MiniLM",
        lambda: former_embed(encoder, texts), lambda: present_embed(encoder, texts), args, device,
    )  # fmt: skip
    row["largest difference"] = float((old - new).abs().max())
    row["bits equal"] = torch.equal(old, new)
    rows.append(row)
    parts = breakdown(encoder, texts, device, args.trials)
    print(json.dumps(parts), flush=True)
    found: dict[str, Any] = {"rows": rows, "parts": parts, "kernels": False, "rows at a time": 0}
    found["machine"] = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    found["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    write(args.out, found)
    model = mbrace.Seq2Seq("bundled", device=args.device)
    sources = [record.source or "" for record in read_records(str(DATA / "demo.jsonl.xz"))]
    sources = [f"{text} {sources[i % 7] if i >= len(sources) else ''}".strip() for i, text in enumerate(sources * 4)]
    sources = sources[: args.sources]
    works: dict[str, Callable[[], list[Any]]] = {
        f"sampling {args.draws} for {len(sources)} sources": lambda: model.sample(sources, args.draws),
        f"arithmetic sampling {args.draws}": lambda: model.sample(sources, args.draws, sampling="arithmetic"),
        f"beam search of width {args.draws}": lambda: model.beam(sources, args.draws),
    }
    for name, work in works.items():

        def former(work: Callable[[], list[Any]] = work) -> list[Any]:
            with former_decoding(model):
                return work()

        row, old, new = compare(name, former, work, args, device)
        pairs = [(a, b) for x, y in zip(old, new, strict=True) for a, b in zip(x.texts, y.texts, strict=False)]
        row["equal texts"] = sum(a == b for a, b in pairs) / len(pairs)
        rows.append(row)
        write(args.out, found)
    found["kernels"] = choice.kernels_for(model.decoder.device) is not None  # type: ignore[attr-defined]
    found["rows at a time"] = max(model.rows, model.wider[0])
    if device.type == "cpu" and args.demo:
        found["bfloat16"] = bfloat16(args)
    write(args.out, found)
    print(page(found))


def write(folder: Path, found: dict[str, Any]) -> None:
    """What was measured so far."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "encoder.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "encoder.md").write_text(page(found), encoding="utf-8")


def bfloat16(args: Any) -> dict[str, Any]:
    """The learned metric on a CPU in both precisions: seconds, and how many answers of the demo are equal."""
    records = list(read_records(str(DATA / "demo.jsonl.xz")))[: args.demo]
    taken, embedding, answers = {}, {}, {}
    for dtype in ("float32", "bfloat16"):
        utility, phases = Learned(device="cpu", dtype=dtype), Phases()
        list(mbrace.decode_corpus(records[:1], utility=utility))
        started = time.perf_counter()
        decoded = list(mbrace.decode_corpus(records, utility=utility, phases=phases))
        taken[dtype], embedding[dtype] = time.perf_counter() - started, phases.encode
        answers[dtype] = [answer.text for answer in decoded]
    equal = sum(a == b for a, b in zip(*answers.values(), strict=True))
    found = {"seconds": taken, "embedding": embedding, "equal": equal, "of": len(records)}
    return found | {"auto measures": bfloat16_speedup(), "threads": torch.get_num_threads()}


def bfloat16_lines(found: dict[str, Any]) -> list[str]:
    times = [found[part]["float32"] / found[part]["bfloat16"] for part in ("seconds", "embedding")]
    return [
        f"Learned metric on this CPU (threads: {found['threads']}), bfloat16 against float32: {times[0]:.2f} times",
        f"as fast (embedding alone {times[1]:.2f}), {found['equal']} of {found['of']} answers equal; what",
        f"`--dtype auto` measures, and takes bfloat16 from 1.2 on, is {found['auto measures']:.2f}.",
    ]


def page(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = ["# The host out of the way", "", f"{found['machine']}; {versions}; written by `python bench/encoder.py`."]
    state = "used" if found["kernels"] else "not used"
    lines += [f"Triton kernels {state}; {found['rows at a time']} rows decoded at a time. Seconds, best of the trials."]
    lines += ["", "| | former way | now | times faster | agreement |", "|---|---:|---:|---:|---|"]
    for row in found["rows"]:
        agreement = f"{row['equal texts']:.1%} of texts equal" if "equal texts" in row else "same bits"
        if not row.get("bits equal", True):
            agreement = f"largest difference {row['largest difference']:.2g}"
        times = f"{row['former']:.3f} | {row['present']:.3f} | {row['times faster']:.2f}"
        lines.append(f"| {row['what']} | {times} | {agreement} |")
    lines += [
        "",
        "Texts are compared rank by rank. The model has 16 bits: where its last bit differs, hypotheses of a beam "
        "change places, and an arithmetic draw goes another way from there on.",
    ]
    lines += ["", "The parts of embedding, each alone (a thread tokenises while the network works):", ""]
    lines += ["| | |", "|---|---:|"]
    for name, value in found["parts"].items():
        lines.append(f"| {name} | {value:.3f}{'' if name in NUMBERS else ' s'} |")
    if "bfloat16" in found:
        lines += ["", *bfloat16_lines(found["bfloat16"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
