"""XCOMET's error spans: from the label probabilities of a hypothesis' tokens to a score, for all pairs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mbrace.cross.pieces import index_in_row
from mbrace.neural.head import to_device

PENALTIES = np.array([0, 1, 5, 10])  # for a span, by the label it begins with: none, minor, major, critical
WORST = 25
INPUT_WEIGHTS = (0.1667, 0.3333, 0.5)  # of (mt, src), (mt, ref) and (mt, src, ref) in the mixed probabilities


@dataclass(frozen=True)
class Labels:
    """Label probabilities of the tokens of several rows, end to end."""

    probabilities: NDArray[np.float32]  # (tokens, classes)
    starts: NDArray[np.int64]  # (rows,)
    counts: NDArray[np.int64]  # (rows,)

    @staticmethod
    def empty() -> Labels:
        """Labels of no rows."""
        nothing = np.empty(0, dtype=np.int64)
        return Labels(np.empty((0, len(PENALTIES)), dtype=np.float32), nothing, nothing)

    @staticmethod
    def of(probabilities: NDArray[np.float32], counts: NDArray[np.int64]) -> Labels:
        """Labels of rows that have `counts` tokens each, end to end."""
        return Labels(probabilities, np.cumsum(counts) - counts, counts)

    def take(self, rows: NDArray[np.int64]) -> Labels:
        """The labels of some of the rows."""
        return Labels(self.probabilities, self.starts[rows], self.counts[rows])

    def followed_by(self, other: Labels) -> Labels:
        """These rows, then the others."""
        return Labels(
            np.concatenate([self.probabilities, other.probabilities]),
            np.concatenate([self.starts, other.starts + len(self.probabilities)]),
            np.concatenate([self.counts, other.counts]),
        )

    def packed(self) -> NDArray[np.float32]:
        """(tokens of the rows, classes), row after row."""
        return self.probabilities[np.repeat(self.starts, self.counts) + index_in_row(self.counts)]  # type: ignore[no-any-return]


def flat(probabilities: Tensor, counts: NDArray[np.int64]) -> Tensor:
    """The first `counts` tokens of each row of (rows, tokens, classes), end to end, on the same device."""
    rows = np.repeat(np.arange(len(counts)), counts) * probabilities.shape[1] + index_in_row(counts)
    return probabilities.flatten(0, 1)[to_device(rows, probabilities.device)]


def mixed(inputs: Sequence[Labels]) -> Labels:
    """The weighted average of the probabilities of each pair's three inputs, without tokens that an input lacks."""
    counts = np.min([each.counts for each in inputs], axis=0)
    parts = [Labels(each.probabilities, each.starts, counts).packed() for each in inputs]
    total = sum(part * np.float32(weight) for part, weight in zip(parts, INPUT_WEIGHTS, strict=True))
    return Labels.of(np.asarray(total, dtype=np.float32), counts)


def scores(labels: Labels) -> NDArray[np.float32]:
    """(rows,) from 0 to 1: the best score minus the penalties of a row's spans.

    A span is a run of tokens whose likeliest label is an error, and its penalty is that of the label it begins with. A
    run that reaches the last token is dropped: the original ends a span only when a token without error follows.
    """
    likeliest = labels.packed().argmax(axis=1)
    rows = np.repeat(np.arange(len(labels.counts)), labels.counts)
    within = index_in_row(labels.counts)
    last_without = np.full(len(labels.counts), -1)
    np.maximum.at(last_without, rows[likeliest == 0], within[likeliest == 0])
    follows_error = np.append(0, likeliest[:-1]) * (within > 0) > 0
    begins = (likeliest > 0) & ~follows_error & (within < last_without[rows])
    penalty = np.bincount(rows[begins], PENALTIES[likeliest[begins]], minlength=len(labels.counts))
    return ((WORST - np.minimum(penalty, WORST)) / WORST).astype(np.float32)
