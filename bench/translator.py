"""Scores of the bundled translator: beam search, standard MBR and racing MBR with chrF++ as utility.

    python bench/translator.py [--sentences 200] [--beam 64] [--references 256]     # -> bench/results/translator.md

Sources and references are the first lines of newstest2018 de-en, from experiments/candidates (or `--tsv FILE`, all of
it). Hypotheses and pseudo-references are generated once and shared: racing and standard MBR see the same samples.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
import sacrebleu
import torch

import mbrace
from mbrace.io.candidates import read_records
from mbrace.jobs.translate import read_sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--candidates", default="experiments/candidates/de-en.test.jsonl.xz")
    parser.add_argument("--tsv", help="source TAB reference, instead of --candidates")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--beam", type=int, default=64)
    parser.add_argument("--references", type=int, default=256)
    parser.add_argument("--batch", type=int, help="sources per batch (default: 64 on a GPU, 4 on a CPU)")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pairs = rows_of(args)
    model = mbrace.Seq2Seq(args.model)
    cuda = model.device.type == "cuda"
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    beam5, hypotheses, draws, seconds = [], [], [], {"beam 5": 0.0, "hypotheses": 0.0, "samples": 0.0}
    batch = args.batch or (64 if cuda else 4)
    for first in range(0, len(pairs), batch):
        part = sources[first : first + batch]
        started = time.perf_counter()
        beam5 += [beams.texts[0] for beams in model.beam(part, k=5)]
        seconds["beam 5"] += time.perf_counter() - started
        started = time.perf_counter()
        hypotheses += [list(beams.texts) for beams in model.beam(part, k=args.beam)]
        seconds["hypotheses"] += time.perf_counter() - started
        started = time.perf_counter()
        names = list(range(first, first + len(part)))
        draws += [list(found.texts) for found in model.sample(part, args.references, ids=names)]
        seconds["samples"] += time.perf_counter() - started
        print(f"{first + len(part)} of {len(pairs)}", {k: round(v, 1) for k, v in seconds.items()}, flush=True)
    records = [mbrace.Record(h, d, id=i) for i, (h, d) in enumerate(zip(hypotheses, draws, strict=True))]
    schedule = [size for size in mbrace.doubling(16, 1024) if size <= args.references]
    texts, cost = {"beam 5": beam5}, {}
    for name, prune in (("standard MBR", None), ("racing MBR, alpha 0.99", mbrace.Confidence(0.99))):
        started = time.perf_counter()
        answers = list(mbrace.decode_corpus(records, prune=prune, schedule=schedule, shuffle=False))
        texts[name] = [answer.text for answer in answers]
        calls = sum(answer.utility_calls for answer in answers) / len(answers)
        used = sum(answer.pseudo_references for answer in answers) / len(answers)
        cost[name] = f"{calls:,.0f} | {used:.0f} | {1e3 * (time.perf_counter() - started) / len(answers):.1f}"
    text = report(args, model, references, texts, cost)
    (args.out / "translator.md").write_text(text, encoding="utf-8")
    print(text)


def rows_of(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Sources and references."""
    if args.tsv:
        rows = ((source, reference or "") for source, reference in read_sources(args.tsv))
    else:
        rows = ((record.source or "", record.reference or "") for record in read_records(args.candidates))
    return list(itertools.islice(rows, args.sentences))


def report(
    args: argparse.Namespace,
    model: mbrace.Seq2Seq,
    references: list[str],
    texts: dict[str, list[str]],
    cost: dict[str, str],
) -> str:
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF(word_order=2)
    machine = torch.cuda.get_device_name() if model.device.type == "cuda" else "a CPU"
    lines = [
        "# The bundled translator on newstest2018 (de-en)",
        "",
        f"First {len(references)} sentences; MBR chooses among {args.beam} beam hypotheses with up to "
        f"{args.references} pseudo-references by epsilon sampling (0.02), utility chrF++. Generated on {machine} in "
        f"{str(model.dtype).removeprefix('torch.')} by `python bench/translator.py --sentences {len(references)} "
        f"--beam {args.beam} --references {args.references}`.",
        "",
        "| decoding | BLEU | chrF++ | beats beam 5 in chrF++ | utility calls | pseudo-references used "
        "| race, ms per sentence |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    base = mbrace.ChrF().pairs(texts["beam 5"], references)
    rng = np.random.default_rng(0)
    samples = rng.integers(0, len(references), (10_000, len(references)))
    for name, found in texts.items():
        scores = [bleu.corpus_score(found, [references]).score, chrf.corpus_score(found, [references]).score]
        gain = (mbrace.ChrF().pairs(found, references) - base)[samples].mean(axis=1)
        wins = "" if name == "beam 5" else f"{(gain > 0).mean():.1%} of resamples"
        lines.append(f"| {name} | {scores[0]:.2f} | {scores[1]:.2f} | {wins} | {cost.get(name, ' |  | ')} |")
    same = sum(a == b for a, b in zip(*list(texts.values())[1:], strict=True))
    lines += [
        "",
        f"Racing agrees with standard MBR on {same} of {len(references)} sentences. Resamples: 10,000 bootstrap "
        "samples of the sentences, means of sentence chrF++.",
        f"{bleu.get_signature()}; {chrf.get_signature()}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
