"""Human judgements of translations, from TSV files with a header, and how well a metric agrees with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.io.reading import read_lines

REFERENCES = ("ref", "pe")  # an independent reference, or a post-edit of the translation itself
SCORES = ("z", "score")
LARGEST_SCORE = 1_000_000  # or minus that


@dataclass(frozen=True)
class Judgement:
    """One human score of a translation, standardised within its file and language pair."""

    origin: str  # the file's name
    pair: str  # such as de-en
    translation: str
    reference: str
    score: float
    post_edited: bool  # the reference is a post-edit, which agrees with the translation more than it should


def read_judgements(path: str, *, target: str | None = None) -> list[Judgement]:
    """The rows of a TSV file with columns lp, mt, ref or pe, and z or score; `target` keeps `*-TARGET`."""
    lines = read_lines(path)
    header = next(lines, "").split("\t")
    columns = {column: index for index, column in enumerate(header)}
    reference = next((column for column in REFERENCES if column in columns), None)
    score = next((column for column in SCORES if column in columns), None)
    if reference is None or score is None or not {"lp", "mt"} <= columns.keys():
        raise UserError(f"{path}:1: header must name lp, mt, ref or pe, and z or score; found {', '.join(header)}")
    rows: list[Judgement] = []
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        if len(fields) != len(header):
            raise UserError(f"{path}:{number}: {len(fields)} fields, but the header has {len(header)}")
        pair = fields[columns["lp"]]
        if target is not None and not pair.endswith(f"-{target}"):
            continue
        try:
            value = float(fields[columns[score]])
        except ValueError:
            raise UserError(f"{path}:{number}: {score}: {fields[columns[score]]!r} is not a number") from None
        if not math.isfinite(value):
            raise UserError(f"{path}:{number}: {score}: {value} is not finite; give a number, or leave the line out")
        if abs(value) > LARGEST_SCORE:
            raise UserError(f"{path}:{number}: {score}: {value} is beyond {LARGEST_SCORE:,}; give a person's score")
        texts = fields[columns["mt"]], fields[columns[reference]]
        rows.append(Judgement(Path(path).name, pair, *texts, value, reference == "pe"))
    if not rows:
        raise UserError(f"{path}: no judgement" + (f" of a translation into {target}" if target else ""))
    return _standardised(rows)


def _standardised(rows: Sequence[Judgement]) -> list[Judgement]:
    """Scores with mean 0 and deviation 1 within each language pair, since annotators of different pairs differ."""
    moments = {}
    for pair in {row.pair for row in rows}:
        scores = np.array([row.score for row in rows if row.pair == pair])
        # np.ptp: rounding may make the deviation of equal scores tiny instead of 0
        moments[pair] = scores.mean(), scores.std() if np.ptp(scores) else 1.0
    found = []
    for row in rows:
        mean, deviation = moments[row.pair]
        found.append(replace(row, score=float((row.score - mean) / deviation)))
    return found


def pearson(left: Sequence[float] | NDArray[np.floating], right: Sequence[float] | NDArray[np.floating]) -> float:
    """Pearson's correlation."""
    return float(np.corrcoef(left, right)[0, 1])


def kendall(left: Sequence[float] | NDArray[np.floating], right: Sequence[float] | NDArray[np.floating]) -> float:
    """Kendall's tau-b: agreements minus disagreements over pairs, corrected for ties."""
    a, b = (np.sign(np.subtract.outer(np.asarray(x, float), np.asarray(x, float))) for x in (left, right))
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
