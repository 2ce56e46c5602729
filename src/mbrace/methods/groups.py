"""Pseudo-references that stand for several others: what aggregation and centroids share, and what utilities with
embeddings score against."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mbrace.records import relative_probabilities
from mbrace.sampler import Draws
from mbrace.utility import Scorer, Sentence


@runtime_checkable
class GroupingUtility(Protocol):
    """A utility with embeddings, which can score against the average of several, or the centre of a cluster."""

    def start_groups(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window whose pseudo-references are each a `Group`; each ask has all centres of one
        clustering, or averages."""
        ...


@dataclass(frozen=True)
class Average:
    """The average of distinct `texts`, with `weights`, (texts,)."""

    texts: Sequence[str]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Clustering:
    """Distinct `texts` with `weights`, (texts,), for the utility to cluster. Centroids count equally if `equal`, else
    each by the weights of the texts in its cluster."""

    texts: Sequence[str]
    weights: NDArray[np.float64]
    equal: bool
    seed: int


class Group(str):
    """A pseudo-reference that stands for others: an `Average`, or a centre of a `Clustering`. As a string, its name."""

    of: Any

    def __new__(cls, name: str, of: Any) -> Group:
        """A name, and what it stands for."""
        made = super().__new__(cls, name)
        made.of = of
        return made


def aggregates_of(parts: Sequence[tuple[Sequence[str], NDArray[np.float64]]]) -> Draws:
    """An aggregate per part, whose weight is the sum of the part's weights."""
    made = [Group(f"aggregate {n} of {len(parts)}", Average(*part)) for n, part in enumerate(parts, 1)]
    totals = [float(weights.sum()) for _, weights in parts]
    return Draws(made, None if len(set(totals)) == 1 else [math.log(total) for total in totals])


def weighted(draws: Draws) -> tuple[list[str], NDArray[np.float64]]:
    """Distinct texts, in the order in which they first occur, and how often each was drawn; or its probability, if
    log-probabilities are known."""
    if draws.logprobs is None:
        counts = Counter(draws.texts)
        return list(counts), np.array([*counts.values()], dtype=np.float64)
    found: dict[str, list[float]] = {}
    for text, logprob in zip(draws.texts, draws.logprobs, strict=True):
        found.setdefault(text, []).append(float(logprob))
    return list(found), np.maximum(relative_probabilities(found.values()), np.finfo(np.float64).tiny)
