"""Statistics for the verdict: sign test, paired bootstrap, Krippendorff's alpha and Fleiss' kappa."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value that wins and losses are equally likely (binomial, p = 1/2)."""
    total, larger = wins + losses, max(wins, losses)
    ways = tail = math.comb(total, larger)  # integers, so that thousands of ratings neither overflow nor underflow
    for count in range(larger, total):  # ways to win `count + 1` times, from the ways to win `count` times
        ways = ways * (total - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << total))


def sign_test_split_ties(wins: int, losses: int, ties: int) -> float:
    """The sign test with half of the ties given to each side; an odd tie is left out (Dixon and Mood, 1946)."""
    return sign_test(wins + ties // 2, losses + ties // 2)


@dataclass(frozen=True)
class Bootstrap:
    """The share of resamples of the items in which each system was ahead; in the rest, neither was."""

    a_ahead: float
    b_ahead: float
    resamples: int


def paired_bootstrap(scores: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> Bootstrap:
    """Koehn (2004): resample the items with replacement, and count how often each system is ahead.

    `scores`: (items,) the preference on each item, above 0 for A, below for B, 0 for a tie.
    """
    if not scores:
        return Bootstrap(0.0, 0.0, resamples)
    values, counts = np.unique(np.asarray(scores, dtype=np.float64), return_counts=True)
    # Drawing a count for each distinct value (multinomial) is equivalent to drawing item by item.
    drawn = np.random.default_rng(seed).multinomial(len(scores), counts / len(scores), size=resamples)
    sums = drawn @ values
    near_zero = 1e-9 * len(scores)  # sums of thirds and similar may miss 0 by rounding
    return Bootstrap(float(np.mean(sums > near_zero)), float(np.mean(sums < -near_zero)), resamples)


def krippendorff_alpha(units: Sequence[Sequence[Hashable]]) -> float | None:
    """Krippendorff's alpha for nominal data; `units` holds each item's ratings, any number of them.

    Items with fewer than two ratings say nothing about agreement and are left out. None means undefined: no two
    ratings can be compared, or all are the same.
    """
    pairable = [Counter(unit) for unit in units if len(unit) >= 2]
    totals: Counter[Hashable] = sum(pairable, Counter())
    n = totals.total()
    expected = n * n - sum(count * count for count in totals.values())
    if expected == 0:
        return None
    observed = sum(
        (unit.total() ** 2 - sum(count * count for count in unit.values())) / (unit.total() - 1) for unit in pairable
    )
    return 1 - (n - 1) * observed / expected


def fleiss_kappa(units: Sequence[Sequence[Hashable]]) -> float | None:
    """Fleiss' kappa; None if undefined: unequal numbers of ratings per item, one rating each, or all the same."""
    sizes = {len(unit) for unit in units}
    if len(sizes) != 1 or min(sizes) < 2:
        return None
    raters = sizes.pop()
    counts = [Counter(unit) for unit in units]
    agreeing = sum(sum(count * count for count in unit.values()) - raters for unit in counts)
    agreement = agreeing / (raters * (raters - 1) * len(units))
    totals: Counter[Hashable] = sum(counts, Counter())
    chance = sum((count / (raters * len(units))) ** 2 for count in totals.values())
    return None if len(totals) == 1 else (agreement - chance) / (1 - chance)
