"""Generate candidates for full_scale.py on the GPU, and score them with the learned metric."""

from __future__ import annotations

import argparse
import importlib
import json
import time
import traceback
from typing import Any

from parts import CandidateSet, Job, JobFolder, Scored, score_beams
from shared_stages import MODEL_OF, guarded, log, one, splits_of

from mbrace.experiments.tables import compute
from mbrace.io.texts import read_pairs
from mbrace.records import Record

BLOCK, JOB = 64, 8  # sentences generated at a time, and per job file
MOST_WAITING = 300  # job files, about 10 MB each, before generating waits for the workers


def set_of(args: argparse.Namespace, pair: str, split: str) -> tuple[CandidateSet, list[tuple[str, str]]]:
    limits = {"valid": args.valid, "test": args.test}
    limit = (3 if split == "valid" else 6) if args.small else limits.get(split)
    pairs = read_pairs(one(args.data, f"{split}.{pair}.*"))[:limit]
    trials, races = (2, 2) if args.small else (10, 12)
    return CandidateSet(pair, split, len(pairs), trials=trials, races=races), pairs


def learned_metric(pair: str, patience: float) -> Any:
    """The learned metric; None if it cannot be loaded within `patience` seconds, for chrF++ only."""
    import mbrace

    started = time.monotonic()
    while True:
        try:
            return mbrace.Learned()
        except Exception as error:
            if time.monotonic() - started > patience:
                traceback.print_exc()
                log(f"{pair}: NO LEARNED METRIC: {error}")
                return None
            log(f"{pair}: waits for the learned metric ({error})")
            time.sleep(10)
            importlib.invalidate_caches()


def generate(args: argparse.Namespace) -> None:
    """Write the job files of a pair, block by block; the first shard also scores beam search on the whole sets."""
    import mbrace

    pair = args.name
    number, shards = map(int, args.shard.split("/"))
    folder = JobFolder(args.out)
    model = mbrace.Seq2Seq(str(args.out / "models" / MODEL_OF[pair]), rows=None if args.small else args.rows)
    metric = learned_metric(pair, 0 if args.small else 240)
    block, per_job = (4, 2) if args.small else (BLOCK, JOB)
    if number == 0:
        guarded(f"{pair}: beam 5", lambda: score_beam(args, model, pair))
    for split in splits_of(pair):
        chosen, pairs = set_of(args, pair, split)
        for start in range(0, len(pairs), block):
            if start // block % shards != number:
                continue
            if args.until and time.time() > args.until:
                log(f"{pair} {number}: out of time at {split} {start}")
                break
            firsts = range(start, min(start + block, len(pairs)), per_job)
            if all(folder.known(Job(chosen, first, ()).file_name) for first in firsts):
                continue
            while folder.waiting() > MOST_WAITING:
                time.sleep(0.5)
            part = pairs[start : start + block]
            for rows in (model.rows, model.rows // 2, model.rows // 4):  # fewer at a time if memory runs out
                model.rows = max(64, rows)
                try:
                    block_jobs(args, model, metric, chosen, start, part)
                    break
                except Exception:
                    log(f"{pair} {split} {start}: FAILED with {model.rows} rows at a time")
                    traceback.print_exc()
                    free_memory()
    log(f"{pair} {number}: generated")


def free_memory() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def block_jobs(args: argparse.Namespace, model: Any, metric: Any, chosen: CandidateSet, start: int, pairs: Any) -> None:
    """Candidates of one block, its learned tables, and its job files."""
    began = time.monotonic()
    folder, per_job = JobFolder(args.out), 2 if args.small else JOB
    beam, samples = (8, 16) if args.small else (256, 1024)
    sources, ids = [s for s, _ in pairs], [f"{chosen.name}.{chosen.split}.{start + i}" for i in range(len(pairs))]
    hypotheses = model.beam(sources, k=beam)
    searched = {f"beam {k}": [b.texts[0] if b.texts else "" for b in model.beam(sources, k=k)] for k in (5, 10)}
    draws = model.sample(sources, samples, epsilon=0.02, ids=ids, seed=1)
    made = time.monotonic()
    records = [
        Record(list(b.texts), list(d.texts), id=name, source=source, reference=reference)
        for b, d, name, (source, reference) in zip(hypotheses, draws, ids, pairs, strict=True)
    ]
    for first in range(0, len(records), per_job):
        some = records[first : first + per_job]
        beams = {name: texts[first : first + per_job] for name, texts in searched.items()}
        scored: list[Scored] = []
        if metric is not None:

            def add_learned(some: Any = some, beams: Any = beams, scored: Any = scored) -> None:
                own = compute(some, metric), score_beams(beams, some, metric)
                scored.append(Scored("learned", "encoder", "--utility learned", metric.name, metric.schedule, *own))

            guarded(f"{chosen.name} {start + first}: learned metric", add_learned)  # without it chrF++ goes on
        folder.add(Job(chosen, start + first, some, scored, beams))
    took = f"{made - began:.1f} s to generate, {time.monotonic() - made:.1f} s to score"
    log(f"{chosen.name} {chosen.split} {start}: {len(records)} sentences, {took}")


def score_beam(args: argparse.Namespace, model: Any, pair: str) -> None:
    """BLEU and chrF++ of beam 5 on the whole sets."""
    import mbrace

    folder = args.out / "scores"
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"{pair}.json").exists():
        return
    report: dict[str, Any] = {"pair": pair, "model": MODEL_OF[pair]}
    for split in splits_of(pair):
        pairs = read_pairs(one(args.data, f"{split}.{pair}.*"))[: 6 if args.small else None]
        texts = [found.texts[0] if found.texts else "" for found in model.beam([s for s, _ in pairs], k=5)]
        references = [reference for _, reference in pairs]
        scores = {"BLEU": mbrace.BLEU().corpus(texts, references), "chrF++": mbrace.ChrF().corpus(texts, references)}
        report[split] = {"sentences": len(pairs)} | {name: round(value, 2) for name, value in scores.items()}
        (folder / f"{pair}.{split}.beam5.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (folder / f"{pair}.json").write_text(json.dumps(report, indent=1) + "\n")
    log(f"{pair}: beam 5: {report}")
