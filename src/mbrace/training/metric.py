"""Train a learned metric or quality estimator, a COMET head on a frozen encoder, from human judgements.

A metric compares a translation with a reference, a quality estimator with its source; all else is the same. The
result is a checkpoint in COMET's layout that names its encoder instead of holding its weights (`encoder_weights:
reference`); `Comet` and `Learned` load a metric like any other, `Referenceless` a quality estimator.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbrace.errors import Parameter, SettingError, UserError
from mbrace.metrics.chrf import ChrF
from mbrace.neural import pretrained
from mbrace.neural.comet import QUALITY
from mbrace.training.metric_data import Judgement, kendall, pearson
from mbrace.training.metric_head import MetricHead, Recipe, Say, Vectors, checkpoint_files, comet_kind, rows_by_pair

__all__ = ["Recipe", "Trained", "train_metric"]


@dataclass
class Trained:
    """The result of training: the best validation correlation and its epoch, the number of judgements trained on, and
    for each held-out language pair the agreement of each metric with people, (Pearson, Kendall)."""

    validation: float = 0.0
    epoch: int = 0
    judgements: int = 0
    held_out: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)


def train_metric(
    judgements: Sequence[Judgement],
    out: str | Path,
    *,
    hold_out: Sequence[str] = (),
    encoder: str = pretrained.MINILM,
    quality: bool = False,
    recipe: Recipe | None = None,
    seed: int = 0,
    cache: str | None = None,
    device: str | None = None,
    say: Say = lambda message: None,
) -> Trained:
    """Train on `judgements` outside the language pairs `hold_out` and write a checkpoint to the folder `out`.

    `quality` says that they are of translations with their sources, for a quality estimator. Judgements of the split
    `dev` decide when to stop, if there are any, and those of `test` are held out as well.
    """
    recipe = recipe or Recipe()
    if quality:  # a copy of the source is no translation
        recipe = replace(recipe, copied=recipe.worst)
    if not 0 <= seed < 2**64:
        raise SettingError("seed", seed, "must be from 0 to 2**64 - 1")
    held = [row for row in judgements if row.pair in hold_out or row.split == "test"]
    rest = _not_held_out(judgements, hold_out, held)
    train, validation = _split(rest, recipe, seed)
    if len(train) < 2:
        raise UserError(
            f"{len(train)} of {len(rest)} judgements are left to train on: the others share a translation or a"
            f" {'source' if quality else 'reference'} with those kept for validation; is a column empty, or one text"
            " everywhere?"
        )
    if not rows_by_pair(validation):
        raise UserError(
            f"{len(validation)} judgements are kept for validation, but no language pair has two of them with different"
            " scores, so training could not tell when to stop; give more judgements of a pair, or other ones"
        )
    # A long run should not fail when it writes its result, so check first that it can.
    comet_kind(encoder)
    for file in checkpoint_files(Path(out)):
        _check_writable("out", str(out), file)
    if cache:
        _check_writable("cache", cache, Path(cache))
    texts = [text for row in judgements for text in (row.translation, row.reference)]
    vectors = Vectors(encoder, texts, cache=cache, device=device, say=say)
    head = MetricHead(vectors, recipe, seed)
    found = Trained(judgements=len(train))
    found.validation, found.epoch = head.fit(train, validation, say=say)
    head.save(Path(out), encoder, QUALITY if quality else "regression_metric")
    for pair in dict.fromkeys([*hold_out, *sorted(row.pair for row in held)]):
        rows = [row for row in held if row.pair == pair]
        found.held_out[pair] = agreement(rows, {"learned": head.scores(rows)}, vectors, quality=quality)
    return found


def _not_held_out(
    judgements: Sequence[Judgement], hold_out: Sequence[str], held: Sequence[Judgement]
) -> list[Judgement]:
    """The judgements for training and validation, which share no text with those to test on; refuses too few."""
    unknown = set(hold_out) - {row.pair for row in judgements}
    if unknown:
        raise UserError(f"hold out {', '.join(sorted(unknown))}: no judgement of such a language pair")
    tested = [row for row in judgements if row.split == "test"]
    rest = _apart([row for row in judgements if row.pair not in hold_out], tested)
    if len(rest) < 100:
        files = ", ".join(dict.fromkeys(row.origin for row in judgements))
        raise UserError(
            f"{files}: {len(rest)} judgements to train on: give at least 100 whose split is not test, whose language"
            f" pair is not held out, and that share no text with those ({len(judgements)} were read, {len(held)} of"
            " them held out)"
        )
    return rest


def _check_writable(parameter: str, given: str, file: Path) -> None:
    """Make the file's folder; refuse a file or folder that cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        reason = "Is a directory" if file.is_dir() else None
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            reason = "Permission denied"
    except OSError as error:
        reason = error.strerror
    if reason:
        what = "folder" if parameter == "out" else "file"
        raise UserError(f"{Parameter(parameter, given)}: {file} cannot be written ({reason}); give another {what}")


def _split(rows: Sequence[Judgement], recipe: Recipe, seed: int) -> tuple[list[Judgement], list[Judgement]]:
    """Judgements for training and for validation; they share no translation and no reference."""
    validation = [row for row in rows if row.split == "dev"]
    if validation:
        return _apart(rows, validation), validation
    pool = [row for row in rows if not row.post_edited] or list(rows)
    references = sorted({row.reference for row in pool})
    order = np.random.default_rng(seed).permutation(len(references))
    chosen = {references[index] for index in order[: max(1, round(recipe.validation * len(references)))]}
    validation = [row for row in pool if row.reference in chosen]
    return _apart(rows, validation), validation


def _apart(rows: Sequence[Judgement], others: Sequence[Judgement]) -> list[Judgement]:
    """The rows that share neither their translation nor their reference with any of `others`."""
    seen = {text for row in others for text in (row.translation, row.reference)}
    return [row for row in rows if row.translation not in seen and row.reference not in seen]


def agreement(
    rows: Sequence[Judgement], scores: dict[str, Any], vectors: Vectors, *, quality: bool = False
) -> dict[str, tuple[float, float]]:
    """Pearson and Kendall with the human scores: of `scores`, of the cosine (last layer), and of chrF++, or of the
    ratio of lengths where translations are compared with sources (`quality`)."""
    hypotheses, references = [row.translation for row in rows], [row.reference for row in rows]
    h, r = (vectors.values[vectors.rows(texts), -1].float() for texts in (hypotheses, references))
    metrics = {**scores, "cosine": torch.nn.functional.cosine_similarity(h, r).numpy()}
    if quality:
        metrics["lengths"] = length_ratios(hypotheses, references)
    else:
        metrics["chrF++"] = ChrF().pairs(hypotheses, references)
    human = [row.score for row in rows]
    return {name: (pearson(found, human), kendall(found, human)) for name, found in metrics.items()}


def length_ratios(translations: Sequence[str], sources: Sequence[str]) -> list[float]:
    """The shorter text's characters over the longer one's: what a quality estimator must beat."""
    sizes = [(len(translation) + 1, len(source) + 1) for translation, source in zip(translations, sources, strict=True)]
    return [min(both) / max(both) for both in sizes]
