"""A plain Python function as a utility."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.schedule import doubling
from mbrace.scoring import pair_columns, split_tables
from mbrace.utility import Ask, Sentence, Utility, refuse_quality_only, utility_of

PairFunction: TypeAlias = Callable[[str, str], float] | Callable[[str, str, str], float]
BatchFunction: TypeAlias = (
    Callable[[Sequence[str], Sequence[str]], Sequence[float]]
    | Callable[[Sequence[str], Sequence[str], Sequence[str]], Sequence[float]]
)


class Pairwise:
    """A Python function as a utility.

    The function is `function(hypothesis, reference) -> float`, or with `batch=True` `function(hypotheses, references)
    -> floats` over aligned lists of pairs from all open sentences. A function with a third parameter,
    `function(hypothesis, reference, source)`, also gets the source (or sources); `source` says so where its signature
    does not. Its numbers are kept in 64 bits.
    """

    def __init__(
        self,
        function: PairFunction | BatchFunction,
        *,
        batch: bool = False,
        source: bool | None = None,
        name: str | None = None,
        schedule: tuple[int, ...] | None = None,
    ) -> None:
        self.function: Callable[..., Any] = function
        self.batch = batch
        self.needs_source = _takes_source(function) if source is None else source
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.schedule = schedule or doubling(16, 256)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float64]:
        """Scores of aligned pairs, (pairs,)."""
        columns = [list(column) for column in pair_columns(self, hypotheses, references, sources)]
        if self.batch:
            values = np.asarray(self.function(*columns), dtype=np.float64)
            if values.shape != (len(hypotheses),):
                raise UserError(
                    f"utility {self.name}: returned shape {values.shape} for a batch of {len(hypotheses)} pairs; "
                    "return one number per pair"
                )
            return values
        found = list(map(self.function, *columns))
        if set(map(type, found)) != {float}:
            found = [self._number(value) for value in found]
        return np.array(found, dtype=np.float64)

    def _number(self, value: Any) -> float:
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"utility {self.name}: returned a number too large for 64 bits for a pair") from None
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

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float64]]:
        hypotheses: list[str] = []
        references: list[str] = []
        sources: list[str] | None = [] if self._utility.needs_source else None
        for ask in asks:
            sentence = self._sentences[ask.sentence]
            for index in ask.hypotheses:
                hypotheses.extend([sentence.hypotheses[index]] * len(ask.references))
                references.extend(ask.references)
            if sources is not None:
                sources.extend([sentence.source or ""] * (len(ask.hypotheses) * len(ask.references)))
        return split_tables(self._utility.pairs(hypotheses, references, sources), asks)


def _takes_source(function: Callable[..., Any]) -> bool:
    """Whether a function has a third parameter that is required, or that is named source or sources."""
    if isinstance(function, FunctionType) and not vars(function) and function.__code__.co_argcount < 3:
        return False  # a shortcut, as `signature` is slow; a function that wraps another has attributes
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # raised for some functions written in C
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    third = positional[2:3]
    return any(p.default is p.empty or p.name in ("source", "sources") for p in third)


def as_utility(utility: Utility | PairFunction) -> Utility:
    """A utility as it is, or a plain function of hypothesis, reference and perhaps source wrapped as one."""
    if isinstance(utility, type) and isinstance(utility, Utility):
        name = utility.__name__
        raise UserError(f"utility {name}: is a class; give an object of it, such as mbrace.{name}()")
    refuse_quality_only(utility)
    if (ready := utility_of(utility)) is not None:
        return ready
    if callable(utility):
        return Pairwise(utility)
    raise UserError(f"utility {utility!r}: give a utility such as mbrace.ChrF(), or function(hypothesis, reference)")
