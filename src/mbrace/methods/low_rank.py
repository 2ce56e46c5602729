"""Probabilistic MBR: Trabelsi, Vilar, Finkelstein and Freitag, "Efficient Minimum Bayes Risk Decoding using Low-Rank
Matrix Completion Algorithms" (2024).

A random fraction F of the N x M pairs is scored. A matrix of rank R, fitted to them by alternating least squares,
estimates the others: F x N x M scores, per iteration N + M systems of R equations. All strings are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import check_number, check_whole
from mbrace.methods import StandardMBR, refused, started_by, with_cost
from mbrace.records import Record, generator
from mbrace.result import Decoded
from mbrace.utility import Ask, Scorer, Sentence, Utility

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LowRank:
    """A random `fraction` of the pairs is scored, and the others are estimated by a matrix of this `rank`."""

    rank: int = 8
    fraction: float = 0.125
    scores_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, least=1, most=1024)  # a higher rank saves nothing
        check_number("fraction", self.fraction, least=0, most=1, above=0)

    def check(self, utility: Utility) -> None:
        """Refuse a utility whose scores depend on what else is asked for."""
        if getattr(utility, "scales_by_first_table", False):
            raise refused(self, utility, "is scaled by whole tables, not the pairs that are scored; fix its scale")

    def decode(self, records: Sequence[Record], mbr: StandardMBR) -> list[Decoded | Exception]:
        """Standard MBR with completed tables."""
        drawn, inner = mbr.draw(records), mbr.utility
        completing = started_by(inner, lambda them: _CompletingScorer(self, mbr.settings.seed, them, inner.start(them)))
        answers = mbr(records, draws=drawn, utility=completing)
        return [with_cost(*each, scored=self.scored) for each in zip(answers, records, drawn, strict=True)]

    def scored(self, pairs: int) -> int:
        """How many of this number of pairs are scored: no more than the fraction, but at least one."""
        return max(1, int(self.fraction * pairs + 1e-9))


class _CompletingScorer:
    """Scores some pairs of every ask, one pseudo-reference at a time, and completes the tables."""

    def __init__(self, method: LowRank, seed: int, sentences: Sequence[Sentence], scorer: Scorer) -> None:
        self._method, self._seed, self._sentences, self._scorer = method, seed, sentences, scorer
        self.encode_seconds = 0.0

    def score(self, asks: Sequence[Ask]) -> list[Array]:
        chosen, parts = [], []
        for ask in asks:
            rng = generator(self._seed, self._sentences[ask.sentence].id, "low-rank")
            mask = np.zeros((len(ask.hypotheses), len(ask.references)), dtype=np.bool_)
            mask.flat[rng.permutation(mask.size)[: self._method.scored(mask.size)]] = True
            columns = np.flatnonzero(mask.any(axis=0)).tolist()
            parts += [Ask(ask.sentence, ask.hypotheses[mask[:, at]], (ask.references[at],)) for at in columns]
            chosen.append((mask, np.zeros(mask.shape), rng))
        found = iter(self._scorer.score(parts))
        self.encode_seconds = self._scorer.encode_seconds
        for mask, values, _ in chosen:
            values.T[mask.T] = np.concatenate([next(found)[:, 0] for _ in range(np.count_nonzero(mask.any(axis=0)))])
        return [complete(values, mask, self._method.rank, rng) for mask, values, rng in chosen]


def complete(values: Array, mask: NDArray[np.bool_], rank: int, rng: np.random.Generator) -> Array:
    """The completed table. The known values (where `mask` is True) are first scaled to mean 0 and standard deviation 1,
    so that one regularization suits every utility (the paper's is 0.1), and a row without known values is average."""
    mean, deviation = float(values[mask].mean()), float(values[mask].std())
    if mask.all() or deviation <= 1e-12 * max(1.0, abs(mean)):  # all values are known, or all known ones are equal
        return values if mask.all() else np.full(values.shape, mean)
    scaled, known = np.where(mask, (values - mean) / deviation, 0.0), mask.astype(np.float64)
    x, y = (rng.random((size, rank)) * (size * rank) ** -0.5 for size in values.shape)
    for _ in range(10):  # as in the paper
        x = least_squares(scaled, known, y)
        y = least_squares(scaled.T, known.T, x)
    return np.asarray(x @ y.T * deviation + mean)


def least_squares(matrix: Array, known: Array, other: Array, regularization: float = 1.0) -> Array:
    """(rows, rank): for each row of the matrix, which is 0 where it is not `known`, the factor that fits it best."""
    rank = other.shape[1]
    i, j = np.triu_indices(rank)  # the systems are symmetric
    systems = np.empty((len(matrix), rank, rank))
    systems[:, i, j] = systems[:, j, i] = known @ (other[:, i] * other[:, j])
    systems += regularization * np.eye(rank)
    return np.asarray(np.linalg.solve(systems, (matrix @ other)[:, :, None])[:, :, 0], dtype=np.float64)
