"""What a trained model gives the experiments: candidate files, the speed of sampling, scores of beam 5, the bundle."""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import tarfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics import BLEU, CHRF

from mbrace.models.bundle import load_bundled, quantise
from mbrace.models.generate import Candidates, from_model, generate, read_sources, source_items
from mbrace.models.seq2seq import Seq2Seq
from mbrace.models.vocabulary import Vocabulary

RESULTS = Path("out/results")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("pair")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    if args.name == "preflight":
        global RESULTS
        RESULTS = Path("out/preflight")
        RESULTS.mkdir(parents=True, exist_ok=True)
    folder = f"out/models/{args.name}"
    report: dict[str, Any] = {"model": args.name, "pair": args.pair}

    def attempt(what: str, work: Callable[[], Any]) -> None:
        """Do one piece of work, note its result and time; a failure costs only itself."""
        started = time.monotonic()
        try:
            report[what] = work()
        except Exception:
            traceback.print_exc()
            report[what] = traceback.format_exc(limit=1).splitlines()[-1]
        report[f"{what} seconds"] = round(time.monotonic() - started, 1)
        write(RESULTS / f"{args.name}.json", json.dumps(report, indent=1).encode())
        print(what, report[what], report[f"{what} seconds"], flush=True)

    if args.name in ("bundled", "preflight"):
        attempt("bundle", lambda: bundle(folder))
    model = Seq2Seq(folder)
    sets = {
        path.name.split(".")[0]: path
        for path in sorted(Path("carry").glob(f"*.{args.pair}.*"))
        if path.name[0] in "vt" and "train" not in path.name
    }
    options = Candidates(beam=8, sample=16) if args.small else Candidates()
    if args.name != "bundled":
        for part in ("test", "valid"):
            left = max(5.0, end - time.monotonic() - 40) / (2 if part == "test" else 1)
            attempt(
                f"{part} candidates",
                lambda part=part, left=left: candidates(model, sets[part], args, options, part, left),
            )
    for part in ("test", "valid"):
        attempt(f"{part} beam 5", lambda part=part: scores(model, sets[part], args.small))
    if end - time.monotonic() > 30:
        attempt("speed", lambda: speed(model, folder, sets["test"], args.small))
    if args.name == "bundled" and end - time.monotonic() > 20:
        attempt("int8 beam 5", lambda: scores(bundled_model(), sets["test"], args.small))
    attempt(
        "memory GiB", lambda: round(torch.cuda.max_memory_allocated() / 2**30, 1) if torch.cuda.is_available() else 0
    )


def candidates(
    model: Seq2Seq, path: Path, args: argparse.Namespace, options: Candidates, part: str, seconds: float
) -> int:
    """Candidates of the first sentences, as .jsonl.xz; as many as time allows."""
    plain = Path("out") / f"{args.name}.{part}.jsonl"
    done = generate(
        from_model(model, options),
        itertools.islice(source_items(str(path), prefix=f"{args.pair}.{part}."), args.sentences),
        str(plain),
        options,
        together=8 if args.small else 32,
        minutes=seconds / 60,
        resume=True,
    )
    write(RESULTS / f"{args.pair}.{part}.jsonl.xz", lzma.compress(plain.read_bytes(), preset=6))
    return done.kept + done.sentences


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
    """Samples a second of `sample` and of transformers' generate, same model, same precision, after a warm-up each."""
    from transformers import AutoModelForSeq2SeqLM

    n, count = (4, 8) if small else (256, 32)
    sources = [source for source, _ in list(read_sources(str(path)))[:count]]
    peer = AutoModelForSeq2SeqLM.from_pretrained(folder).to(model.device, model.dtype).eval()
    rows = model.codec.encode(sources)

    def theirs(some: list[list[int]]) -> None:
        for row in some:  # one source of 256 samples at a time fills no less than our batches' width
            ids = torch.tensor([row], device=model.device)
            peer.generate(
                ids, do_sample=True, epsilon_cutoff=0.02, num_return_sequences=n, top_k=0, max_length=2 * len(row) + 32
            )

    def theirs_batched(some: list[list[int]]) -> None:
        width = max(map(len, some))
        ids = torch.full((len(some), width), peer.config.pad_token_id)
        for place, row in enumerate(some):
            ids[place, : len(row)] = torch.tensor(row)
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
    for name, work in {
        "mbrace": lambda part: model.sample(sources[:part], n),
        "transformers one source a call": lambda part: theirs(rows[: min(part, 8)]),
        "transformers 32 sources a call": lambda part: theirs_batched(rows[:part]),
    }.items():
        work(2)
        sync()
        started = time.monotonic()
        work(count)
        sync()
        made = n * (min(count, 8) if "one" in name else count)
        result[name] = round(made / (time.monotonic() - started), 1)
    return result


def sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def bundle(folder: str) -> dict[str, Any]:
    """The int8 translator as one .tar (its files are packed already)."""
    weights = Path("out/preflight" if RESULTS.name == "preflight" else "out") / "translator-de-en"
    size = quantise(folder, weights)
    target = RESULTS / "translator-de-en.tar"
    with tarfile.open(str(target) + ".part", "w") as archive:
        archive.add(weights, arcname="translator-de-en")
        archive.add(f"{folder}/training.json", arcname="translator-de-en/training.json")
    os.replace(str(target) + ".part", target)
    return {"MiB": round(size / 2**20, 2)}


def bundled_model() -> Seq2Seq:
    model, vocabulary = load_bundled("out/translator-de-en")
    assert isinstance(vocabulary, Vocabulary)
    return Seq2Seq.of(model.to("cuda" if torch.cuda.is_available() else "cpu"), vocabulary)


def write(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)


if __name__ == "__main__":
    main()
