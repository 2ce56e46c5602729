"""Train a learned metric, a COMET head on a frozen encoder, from human judgements.

The result is a checkpoint in COMET's layout that names its encoder instead of holding its weights (`encoder_weights:
reference`); `Comet` and `Learned` load it like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbrace.errors import SettingError, UserError
from mbrace.io.atomic import make_folder
from mbrace.metrics.chrf import ChrF
from mbrace.neural import pretrained
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
    recipe: Recipe | None = None,
    seed: int = 0,
    device: str | None = None,
    say: Say = lambda message: None,
) -> Trained:
    """Train on `judgements` outside the language pairs `hold_out` and write a checkpoint to the folder `out`."""
    recipe = recipe or Recipe()
    if not 0 <= seed < 2**64:
        raise SettingError("seed", seed, "must be from 0 to 2**64 - 1")
    held = [row for row in judgements if row.pair in hold_out]
    rest = _not_held_out(judgements, hold_out)
    train, validation = _split(rest, recipe, seed)
    if len(train) < 2:
        raise UserError(
            f"{len(train)} of {len(rest)} judgements are left to train on: the others share a translation or a"
            " reference with those kept for validation; is a column empty, or one text everywhere?"
        )
    if not rows_by_pair(validation):
        raise UserError(
            f"{len(validation)} judgements are kept for validation, but no language pair has two of them with different"
            " scores, so training could not tell when to stop; give more judgements of a pair, or other ones"
        )
    # A long run should not fail when it writes its result, so check first that it can.
    comet_kind(encoder)
    for file in checkpoint_files(Path(out)):
        make_folder(file.parent)
    texts = [text for row in judgements for text in (row.translation, row.reference)]
    vectors = Vectors(encoder, texts, device=device, say=say)
    head = MetricHead(vectors, recipe, seed)
    found = Trained(judgements=len(train))
    found.validation, found.epoch = head.fit(train, validation, say=say)
    head.save(Path(out), encoder, "regression_metric")
    for pair in dict.fromkeys(hold_out):
        rows = [row for row in held if row.pair == pair]
        found.held_out[pair] = agreement(rows, {"learned": head.scores(rows)}, vectors)
    return found


def _not_held_out(judgements: Sequence[Judgement], hold_out: Sequence[str]) -> list[Judgement]:
    """The judgements for training and validation; refuses too few."""
    unknown = set(hold_out) - {row.pair for row in judgements}
    if unknown:
        raise UserError(f"hold out {', '.join(sorted(unknown))}: no judgement of such a language pair")
    rest = [row for row in judgements if row.pair not in hold_out]
    if len(rest) < 100:
        files = ", ".join(dict.fromkeys(row.origin for row in judgements))
        held = len(judgements) - len(rest)
        raise UserError(
            f"{files}: {len(rest)} judgements to train on: give at least 100 whose language pair is not held out "
            f"({len(judgements)} were read, {held} of them held out)"
        )
    return rest


def _split(rows: Sequence[Judgement], recipe: Recipe, seed: int) -> tuple[list[Judgement], list[Judgement]]:
    """Judgements for training and for validation; they share no translation and no reference."""
    pool = [row for row in rows if not row.post_edited] or list(rows)
    references = sorted({row.reference for row in pool})
    order = np.random.default_rng(seed).permutation(len(references))
    chosen = {references[index] for index in order[: max(1, round(recipe.validation * len(references)))]}
    validation = [row for row in pool if row.reference in chosen]
    seen = {text for row in validation for text in (row.translation, row.reference)}
    return [row for row in rows if row.translation not in seen and row.reference not in seen], validation


def agreement(rows: Sequence[Judgement], scores: dict[str, Any], vectors: Vectors) -> dict[str, tuple[float, float]]:
    """Pearson and Kendall with the human scores: of `scores`, of the cosine (last layer), and of chrF++."""
    hypotheses, references = [row.translation for row in rows], [row.reference for row in rows]
    h, r = (vectors.values[vectors.rows(texts), -1].float() for texts in (hypotheses, references))
    metrics = {**scores, "cosine": torch.nn.functional.cosine_similarity(h, r).numpy()}
    metrics["chrF++"] = ChrF().pairs(hypotheses, references)
    human = [row.score for row in rows]
    return {name: (pearson(found, human), kendall(found, human)) for name, found in metrics.items()}
