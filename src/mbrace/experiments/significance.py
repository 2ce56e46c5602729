"""Intervals for one system and paired tests for two.

`paired_tests` is Koehn's (2004) paired bootstrap and paired approximate randomisation. The random numbers are those
of sacreBLEU for the same seed, so that the p-values agree to the last digit. They differ only when shuffles tie with
the observed difference: sacreBLEU does not count those, and so finds a system different from itself (see `_p_value`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.metrics.chrf import ChrF
from mbrace.utility import CorpusUtility, Utility

# From statistics summed over sentences, (samples, k), to scores, (samples,)
FromTotals: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]

PART_VALUES = 1 << 21  # random numbers in memory at a time
FEW = 10  # sentences that differ; with more, a bootstrap can tell systems apart
ROUNDING = 1e-10  # equal sums may differ by this much when added in another order


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
    half = student(0.975, degrees) * float(averages.std(ddof=1)) / np.sqrt(len(averages))
    return max(least, float(averages.mean() - half)), min(most, float(averages.mean() + half))


def student_tail(t: float, degrees: int) -> float:
    """P(T > t) for Student's T with a whole number of degrees of freedom: the finite sums of Abramowitz and Stegun,
    26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(degrees))
    term, total = math.cos(angle) ** (degrees % 2), 0.0
    for power in range(degrees % 2, degrees - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    inside = math.sin(angle) * total  # P(-t < T < t)
    if degrees % 2:
        inside = (angle + inside) * 2 / math.pi
    return max(0.0, (1 - inside) / 2)  # far out, rounding could make it negative


@lru_cache(maxsize=64)
def student(probability: float, degrees: int) -> float:
    """The t that Student's T does not exceed with this probability, at least 1/2: by bisection."""
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > 1 - probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > 1 - probability else (low, middle)
    return high


@dataclass(frozen=True)
class Equivalence:
    """Is a paired difference inside -margin .. margin? `low` and `high` end its 90% interval.

    The interval lies inside exactly if two one-sided t-tests, each at 5%, reject "it is at or below -margin" and "it is
    at or above margin" (Schuirmann 1987). An interval that crosses an end shows nothing: neither a difference nor that
    there is none.
    """

    difference: float
    low: float
    high: float
    margin: float
    p: float  # of the two tests, the larger one

    @property
    def inside(self) -> bool:
        """Shown to be within the margin."""
        return -self.margin < self.low and self.high < self.margin

    @property
    def outside(self) -> bool:
        """Shown to be beyond the margin."""
        return self.high < -self.margin or self.low > self.margin


def equivalence(a: NDArray[np.float64], b: NDArray[np.float64], margin: float) -> Equivalence:
    """Two one-sided paired t-tests of scores (sentences,) or (sentences, trials), which are averaged over trials first.

    A single sentence has no interval: nothing is shown then.
    """
    differences = a - b if a.ndim == 1 else (a - b).mean(axis=1)
    mean, count = float(differences.mean()), len(differences)
    half = math.inf
    if count > 1:
        half = student(0.95, count - 1) * float(differences.std(ddof=1)) / math.sqrt(count)
    p = max(p_above_zero(margin - differences), p_above_zero(margin + differences))
    return Equivalence(mean, mean - half, mean + half, margin, p)


def p_above_zero(values: NDArray[np.float64]) -> float:
    """p-value of a one-sided t-test that the mean of values (sentences,) is above 0; 1 for a single sentence."""
    if len(values) < 2:
        return 1.0
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    return student_tail(mean / error, len(values) - 1) if error > 0 else float(mean <= 0)


def sentence_interval(values: NDArray[np.float64], *, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95% interval over sentences, from (sentences,) or (sentences, trials): percentiles of bootstrapped means.

    The interval says how far another sample of sentences could move the number.
    """
    averages = values if values.ndim == 1 else values.mean(axis=1)
    count = len(averages)
    means = resampled_counts(count, resamples, seed) @ averages / count
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def ratio_interval(a: NDArray[np.float64], b: NDArray[np.float64], *, resamples: int = 2000) -> tuple[float, float]:
    """95% interval of sum(a) / sum(b) over sentences, by bootstrap; both are (sentences,), such as counts of calls.

    Resamples in which `b` is 0 are left out (sentences without a race make no calls); 1 to 1 if it is 0 in all.
    """
    counts = resampled_counts(len(a), resamples)
    counts = counts[counts @ b > 0]
    if not len(counts):
        return 1.0, 1.0
    low, high = np.percentile((counts @ a) / (counts @ b), [2.5, 97.5])
    return float(low), float(high)


@lru_cache(maxsize=4)
def resampled_counts(count: int, resamples: int, seed: int = 0) -> NDArray[np.float64]:
    """How often each resample has each sentence, (resamples, sentences); drawn once for many intervals."""
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    return draws.astype(np.float64)


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
    differ: int  # sentences whose scores differ

    @property
    def few_differ(self) -> bool:
        """Whether so few sentences differ that only randomisation can be trusted: the bootstrap's p is then just how
        often a resample happens to draw those sentences at least twice as often as others."""
        return 0 < self.differ < FEW


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

    generator = np.random.default_rng(seed)
    drawn = []
    for rows in _parts(resamples, count):
        draws = generator.choice(count, size=(rows, count), replace=True)
        counts = np.stack([np.bincount(draw, minlength=count) for draw in draws]).astype(np.float64)
        drawn.append(score(counts @ a) - score(counts @ b))
    differences = np.concatenate(drawn)
    centred = np.abs(differences) - np.abs(differences).mean()

    generator = np.random.default_rng(seed)
    shuffled = []
    for rows in _parts(shuffles, count):
        kept = generator.integers(2, size=(rows, count), dtype=bool).astype(np.float64)
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
        differ=int(np.count_nonzero((a != b).any(axis=1))),
    )


def _parts(rows: int, count: int) -> Iterator[int]:
    """How many resamples of `count` sentences to make at a time: a few megabytes' worth.

    Each part but the last is a multiple of 32 rows. A call of the generator takes 32 bits for 32 coins and drops what
    is left over, so the coins are those of a single call for all rows, which is what sacreBLEU makes.
    """
    size = 32 * max(1, PART_VALUES // (32 * count))
    for first in range(0, rows, size):
        yield min(size, rows - first)


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
    references: Sequence[str] | Sequence[Sequence[str]],
    utility: Utility,
    *,
    sources: Sequence[str] | None = None,
    resamples: int = 1000,
    shuffles: int = 10000,
    seed: int = 12345,
) -> list[Comparison]:
    """Compare two systems' outputs by sentence average, and by corpus score if the utility has one.

    `references` has one text per sentence, or is a list of several such lists: see `Evaluated`.
    """
    options: dict[str, Any] = {"resamples": resamples, "shuffles": shuffles, "seed": seed}
    return compare_evaluated(*(Evaluated.of(system, references, utility, sources) for system in (a, b)), **options)


@dataclass(frozen=True)
class Evaluated:
    """A system's output, scored: `scores` (sentences,), and what it adds to the utility's corpus score, if it has one.

    With several references a sentence has the score of the reference that it is closest to, and adds that one's counts
    to the corpus score, as sacreBLEU's chrF has it.
    """

    scores: NDArray[np.float64]
    statistics: NDArray[np.float64] | None  # (sentences, k)
    corpus_of: FromTotals | None  # corpus scores, (samples,), of summed statistics, (samples, k)

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        references: Sequence[str] | Sequence[Sequence[str]],
        utility: Utility,
        sources: Sequence[str] | None = None,
    ) -> Evaluated:
        """Score the texts of a system."""
        several = [references] if not references or isinstance(references[0], str) else references
        corpus = utility if isinstance(utility, CorpusUtility) else None
        if len(several) > 1 and corpus is not None and not isinstance(utility, ChrF):
            raise UserError(f"utility {utility.name}: takes one reference per sentence; give one file of references")
        scores = np.stack([utility.pairs(texts, one, sources) for one in several]).astype(np.float64)  # type: ignore[arg-type]
        closest = scores.argmax(axis=0)  # the first of equal ones
        found = scores[closest, np.arange(len(texts))]
        if corpus is None:
            return cls(found, None, None)
        chosen = [several[index][row] for row, index in enumerate(closest.tolist())]
        statistics = corpus.statistics(texts, chosen)
        shape = statistics.shape[1:]

        def corpus_of(totals: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.array([corpus.from_statistics(row.reshape(shape)) for row in totals])

        return cls(found, statistics.reshape(len(texts), -1).astype(np.float64), corpus_of)

    @property
    def corpus(self) -> float | None:
        """The corpus score; None if the utility has none."""
        if self.statistics is None or self.corpus_of is None:
            return None
        return float(self.corpus_of(self.statistics.sum(axis=0)[None])[0])


def compare_evaluated(a: Evaluated, b: Evaluated, **options: Any) -> list[Comparison]:
    """Compare two systems by sentence average, and by corpus score if there is one; options as for `compare`."""
    average = averages(len(a.scores))
    found = [paired_tests(a.scores[:, None], b.scores[:, None], average, measure="sentence average", **options)]
    if a.statistics is not None and b.statistics is not None and a.corpus_of is not None:
        found.append(paired_tests(a.statistics, b.statistics, a.corpus_of, measure="corpus", **options))
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for the number of tests (Holm 1979): the smallest times all, the next times one fewer, ...

    Each is at least as large as those before it, and at most 1.
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
