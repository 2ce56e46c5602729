"""Intervals for one system and paired tests for two.

`paired_tests` is Koehn's (2004) paired bootstrap and paired approximate randomisation. The random numbers are those
of sacreBLEU for the same seed, so that the p-values agree to the last digit. They differ only when shuffles tie with
the observed difference: sacreBLEU does not count those, and so finds a system different from itself (see `_p_value`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.utility import CorpusUtility, Utility

# From statistics summed over sentences, (samples, k), to scores, (samples,)
FromTotals: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]

ROUNDING = 1e-10  # equal sums may differ by this much when added in another order
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # 97.5% for 1 .. 10 degrees


def trial_interval(
    values: NDArray[np.float64], *, least: float = -math.inf, most: float = math.inf
) -> tuple[float, float]:
    """95% interval of the mean over trials, from (sentences, trials): Student's t over the trials' averages.

    The sentences are fixed: the interval says how far other random trials could move the number. It ends at `least` and
    `most`, the bounds of what is measured, which Student's t does not know.
    """
    averages = values.mean(axis=0)
    degrees = len(averages) - 1
    if degrees < 1:
        return float("nan"), float("nan")
    z = NormalDist().inv_cdf(0.975)
    large = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    student = STUDENT[degrees - 1] if degrees <= len(STUDENT) else large
    half = student * float(averages.std(ddof=1)) / np.sqrt(len(averages))
    return max(least, float(averages.mean() - half)), min(most, float(averages.mean() + half))


def sentence_interval(values: NDArray[np.float64], *, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95% interval over sentences, from (sentences,) or (sentences, trials): percentiles of bootstrapped means.

    The interval says how far another sample of sentences could move the number.
    """
    averages = values if values.ndim == 1 else values.mean(axis=1)
    count = len(averages)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    means = draws @ averages / count
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """System A against system B on one score. `wins`: the share of resamples in which A scores higher (Koehn 2004)."""

    measure: str
    a: float
    b: float
    difference: float  # a - b
    low: float  # 95% interval of the difference, by bootstrap
    high: float
    wins: float
    p_bootstrap: float
    p_randomisation: float


def paired_tests(
    a: NDArray[Any],
    b: NDArray[Any],
    score: FromTotals,
    *,
    measure: str = "sentence average",
    resamples: int = 1000,
    shuffles: int = 10000,
    seed: int = 12345,
) -> Comparison:
    """Both tests for the statistics `a` and `b`, each (sentences, k); `score` turns their sums into scores."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    count = len(a)
    if len(b) != count or count == 0:
        raise UserError(f"{count} and {len(b)} sentences: a paired test needs the same sentences, at least one")
    score_a, score_b = (float(score(stats.sum(axis=0)[None])[0]) for stats in (a, b))
    observed = abs(score_a - score_b)

    draws = np.random.default_rng(seed).choice(count, size=(resamples, count), replace=True)
    counts = np.stack([np.bincount(draw, minlength=count) for draw in draws]).astype(np.float64)
    differences = score(counts @ a) - score(counts @ b)
    centred = np.abs(differences) - np.abs(differences).mean()

    generator = np.random.default_rng(seed)
    shuffled = []
    for flips in np.array_split(generator.integers(2, size=(shuffles, count), dtype=bool), max(1, shuffles // 500)):
        kept = flips.astype(np.float64)
        first, second = kept @ a + (1 - kept) @ b, (1 - kept) @ a + kept @ b
        shuffled.append(np.abs(score(first) - score(second)))
    low, high = np.percentile(differences, [2.5, 97.5])
    return Comparison(
        measure=measure,
        a=score_a,
        b=score_b,
        difference=score_a - score_b,
        low=float(low),
        high=float(high),
        wins=float(np.mean(differences > 0)),
        p_bootstrap=_p_value(centred, observed),
        p_randomisation=_p_value(np.concatenate(shuffled), observed),
    )


def _p_value(statistics: NDArray[np.float64], observed: float) -> float:
    """Chance of a difference at least as large as the observed one; one is added so that it is never zero.

    sacreBLEU counts only larger ones. If two systems are equal, or differ in one sentence, every shuffle gives exactly
    the observed difference: sacreBLEU's p is then the smallest possible, although there is no evidence at all.
    """
    if observed == 0:  # no difference is no evidence
        return 1.0
    return (int(np.count_nonzero(statistics >= observed - ROUNDING)) + 1) / (len(statistics) + 1)


def averages(count: int) -> FromTotals:
    """A function from summed sentence scores to their average over `count` sentences."""
    return lambda totals: totals[:, 0] / count


def compare(
    a: Sequence[str],
    b: Sequence[str],
    references: Sequence[str],
    utility: Utility,
    *,
    sources: Sequence[str] | None = None,
    resamples: int = 1000,
    shuffles: int = 10000,
    seed: int = 12345,
) -> list[Comparison]:
    """Compare two systems' outputs by sentence average, and by corpus score if the utility has one."""
    options: dict[str, Any] = {"resamples": resamples, "shuffles": shuffles, "seed": seed}
    scores = [utility.pairs(system, references, sources)[:, None] for system in (a, b)]
    found = [paired_tests(scores[0], scores[1], averages(len(references)), measure="sentence average", **options)]
    if isinstance(utility, CorpusUtility):
        stats = [utility.statistics(system, references) for system in (a, b)]
        shape, from_totals = stats[0].shape[1:], utility.from_statistics

        def corpus(totals: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.array([from_totals(row.reshape(shape)) for row in totals])

        flat = [table.reshape(len(table), -1) for table in stats]
        found.append(paired_tests(flat[0], flat[1], corpus, measure="corpus", **options))
    return found
