"""Candidate files, runs of `mbrace experiment` and made-up outcomes, for tests of experiments."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.cli import main
from mbrace.experiments.trials import ALPHA_SETTINGS, MEASURES, Outcomes, Setting

SCHEDULE = (4, 8, 16)


def write_candidates(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def cut(rows: Sequence[dict[str, Any]], hypotheses: int, pseudo_references: int) -> list[dict[str, Any]]:
    """The rows with the first of their hypotheses and pseudo-references."""
    return [
        row
        | {
            "hypotheses": row["hypotheses"][:hypotheses],
            "pseudo_references": row["pseudo_references"][:pseudo_references],
        }
        for row in rows
    ]


def run(out: Path, *words: object, trials: int = 2) -> None:
    """`mbrace experiment` into `out`, in this process."""
    options = ["-o", str(out), "--trials", str(trials), "--workers", "1"]
    assert main(["experiment", *map(str, words), *options]) == 0


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def outcomes_of(
    settings: Sequence[Setting], sentences: int, trials: int = 2, *, value: float = 0.0, **about: Any
) -> Outcomes:
    """Outcomes in which every measure has one value, until a test says otherwise."""
    shape = (len(settings), sentences, trials)
    measures: dict[str, Any] = {name: np.full(shape, value) for name in MEASURES}
    left = np.ones((len(ALPHA_SETTINGS), *shape[1:], 5), np.int16)
    known: dict[str, Any] = {"name": "xx-en", "label": "chrF++", "split": "valid", "schedule": [16, 32, 64, 128, 256]}
    known |= {"sentences": sentences, "file": "xx-en.valid.jsonl", "digest": "d", "references": True}
    known |= {"options": "", "kind": "string", "pseudo_references": 1024}
    return Outcomes(tuple(settings), measures, left, np.zeros((0, 5, *shape[1:]), bool), (), known | about)


def change(found: Outcomes, setting: Setting, **values: Any) -> None:
    """Give measures of a setting other values: one for all, or one for each sentence."""
    for name, new in values.items():
        given = np.asarray(new, dtype=float)
        found.measures[name][found.settings.index(setting)] = given[:, None] if given.ndim else given
