"""Pseudo-references that stand for many others: the aggregates or centroids that some methods score.

Each is a string, its name, so that the race can treat it as any other pseudo-reference; only a utility that supports
them (`AggregatingUtility`, `CentroidUtility`) can score them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mbrace.randomness import key
from mbrace.records import Record
from mbrace.sampler import Draws, FunctionDrawer, Sampler, Want, checked_draws


class Aggregate(str):
    """A pseudo-reference that is the average of distinct `texts`, with `weights`, (texts,)."""

    texts: Sequence[str]
    weights: NDArray[np.float64]

    def __new__(cls, name: str, texts: Sequence[str], weights: NDArray[np.float64]) -> Aggregate:
        """A string that is its name; what it stands for is in its attributes."""
        made = super().__new__(cls, name)
        made.texts, made.weights = texts, weights
        return made


@dataclass(frozen=True)
class Clustering:
    """Distinct `texts` with `weights`, (texts,), for the utility to cluster. Centroids count equally if `equal`, else
    each by the weights of the texts in its cluster."""

    texts: Sequence[str]
    weights: NDArray[np.float64]
    equal: bool
    seed: int


class Centroid(str):
    """A pseudo-reference that is the centre of one cluster of a `clustering`, whose centroids are scored together."""

    clustering: Clustering

    def __new__(cls, name: str, clustering: Clustering) -> Centroid:
        """A string that is its name; what it stands for is in its attributes."""
        made = super().__new__(cls, name)
        made.clustering = clustering
        return made


@dataclass(frozen=True)
class Grouped:
    """A sampler that draws from another one and replaces each record's draws by what `group` makes of them."""

    sampler: Sampler
    group: Callable[[Record, Draws], Draws]

    def start(self, records: Sequence[Record]) -> FunctionDrawer:
        """Begin a window."""
        drawer = self.sampler.start(records)

        def draw(wants: Sequence[Want]) -> list[Draws]:
            found = checked_draws(drawer.draw(wants), wants, records)
            pairs = zip(wants, found, strict=True)
            return [self.group(records[want.sentence], draws) if draws.texts else draws for want, draws in pairs]

        return FunctionDrawer(draw)


def aggregated(draws: Draws, count: int) -> Draws:
    """The draws as `count` aggregates of consecutive ones (fewer if there are fewer draws). The weight of an aggregate
    is the sum of its members' weights."""
    if draws.logprobs is None:
        parts = np.array_split(np.arange(len(draws.texts)), min(count, len(draws.texts)))
        members = [_distinct([draws.texts[position] for position in part.tolist()]) for part in parts]
    else:
        texts, weights = _weighted(draws)
        parts = np.array_split(np.arange(len(texts)), min(count, len(texts)))
        members = [([texts[position] for position in part.tolist()], weights[part]) for part in parts]
    return _aggregates(members)


def clustered(draws: Draws, count: int, *, equal: bool, seed: int, record: Record) -> Draws:
    """The draws as the centroids of `count` clusters. If at most `count` of them are distinct, each becomes an
    aggregate of its own, weighted by how often it was drawn, which is standard MBR."""
    texts, weights = _distinct(draws.texts) if draws.logprobs is None else _weighted(draws)
    if len(texts) <= count:
        return _aggregates([([text], weights[[position]]) for position, text in enumerate(texts)])
    clustering = Clustering(
        texts, weights, equal=equal and draws.logprobs is None, seed=key(seed, record.id, "centroids")
    )
    return Draws([Centroid(f"centroid {number} of {count}", clustering) for number in range(1, count + 1)])


def _aggregates(members: Sequence[tuple[Sequence[str], NDArray[np.float64]]]) -> Draws:
    made = [Aggregate(f"aggregate {n} of {len(members)}", *member) for n, member in enumerate(members, 1)]
    totals = [float(weights.sum()) for _, weights in members]
    return Draws(made, None if len(set(totals)) == 1 else [math.log(total) for total in totals])


def _distinct(texts: Sequence[str]) -> tuple[list[str], NDArray[np.float64]]:
    """Distinct texts, and how often each occurs."""
    counts = Counter(texts)  # in the order in which they first occur
    return list(counts), np.array([*counts.values()], dtype=np.float64)


def _weighted(draws: Draws) -> tuple[list[str], NDArray[np.float64]]:
    """Distinct texts weighted by their probabilities; for copies with different log-probabilities, by their average, as
    in a race."""
    assert draws.logprobs is not None
    found: dict[str, list[float]] = {}
    for text, logprob in zip(draws.texts, draws.logprobs, strict=True):
        found.setdefault(text, []).append(float(logprob))
    means = np.array([math.fsum(values) / len(values) for values in found.values()])
    return list(found), np.maximum(np.exp(means - means.max()), np.finfo(np.float64).tiny)
