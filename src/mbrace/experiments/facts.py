"""Facts about the sentences of a candidate file: counts, ranges of scores, and sentences that do not test racing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.errors import warn
from mbrace.experiments.tables import CandidateFile, Table


@dataclass(frozen=True)
class Facts:
    """One sentence of a candidate file: counts, and the range of the scores of its hypotheses against the human
    reference (NaN if it has none)."""

    id: str | int
    hypotheses: int
    pseudo_references: int
    distinct: int
    lowest: float
    highest: float


def facts(table: Table) -> Facts:
    """The facts of one table."""
    human = table.human
    counts = len(table.hypotheses), len(table.draws), len(table.columns)
    return Facts(table.record.id, *counts, float(human.min()), float(human.max()))


def describe(sentences: Sequence[Facts], largest: int) -> dict[str, Any]:
    """A summary of the facts of all sentences; `largest`: the last size of the schedule."""
    references = all(math.isfinite(one.lowest) and math.isfinite(one.highest) for one in sentences)
    # scores between 0 and 1, give or take a little, are multiplied by 100 for display, as the paper does with COMET's
    small = references and min(s.lowest for s in sentences) >= -0.25 and max(s.highest for s in sentences) <= 1.25
    return {
        "sentences": len(sentences),
        "hypotheses": round(float(np.mean([one.hypotheses for one in sentences])), 1),
        "pseudo_references": min(one.pseudo_references for one in sentences),
        "exhausted": [one.id for one in sentences if one.pseudo_references <= largest],
        "distinct": round(float(np.mean([one.distinct / one.pseudo_references for one in sentences])), 3),
        "references": references,
        "scale": 100 if small else 1,
    }


def about_outcomes(
    file: CandidateFile,
    sentences: Sequence[Facts],
    *,
    utility: str,
    label: str,
    schedule: Sequence[int],
    trials: int,
    seed: int,
) -> dict[str, Any]:
    """What outcomes are of: the candidate file, the utility (its signature, and its name in results), the trials."""
    return {
        "name": file.name,
        "split": file.split,
        "file": Path(file.path).name,
        "digest": file.digest,
        "utility": utility,
        "label": label,
        "schedule": list(schedule),
        **describe(sentences, schedule[-1]),
        "trials": trials,
        "seed": seed,
    }


def warn_of_exhausted(path: str, about: Mapping[str, Any]) -> None:
    """Warn of records that do not test racing: all their pseudo-references are used, so that R is R*."""
    ids, largest = about["exhausted"], about["schedule"][-1]
    if ids:
        named = ", ".join(map(repr, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        warn(
            f"{path}: {len(ids)} of {about['sentences']} records have no more than {largest} pseudo-references, so "
            f"that R is R* and standard MBR right by definition; give more of them (the paper: 1024): {named}"
        )
