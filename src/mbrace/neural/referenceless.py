"""COMET's referenceless regression checkpoints, which score a hypothesis with its source, each embedded separately."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.metrics.rebuilt import Rebuilt
from mbrace.neural import checkpoint as layout
from mbrace.neural import pretrained
from mbrace.neural.comet import build_encoder, build_estimator
from mbrace.neural.device import dtype_name
from mbrace.neural.scorer import aligned_scores
from mbrace.scoring import check_aligned

KIND = "referenceless_regression_metric"


class Referenceless(Rebuilt):
    """Estimates quality without a reference: `Referenceless("Unbabel/wmt20-comet-qe-da")`, or any checkpoint of its
    class in COMET's layout (`mbrace train-metric --quality` makes them). It is not a utility for a race. Parameters as
    for `Comet`."""

    reads_references = False

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        read = layout.read(model, {KIND: {"hidden_sizes": [2048, 1024]}})
        self.encoder = build_encoder(read, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.head = build_estimator(read, self.encoder)
        if self.head.reads_source:  # six features: those of a head with source and reference
            found = f"{6 * self.encoder.units}, not {4 * self.encoder.units}"
            raise UserError(f"{read.path}: estimator.ff.0.weight reads {found} numbers; it is not a {KIND}")
        self.name = f"referenceless|{pretrained.label(model)}|encoder:{dtype_name(self.encoder.dtype)}"

    @property
    def truncated(self) -> int:
        """How many strings so far were longer than the limit and cut."""
        return self.encoder.truncated

    def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> NDArray[np.float32]:
        """Scores (hypotheses,) of hypothesis i with source i; each distinct string is embedded once."""
        check_aligned(self.name, hypotheses=hypotheses, sources=sources)
        return aligned_scores(self.encoder, self.head, [hypotheses, sources])
