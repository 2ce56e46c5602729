"""What a race asks of a utility, and how a plain Python function becomes one.

A utility sees a whole window of sentences at once: `start` is given their hypotheses, then `score` is called once a
time step with the new pseudo-references of every sentence still open. So a neural utility gets one large batch, and a
native one has work for every core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.schedule import doubling


@dataclass(frozen=True)
class Sentence:
    """One race of a window, as its utility sees it: distinct hypotheses, and the source where there is one."""

    id: str | int
    source: str | None
    hypotheses: Sequence[str]


@dataclass(frozen=True)
class Ask:
    """Score these hypotheses of a sentence against these pseudo-references, new and distinct."""

    sentence: int  # position in the window given to `start`
    survivors: NDArray[np.int64]  # positions in `Sentence.hypotheses`
    references: Sequence[str]


class Scorer(Protocol):
    """Lives as long as the races of one window and holds what was encoded for them."""

    encode_seconds: float  # spent so far on single strings; the rest of `score` is for pairs

    def score(self, asks: Sequence[Ask]) -> Sequence[NDArray[np.float32]]:
        """One table for each ask, (survivors, references)."""
        ...


@runtime_checkable
class Utility(Protocol):
    """A utility u(hypothesis, reference); higher is better."""

    @property
    def name(self) -> str:
        """Its signature, for results."""

    @property
    def schedule(self) -> tuple[int, ...]:
        """Default sample sizes."""

    @property
    def needs_source(self) -> bool:
        """Whether `Sentence.source` must be there."""

    def start(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window."""
        ...

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores of aligned pairs, (pairs,): hypothesis i against reference i."""
        ...


PairFunction: TypeAlias = Callable[[str, str], float]
BatchFunction: TypeAlias = Callable[[Sequence[str], Sequence[str]], Sequence[float]]


class Pairwise:
    """A Python function as a utility: `function(hypothesis, reference) -> float`, or with `batch=True`
    `function(hypotheses, references) -> floats` over aligned lists that span all open sentences."""

    needs_source = False

    def __init__(
        self,
        function: PairFunction | BatchFunction,
        *,
        batch: bool = False,
        name: str | None = None,
        schedule: tuple[int, ...] | None = None,
    ) -> None:
        self.function: Callable[..., Any] = function
        self.batch = batch
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.schedule = schedule or doubling(16, 256)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores of aligned pairs, (pairs,)."""
        if self.batch:
            values = np.asarray(self.function(list(hypotheses), list(references)), dtype=np.float32)
            if values.shape != (len(hypotheses),):
                raise UserError(
                    f"utility {self.name}: returned shape {values.shape} for a batch of {len(hypotheses)} pairs; "
                    "return one number for each pair"
                )
            return values
        return np.array([self._number(h, r) for h, r in zip(hypotheses, references, strict=True)], dtype=np.float32)

    def _number(self, hypothesis: str, reference: str) -> float:
        value = self.function(hypothesis, reference)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UserError(f"utility {self.name}: returned {value!r} for a pair; return one number") from None

    def start(self, sentences: Sequence[Sentence]) -> _PairwiseScorer:
        """Begin the races of a window."""
        return _PairwiseScorer(self, sentences)


class _PairwiseScorer:
    encode_seconds = 0.0

    def __init__(self, utility: Pairwise, sentences: Sequence[Sentence]) -> None:
        self._utility = utility
        self._sentences = sentences

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float32]]:
        hypotheses: list[str] = []
        references: list[str] = []
        for ask in asks:
            texts = self._sentences[ask.sentence].hypotheses
            for survivor in ask.survivors:
                hypotheses.extend([texts[survivor]] * len(ask.references))
                references.extend(ask.references)
        flat = self._utility.pairs(hypotheses, references)
        ends = np.cumsum([len(ask.survivors) * len(ask.references) for ask in asks])
        tables = np.split(flat, ends[:-1])
        return [table.reshape(len(a.survivors), len(a.references)) for a, table in zip(asks, tables, strict=True)]


def as_utility(utility: Utility | PairFunction) -> Utility:
    """A utility as it is, or a plain `function(hypothesis, reference) -> float` wrapped as one."""
    if isinstance(utility, Utility):
        return utility
    if callable(utility):
        return Pairwise(utility)
    raise UserError(f"utility {utility!r}: give a utility such as mbrace.ChrF(), or function(hypothesis, reference)")
