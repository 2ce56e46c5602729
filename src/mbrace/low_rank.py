"""Low-rank completion: some pairs are scored, and the others are estimated by a low-rank matrix fitted to those
(probabilistic MBR, Trabelsi et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mbrace.randomness import generator
from mbrace.scoring import UtilityWrapper
from mbrace.utility import Ask, Scorer, Sentence

ITERATIONS = 10  # of alternating least squares; the paper's
# For utilities scaled to standard deviation 1 (see `complete`). The paper's 0.1, for unscaled utilities, lost more on
# our de-en validation set with chrF++.
REGULARIZATION = 1.0


@dataclass(frozen=True)
class Completed(UtilityWrapper):
    """Scores a `fraction` of the pairs of every ask, and completes the table by a matrix of this `rank`."""

    rank: int
    fraction: float
    seed: int

    def start(self, sentences: Sequence[Sentence]) -> _CompletedScorer:
        """Begin the races of a window."""
        return _CompletedScorer(self, sentences)


class _CompletedScorer:
    def __init__(self, completed: Completed, sentences: Sequence[Sentence]) -> None:
        self._completed, self._sentences = completed, sentences
        self._scorer: Scorer = completed.utility.start(sentences)

    @property
    def encode_seconds(self) -> float:
        return self._scorer.encode_seconds

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float64]]:
        """One table per ask. What is scored of it is asked for one pseudo-reference at a time."""
        own = self._completed
        masks, parts = [], []
        for ask in asks:
            rng = generator(own.seed, self._sentences[ask.sentence].id, "low-rank")
            mask = chosen_pairs(len(ask.hypotheses), len(ask.references), own.fraction, rng)
            masks.append((mask, rng))
            for column in np.flatnonzero(mask.any(axis=0)).tolist():
                parts.append(Ask(ask.sentence, ask.hypotheses[mask[:, column]], (ask.references[column],)))
        found = iter(self._scorer.score(parts))
        tables = []
        for mask, rng in masks:
            values = np.zeros(mask.shape)
            for column in np.flatnonzero(mask.any(axis=0)).tolist():
                values[mask[:, column], column] = np.asarray(next(found), dtype=np.float64)[:, 0]
            tables.append(values if mask.all() else complete(values, mask, own.rank, rng))
        return tables


def pairs_to_score(pairs: int, fraction: float) -> int:
    """How many of this number of pairs are scored: no more than the fraction, but at least one."""
    return max(1, int(fraction * pairs + 1e-9))


def chosen_pairs(rows: int, columns: int, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(rows, columns): which pairs are scored, drawn at random."""
    mask = np.zeros(rows * columns, dtype=np.bool_)
    mask[rng.permutation(rows * columns)[: pairs_to_score(rows * columns, fraction)]] = True
    return mask.reshape(rows, columns)


def complete(
    values: NDArray[np.float64], mask: NDArray[np.bool_], rank: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The completed table. The known values (where `mask` is True) are first scaled to mean 0 and standard deviation 1,
    so that one regularization suits every utility, and a row without known values becomes average instead of 0."""
    known = values[mask]
    mean, deviation = float(known.mean()), float(known.std())
    if deviation <= 1e-12 * max(1.0, abs(mean)):  # all known values are equal
        return np.full(values.shape, mean)
    x, y = factorize(np.where(mask, (values - mean) / deviation, 0.0), mask, starting(values.shape, rank, rng))
    completed: NDArray[np.float64] = x @ y.T * deviation + mean
    return completed


def starting(
    shape: tuple[int, ...], rank: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Random factors to start from."""
    rows, columns = shape
    return (
        rng.random((rows, rank)) * (rows * rank) ** -0.5,
        rng.random((columns, rank)) * (columns * rank) ** -0.5,
    )


def factorize(
    matrix: NDArray[np.float64],
    mask: NDArray[np.bool_],
    start: tuple[NDArray[np.float64], NDArray[np.float64]],
    *,
    iterations: int = ITERATIONS,
    regularization: float = REGULARIZATION,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Factors (rows, rank) and (columns, rank) whose product approximates the matrix where `mask` is True, by
    alternating least squares. The matrix must be 0 elsewhere."""
    x, y = start
    known = mask.astype(np.float64)
    for _ in range(iterations):
        x = _solved(matrix, known, y, regularization)
        y = _solved(matrix.T, known.T, x, regularization)
    return x, y


def _solved(
    matrix: NDArray[np.float64], known: NDArray[np.float64], other: NDArray[np.float64], regularization: float
) -> NDArray[np.float64]:
    """(rows, rank): the least-squares solution for each row over its known columns."""
    rank = other.shape[1]
    upper = np.triu_indices(rank)  # the systems are symmetric
    sums = known @ (other[:, upper[0]] * other[:, upper[1]])
    systems = np.empty((len(matrix), rank, rank))
    systems[:, upper[0], upper[1]] = systems[:, upper[1], upper[0]] = sums
    systems += regularization * np.eye(rank)
    return np.asarray(np.linalg.solve(systems, (matrix @ other)[:, :, None])[:, :, 0], dtype=np.float64)
