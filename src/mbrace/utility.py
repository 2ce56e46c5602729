"""What a race, a job and the other commands ask of a utility, in protocols.

A utility sees a whole window of sentences at once: `start` begins their races, then `score` is called once per time
step with what every sentence still open asks for. So a neural utility gets one large batch, and a native one has work
for every core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.protocols import implements


class Sentence(NamedTuple):
    """One race of a window, as its utility sees it: the source where there is one, and the distinct hypotheses.

    `hypotheses` may grow at its end while the race goes on; an index into it always means the same string.
    """

    id: str | int
    source: str | None
    hypotheses: Sequence[str]


class Ask(NamedTuple):
    """A request to score these hypotheses of a sentence against these distinct pseudo-references.

    Asks say what to encode: a hypothesis that no ask names costs nothing, and no pair is asked for twice. The arrays of
    an ask are read-only.
    """

    sentence: int  # index into the window given to `start`
    hypotheses: NDArray[np.int64]  # indexes into `Sentence.hypotheses`, ascending
    references: Sequence[str]


class Scorer(Protocol):
    """Lives as long as the races of one window and holds what was encoded for them."""

    @property
    def encode_seconds(self) -> float:
        """Seconds spent so far on single strings; the rest of the time in `score` is for pairs."""

    def score(self, asks: Sequence[Ask]) -> Sequence[NDArray[np.floating]]:
        """One table per ask, (hypotheses, references)."""
        ...


@runtime_checkable
class Utility(Protocol):
    """A utility u(hypothesis, reference); higher is better. What else it can do is in the protocols below."""

    @property
    def name(self) -> str:
        """Its signature, for results."""

    @property
    def schedule(self) -> tuple[int, ...]:
        """Default sample sizes."""

    @property
    def needs_source(self) -> bool:
        """Whether it scores with the source: then `Sentence.source` and the `sources` of `pairs` are given."""

    def start(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window."""
        ...

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.floating]:
        """Scores of aligned pairs, (pairs,): hypothesis i against reference i."""
        ...


@runtime_checkable
class QualityUtility(Protocol):
    """Estimates the quality of a hypothesis from its source, without a reference; higher is better. It scores each
    hypothesis only once, so it can choose among many before a race, or without one."""

    @property
    def name(self) -> str:
        """Its signature, for results."""

    @property
    def reads_references(self) -> bool:
        """Whether it scores against a reference too, and is a `Utility` as well."""

    def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> NDArray[np.floating]:
        """Scores (hypotheses,): hypothesis i with source i."""
        ...


def refuse_quality_only(utility: object) -> None:
    """Refuse a utility that reads no references: it cannot be the utility of a race."""
    quality = quality_of(utility)
    if quality is not None and not quality.reads_references:
        raise UserError(
            f"utility {quality.name}: estimates quality from the source and reads no reference, so it cannot be the "
            "utility of a race; choose the best hypothesis by it alone (`mbrace rerank`), or let it choose which "
            "hypotheses race (`qe`)"
        )


@runtime_checkable
class ParallelUtility(Protocol):
    """A utility that works on several threads, and can also run on one thread next to races on other threads."""

    @property
    def workers(self) -> int:
        """Its threads. In a race they also prune."""

    @property
    def group_size(self) -> int:
        """How many sentences to race at a time, where that is faster than the whole window at once."""

    def single_threaded(self) -> Utility:
        """The same utility on one thread, which may score from several threads at once."""
        ...


# Each of these returns the object with the type of a protocol that it implements, or None. They are called in every
# `decode`, so they use `implements`, which is faster than `isinstance`.


def utility_of(thing: object) -> Utility | None:
    """The object, if it scores pairs."""
    return cast(Utility, thing) if implements(thing, Utility) else None


def quality_of(thing: object) -> QualityUtility | None:
    """The object, if it estimates quality."""
    return cast(QualityUtility, thing) if implements(thing, QualityUtility) else None


def parallel_of(utility: Utility) -> ParallelUtility | None:
    """The utility, if it works on several threads."""
    return cast(ParallelUtility, utility) if implements(utility, ParallelUtility) else None


@runtime_checkable
class CorpusUtility(Protocol):
    """A utility with a corpus score of its own, from statistics that add up over sentences."""

    def corpus(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """The corpus score of aligned texts."""
        ...

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
        """(pairs, ...): what each pair adds to the corpus score."""
        ...

    def from_statistics(self, totals: NDArray[np.int64]) -> float:
        """The corpus score of `statistics` summed over pairs."""
        ...


@runtime_checkable
class AggregatingUtility(Protocol):
    """A utility that can score against the average of several references."""

    def start_aggregates(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window whose pseudo-references are `mbrace.aggregates.Aggregate`."""
        ...


@runtime_checkable
class CentroidUtility(Protocol):
    """A utility that can cluster references and score against the centres of clusters."""

    def start_centroids(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window whose pseudo-references are `mbrace.aggregates.Centroid` (each ask has all
        centroids of one clustering) or `mbrace.aggregates.Aggregate`."""
        ...


@runtime_checkable
class SelfScaledUtility(Protocol):
    """A utility whose scale may come from the first table of a sentence."""

    @property
    def scales_by_first_table(self) -> bool:
        """Whether the first table of a sentence sets its scale."""


@runtime_checkable
class TruncatingUtility(Protocol):
    """A utility with a limit on the length of a text."""

    @property
    def truncated(self) -> int:
        """How many texts so far were longer than the limit and cut there."""


def truncated_texts(utility: Utility | QualityUtility) -> int:
    """How many texts the utility has cut so far; 0 if it has no limit."""
    return utility.truncated if isinstance(utility, TruncatingUtility) else 0


@dataclass(frozen=True)
class Cost:
    """What a utility asked of a server: requests answered, answers reused from earlier runs instead of asked for, and
    tokens as the server counts them."""

    requests: int = 0
    kept_answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@runtime_checkable
class MeteredUtility(Protocol):
    """A utility that asks a server, which may charge for it."""

    @property
    def cost(self) -> Cost:
        """What it has asked of the server so far."""


def utility_cost(utility: Utility) -> Cost:
    """What the utility has asked of a server so far; zero if it uses none."""
    return utility.cost if isinstance(utility, MeteredUtility) else Cost()
