"""Candidate files and made-up outcomes, for tests of experiments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.experiments.trials import MEASURES, SHOWN, Outcomes, Setting

SCHEDULE = (4, 8, 16)


def write_candidates(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def outcomes_of(
    settings: Sequence[Setting], sentences: int, trials: int = 2, *, value: float = 0.0, **about: Any
) -> Outcomes:
    """Outcomes in which every measure has one value, until a test says otherwise."""
    shape = (len(settings), sentences, trials)
    measures: dict[str, Any] = {name: np.full(shape, value) for name in MEASURES}
    left = np.ones((len(SHOWN), *shape[1:], 5), np.int16)
    known = {"name": "xx-en", "label": "chrF++", "split": "valid", "schedule": [16, 32, 64, 128, 256]}
    known |= {
        "sentences": sentences,
        "file": "xx-en.valid.jsonl",
        "digest": "d",
        "references": True,
        "options": "",
        "kind": "string",
    }
    return Outcomes(tuple(settings), measures, left, np.zeros((0, 5, *shape[1:]), bool), (), known | about)
