"""Table 2: seconds to generate H, generate R, embed, score and prune, for racing, standard MBR and beam search."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.api import decode_corpus
from mbrace.errors import require
from mbrace.experiments.studies import Row
from mbrace.experiments.tables import CandidateFile, slug
from mbrace.io.atomic import make_folder
from mbrace.jobs.translate import read_sources as source_pairs
from mbrace.models.hypotheses import CandidateModel, live_candidates
from mbrace.prune import Confidence, PruningFunction
from mbrace.result import Phases
from mbrace.settings import Race, Sampling
from mbrace.utility import Utility, cores

BEAM = 10  # the width of beam search in the paper's table
WINDOW = 64  # sentences that race at the same time
PHASES = {"generate R": "draw", "embed": "encode", "utilities": "score", "pruning": "prune"}


def run_times(
    model: CandidateModel,
    utility: Utility,
    sources: Sequence[str],
    *,
    pair: str,
    label: str,
    trials: int = 3,
    seed: int = 0,
    hypotheses: int = 256,
) -> list[Row]:
    """Rows (method, phase, seconds) averaged over `trials`.

    Racing (alpha 0.99) and standard MBR run in windows of sources, with pseudo-references drawn ahead on a GPU and step
    by step on a CPU. Every method has the same sources. Standard MBR first runs once untimed, so that no method pays
    for recording steps on a GPU; racing and standard MBR take turns at going first.
    """
    _race(model, utility, sources, None, seed, hypotheses)
    model.beam(sources[:4], BEAM)
    found: dict[tuple[str, str], list[float]] = {}
    for trial in range(trials):
        methods: list[tuple[str, Any]] = [("racing", Confidence(0.99)), ("standard", None)]
        for method, prune in methods if trial % 2 == 0 else reversed(methods):
            timed = _race(model, utility, sources, prune, seed + trial, hypotheses)
            for phase, seconds in timed.items():
                found.setdefault((method, phase), []).append(seconds)
        started = time.perf_counter()
        model.beam(sources, BEAM)
        seconds = time.perf_counter() - started
        for phase in ("generate H", "total"):
            found.setdefault(("beam", phase), []).append(seconds)
    shared: Row = {"pair": pair, "utility": label, "split": "test", "sentences": len(sources), "trials": trials}
    shared |= {"device": device_name(), "window": WINDOW, "utility_signature": utility.name}
    shared["draw"] = "ahead" if model.device.type == "cuda" else "step by step"
    return [
        shared | {"method": method, "phase": phase, "seconds": float(np.mean(s)), "deviation": float(np.std(s))}
        for (method, phase), s in found.items()
    ]


def _race(
    model: CandidateModel,
    utility: Utility,
    sources: Sequence[str],
    prune: PruningFunction | None,
    seed: int,
    hypotheses: int,
) -> dict[str, float]:
    """Seconds spent in each phase of one run from sources to decisions."""
    started = time.perf_counter()
    phases = Phases()
    race = Race(prune=prune, seed=seed, window=WINDOW)
    made, sampler = live_candidates(model, Sampling(beam=hypotheses), utility, race)
    list(decode_corpus(made.records(sources), utility=utility, race=race, sampler=sampler, phases=phases))
    timed = {"generate H": made.seconds} | {name: getattr(phases, field) for name, field in PHASES.items()}
    if prune is None:
        del timed["pruning"]
    return timed | {"total": time.perf_counter() - started}


def device_name() -> str:
    """The name of the GPU if torch has one, else of the processor."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{processor_name()}, {cores()} cores"


def processor_name() -> str:
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def load_model(name: str, device: str | None) -> CandidateModel:
    """Load a translation model by name or folder."""
    module = require("mbrace.models.seq2seq", extra="models")
    model: CandidateModel = module.Seq2Seq(name, device=device)
    return model


def read_sources(path: str, count: int) -> tuple[list[str], str]:
    """`count` random sources from a text file, a .tsv's first column or a candidate file; and the pair's name."""
    sources = [source for source, _ in source_pairs(path)]
    chosen = np.random.default_rng(0).permutation(len(sources))[:count]
    return [sources[index] for index in sorted(chosen.tolist())], CandidateFile.from_path(path).name


def save(rows: Sequence[Row], folder: Path) -> Path:
    """Save the rows where `mbrace experiment` looks for them."""
    make_folder(folder)
    path = folder / f"{rows[0]['pair']}.{slug(rows[0]['utility'])}.runtimes.json"
    path.write_text(json.dumps(list(rows), indent=1) + "\n")
    return path
