"""Recorded races: every step of a few sentences, for the race viewer of report.html."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.api import decode_corpus
from mbrace.experiments.tables import Table
from mbrace.experiments.trials import measure, sample
from mbrace.io.atomic import replace_file
from mbrace.prune import Confidence
from mbrace.records import Record, key
from mbrace.result import RaceRecorder, RecordedStep
from mbrace.settings import Race
from mbrace.utilities.replay import Replay

RECORDED_ALPHAS = (0.99, 0.9, 0.8)
RECORDED = 12  # sentences per file


def spread_evenly(sentences: int, count: int = RECORDED) -> list[int]:
    """The indices of `count` sentences, or of all if there are fewer."""
    chosen: list[int] = np.unique(np.linspace(0, sentences - 1, min(count, sentences)).round().astype(int)).tolist()
    return chosen


def record_sentence(
    table: Table, record: Record, name: str, schedule: tuple[int, ...], run_seed: int
) -> dict[str, Any]:
    """The races of one sentence, with every alpha, on the draws of trial 0; `name` and `schedule` are the utility's."""
    seed = key(run_seed, 0, "trial")
    replay = Replay([table], name=name, schedule=schedule)
    drawn = sample(table, seed, schedule[-1])
    races = {}
    for alpha in RECORDED_ALPHAS:
        rule = Confidence(alpha)
        recorder = RaceRecorder(rule)
        race = Race(prune=rule, schedule=schedule, shuffle=False, seed=seed)
        [answer] = decode_corpus([drawn], utility=replay, race=race, watch=recorder)
        assert answer.index is not None
        races[f"{alpha:g}"] = {
            "steps": [_viewer_step(step) for step in recorder.steps],
            "answer": answer.index,
            "utility_calls": answer.utility_calls,
            "rank": round(1 / measure(table, answer.index)["rr"]),
        }
    return {
        "source": record.source,
        "reference": record.reference,
        "hypotheses": table.hypotheses,
        "winner": int(np.argmax(table.expected)),
        "races": races,
    }


def _viewer_step(step: RecordedStep) -> dict[str, Any]:
    """A step as the race viewer reads it: numbers rounded to what can be seen."""
    assert step.win_rates is not None
    return {
        "pseudo_references": step.pseudo_references,
        "alive": step.alive.tolist(),
        "means": [round(float(mean), 5) for mean in step.means],
        "win_rates": [round(float(rate), 3) for rate in step.win_rates],
        "kept": np.flatnonzero(step.kept).tolist(),
    }


def save_races(outcomes: Path, about: Mapping[str, Any], sentences: Sequence[Mapping[str, Any]]) -> None:
    """Save recorded races next to the file of outcomes that they belong to, which `about` describes."""
    header = {"pair": about["name"], "split": about["split"], "utility": about["label"], "scale": about["scale"]}
    text = json.dumps(header | {"sentences": sentences}, ensure_ascii=False, separators=(",", ":"))
    outcomes.parent.mkdir(parents=True, exist_ok=True)
    packed = gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)  # the same races give the same bytes
    replace_file(outcomes.with_suffix(".races.json.gz"), packed, shared=True)


def load_races(folder: Path) -> list[dict[str, Any]]:
    """What `save_races` saved in a folder, a dictionary per candidate file and utility."""
    return [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(folder.glob("*.races.json.gz"))]
