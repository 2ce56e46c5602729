"""What a race asks of a utility, and how a plain Python function becomes one.

A utility sees a whole window of sentences at once: `start` begins their races, then `score` is called once per time
step with what every sentence still open asks for. So a neural utility gets one large batch, and a native one has work
for every core.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.schedule import doubling


class Sentence(NamedTuple):
    """One race of a window, as its utility sees it: the source where there is one, and the distinct hypotheses.

    `hypotheses` may grow at its end while the race goes on; an index into it always means the same string.
    """

    id: str | int
    source: str | None
    hypotheses: Sequence[str]


@dataclass(frozen=True)
class Ask:
    """Score these hypotheses of a sentence against these distinct pseudo-references.

    Asks say what to encode: a hypothesis that no ask names costs nothing, and no pair is asked for twice. Nothing in
    one can be changed.
    """

    sentence: int  # index into the window given to `start`
    hypotheses: NDArray[np.int64]  # indexes into `Sentence.hypotheses`, in growing order
    references: Sequence[str]

    def __post_init__(self) -> None:
        self.hypotheses.setflags(write=False)


class Scorer(Protocol):
    """Lives as long as the races of one window and holds what was encoded for them."""

    encode_seconds: float  # spent so far on single strings; the rest of `score` is for pairs

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
    """Estimates the quality of a hypothesis from its source, without a reference; higher is better. A pass per
    hypothesis, so it can choose among many before a race, or without one."""

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
    """Refuse as a utility of a race what scores a hypothesis without a reference."""
    if isinstance(utility, QualityUtility) and not utility.reads_references:
        raise UserError(
            f"utility {utility.name}: estimates quality from the source and reads no reference, so it cannot be the "
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
        """How many sentences of a window it races at a time, where that is faster than the whole window."""

    def single_threaded(self) -> Utility:
        """The same utility on one thread, which may score from several threads at once."""
        ...


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
        """Begin the races of a window whose pseudo-references are `mbrace.aggregates.Centroid`: in every ask those of
        one clustering, all of them; or are aggregates."""
        ...


@runtime_checkable
class EncodingUtility(Protocol):
    """A utility that spends its time on single strings."""

    def remembering(self) -> Utility:
        """The same utility, which encodes a string once for all races that it starts."""
        ...


@runtime_checkable
class SelfScaledUtility(Protocol):
    """A utility whose scale may come from the first table of a sentence."""

    @property
    def scales_by_first_table(self) -> bool:
        """Whether it does."""


@dataclass(frozen=True)
class GroupUtility:
    """A utility over what stands for many pseudo-references: `begin` is one of its methods above."""

    utility: Any
    begin: Callable[[Sequence[Sentence]], Scorer]
    name = property(lambda self: self.utility.name)
    schedule = property(lambda self: self.utility.schedule)
    needs_source = property(lambda self: self.utility.needs_source)

    def start(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window."""
        return self.begin(sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.floating]:
        """Scores of aligned pairs of strings."""
        found: NDArray[np.floating] = self.utility.pairs(hypotheses, references, sources)
        return found


@runtime_checkable
class TruncatingUtility(Protocol):
    """A utility with a limit on the length of a text."""

    @property
    def truncated(self) -> int:
        """How many texts so far were over the limit and cut there."""


def truncated_texts(utility: Utility | QualityUtility) -> int:
    """How many texts the utility has cut so far; 0 where it has no limit."""
    return utility.truncated if isinstance(utility, TruncatingUtility) else 0


@dataclass(frozen=True)
class Cost:
    """What a utility asked of a server: requests answered, their tokens as the server counts them, and answers that
    were kept from before and not asked for."""

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
        """What it has asked for so far."""


def utility_cost(utility: Utility) -> Cost:
    """What the utility has asked of a server so far; nothing where it asks none."""
    return utility.cost if isinstance(utility, MeteredUtility) else Cost()


PairFunction: TypeAlias = Callable[[str, str], float] | Callable[[str, str, str], float]
BatchFunction: TypeAlias = (
    Callable[[Sequence[str], Sequence[str]], Sequence[float]]
    | Callable[[Sequence[str], Sequence[str], Sequence[str]], Sequence[float]]
)


class Pairwise:
    """A Python function as a utility.

    The function is `function(hypothesis, reference) -> float`, or with `batch=True` `function(hypotheses, references)
    -> floats` over aligned lists that span all open sentences. One with a third argument, `function(hypothesis,
    reference, source)`, is given the source (the sources) too; `source` says so where its signature does not. Its
    numbers are kept as they are, in 64 bits.
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
        columns = [list(hypotheses), list(references)]
        if self.needs_source:
            if sources is None:
                raise UserError(f"utility {self.name}: scores with the source; give sources")
            columns.append(list(sources))
        if self.batch:
            values = np.asarray(self.function(*columns), dtype=np.float64)
            if values.shape != (len(hypotheses),):
                raise UserError(
                    f"utility {self.name}: returned shape {values.shape} for a batch of {len(hypotheses)} pairs; "
                    "return one number per pair"
                )
            return values
        return np.array([self._number(texts) for texts in zip(*columns, strict=True)], dtype=np.float64)

    def _number(self, texts: tuple[str, ...]) -> float:
        value = self.function(*texts)
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
        flat = self._utility.pairs(hypotheses, references, sources)
        ends = np.cumsum([len(ask.hypotheses) * len(ask.references) for ask in asks])
        tables = np.split(flat, ends[:-1])
        return [table.reshape(len(a.hypotheses), len(a.references)) for a, table in zip(asks, tables, strict=True)]


def _takes_source(function: Callable[..., Any]) -> bool:
    """Whether a function has a third argument that must be given, or one named source or sources."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions written in C
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
    if isinstance(utility, Utility):
        return utility
    if callable(utility):
        return Pairwise(utility)
    raise UserError(f"utility {utility!r}: give a utility such as mbrace.ChrF(), or function(hypothesis, reference)")
