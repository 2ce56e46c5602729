"""Probabilistic MBR: Trabelsi, Vilar, Finkelstein and Freitag, "Efficient Minimum Bayes Risk Decoding using Low-Rank
Matrix Completion Algorithms" (2024).

A random fraction F of the N x M pairs is scored, and the others are estimated by a matrix of rank R, fitted to those by
alternating least squares: F x N x M scores, and per iteration N + M systems of R equations. Every string is still
encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import SettingError, check_number, check_whole
from mbrace.methods import StandardMBR, refused, started_by, with_cost
from mbrace.records import Record, generator
from mbrace.result import Decoded
from mbrace.utility import Ask, SelfScaledUtility, Sentence, Utility

Array = NDArray[np.float64]
MOST_RANK = 1024  # a higher rank saves nothing, and its matrices would have to fit in memory


@dataclass(frozen=True)
class LowRank:
    """A random `fraction` of the pairs is scored, and the others are estimated by a matrix of this `rank`."""

    rank: int = 8
    fraction: float = 0.125
    scores_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, least=1, most=MOST_RANK)
        check_number("fraction", self.fraction, least=0, most=1)
        if self.fraction == 0:
            raise SettingError("fraction", 0, "must be above 0")

    def check(self, utility: Utility) -> None:
        """Refuse a utility whose scores depend on what else is asked for."""
        if isinstance(utility, SelfScaledUtility) and utility.scales_by_first_table:
            raise refused(
                self, utility, "is scaled by whole tables, of which only some pairs are scored; fix its scale"
            )

    def decode(self, records: Sequence[Record], mbr: StandardMBR) -> list[Decoded | Exception]:
        """Standard MBR with completed tables."""
        drawn = mbr.draw(records)
        utility = started_by(mbr.utility, lambda sentences: _CompletingScorer(self, mbr, sentences))
        answers = mbr(records, draws=drawn, utility=utility)
        return [with_cost(*each, scored=self.scored) for each in zip(answers, records, drawn, strict=True)]

    def scored(self, pairs: int) -> int:
        """How many of this number of pairs are scored: no more than the fraction, but at least one."""
        return max(1, int(self.fraction * pairs + 1e-9))


class _CompletingScorer:
    """Scores some pairs of every ask, one pseudo-reference at a time, and completes the tables."""

    def __init__(self, method: LowRank, mbr: StandardMBR, sentences: Sequence[Sentence]) -> None:
        self._method, self._seed, self._sentences = method, mbr.settings.seed, sentences
        self._scorer = mbr.utility.start(sentences)

    @property
    def encode_seconds(self) -> float:
        return self._scorer.encode_seconds

    def score(self, asks: Sequence[Ask]) -> list[Array]:
        masks, parts = [], []
        for ask in asks:
            rng = generator(self._seed, self._sentences[ask.sentence].id, "low-rank")
            rows, columns = len(ask.hypotheses), len(ask.references)
            mask = np.zeros((rows, columns), dtype=np.bool_)
            mask.flat[rng.permutation(rows * columns)[: self._method.scored(rows * columns)]] = True
            masks.append((mask, rng))
            for column in np.flatnonzero(mask.any(axis=0)).tolist():
                parts.append(Ask(ask.sentence, ask.hypotheses[mask[:, column]], (ask.references[column],)))
        found, tables = iter(self._scorer.score(parts)), []
        for mask, rng in masks:
            values = np.zeros(mask.shape)
            for column in np.flatnonzero(mask.any(axis=0)).tolist():
                values[mask[:, column], column] = np.asarray(next(found), dtype=np.float64)[:, 0]
            tables.append(values if mask.all() else complete(values, mask, self._method.rank, rng))
        return tables


def complete(values: Array, mask: NDArray[np.bool_], rank: int, rng: np.random.Generator) -> Array:
    """The completed table. The known values (where `mask` is True) are first scaled to mean 0 and standard deviation 1,
    so that one regularization suits every utility, and a row without known values becomes average instead of 0."""
    known = values[mask]
    mean, deviation = float(known.mean()), float(known.std())
    if deviation <= 1e-12 * max(1.0, abs(mean)):  # all known values are equal
        return np.full(values.shape, mean)
    start = [rng.random((size, rank)) * (size * rank) ** -0.5 for size in values.shape]
    x, y = factorize(np.where(mask, (values - mean) / deviation, 0.0), mask, (start[0], start[1]))
    return np.asarray(x @ y.T * deviation + mean)


def factorize(
    matrix: Array,
    mask: NDArray[np.bool_],
    start: tuple[Array, Array],
    *,
    iterations: int = 10,  # the paper's
    regularization: float = 1.0,  # of scaled utilities; the paper's 0.1, of unscaled ones, lost more with chrF++
) -> tuple[Array, Array]:
    """Factors (rows, rank) and (columns, rank) whose product approximates the matrix where `mask` is True, by
    alternating least squares. The matrix must be 0 elsewhere."""
    x, y = start
    known = mask.astype(np.float64)
    for _ in range(iterations):
        x = _solved(matrix, known, y, regularization)
        y = _solved(matrix.T, known.T, x, regularization)
    return x, y


def _solved(matrix: Array, known: Array, other: Array, regularization: float) -> Array:
    """(rows, rank): the least-squares solution for each row over its known columns."""
    rank = other.shape[1]
    upper = np.triu_indices(rank)  # the systems are symmetric
    systems = np.empty((len(matrix), rank, rank))
    systems[:, upper[0], upper[1]] = known @ (other[:, upper[0]] * other[:, upper[1]])
    systems[:, upper[1], upper[0]] = systems[:, upper[0], upper[1]]
    systems += regularization * np.eye(rank)
    return np.asarray(np.linalg.solve(systems, (matrix @ other)[:, :, None])[:, :, 0], dtype=np.float64)
