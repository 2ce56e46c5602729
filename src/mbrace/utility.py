"""The protocols of utilities, and a Python function as a utility.

A utility sees a whole window of sentences at once: `start` begins their races, then `score` is called once per time
step with what every sentence still open asks for. So a neural utility gets one large batch, and a native one has work
for every core.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, counted
from mbrace.records import Record
from mbrace.sampler import doubling

Number = TypeVar("Number", bound=np.floating)


class Sentence(NamedTuple):
    """One race of a window, as its utility sees it: the source where there is one, and the distinct hypotheses.

    `hypotheses` may grow at its end during the race; an index into it always means the same string.
    """

    id: str | int
    source: str | None
    hypotheses: Sequence[str]


class Ask(NamedTuple):
    """A request to score these hypotheses of a sentence against these distinct pseudo-references.

    Asks say what to encode: only hypotheses named in an ask are encoded, and no pair is asked for twice. The arrays of
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
            "utility of a race; choose the best hypothesis by it alone (`mbrace rerank`), or only those that race "
            "(`mbrace rerank --top K`)"
        )


@runtime_checkable
class ParallelUtility(Protocol):
    """A utility that works on several threads, and can also run on one thread next to races on other threads."""

    @property
    def workers(self) -> int:
        """Its threads. In a race they also prune."""

    def single_threaded(self) -> Utility:
        """The same utility on one thread, which may score from several threads at once."""
        ...


def _has(thing: object, *members: str) -> bool:
    """Whether it has all of these. (`isinstance` of a protocol takes longer than a small race, up to Python 3.11.)"""
    return all(getattr(thing, name, None) is not None for name in members)


def utility_of(thing: object) -> Utility | None:
    """The object, if it scores pairs."""
    return cast(Utility, thing) if _has(thing, "name", "schedule", "needs_source", "start", "pairs") else None


def quality_of(thing: object) -> QualityUtility | None:
    """The object, if it estimates quality."""
    return cast(QualityUtility, thing) if _has(thing, "name", "reads_references", "quality") else None


def parallel_of(utility: Utility) -> ParallelUtility | None:
    """The utility, if it works on several threads."""
    return cast(ParallelUtility, utility) if _has(utility, "single_threaded", "workers") else None


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


def truncated_texts(utility: Utility | QualityUtility) -> int:
    """How many texts the utility has cut so far at its limit, its `truncated`; 0 if it has no limit."""
    return int(getattr(utility, "truncated", 0))


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


def utility_cost(utility: Utility) -> Cost:
    """What the utility has asked of a server so far, its `cost`; zero if it uses none."""
    found: Cost = getattr(utility, "cost", Cost())
    return found


def interrupt_utility(utility: Utility) -> None:
    """End the utility's waits for a server, now and in future, by its `interrupt`; nothing if it has none."""
    getattr(utility, "interrupt", lambda: None)()


# A Python function as a utility

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
    code = getattr(function, "__code__", None)
    if code is not None and code.co_argcount == 2:  # at once: a signature takes as long as a small race
        return False
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


# What implementations of utilities share


def split_tables(flat: NDArray[Number], asks: Sequence[Ask]) -> list[NDArray[Number]]:
    """A table (hypotheses, references) per ask, from the scores of all their pairs, end to end."""
    tables, begin = [], 0
    for ask in asks:
        rows, columns = len(ask.hypotheses), len(ask.references)
        tables.append(flat[begin : begin + rows * columns].reshape(rows, columns))
        begin += rows * columns
    return tables


def check_source(record: Record, utility: Utility) -> None:
    """Refuse a record without a source, for a utility that needs one."""
    if utility.needs_source and record.source is None:
        raise record.error(f"source: missing; utility {short_name(utility)} scores with the source")


def score_asks(scorer: Scorer, asks: Sequence[Ask], name: str) -> Sequence[NDArray[np.floating]]:
    """The scorer's table for each ask; `name` is the utility's."""
    tables = scorer.score(asks)
    if len(tables) != len(asks):
        raise UserError(f"utility {name}: returned {counted(len(tables), 'table')} for {counted(len(asks), 'ask')}")
    return tables


def check_aligned(utility: str, **columns: Sequence[str]) -> None:
    """Refuse lists of different lengths, by name: `hypotheses`, then `references`, `sources` or both."""
    (first, texts), *others = columns.items()
    for kind, aligned in others:
        if len(aligned) != len(texts):
            raise UserError(f"utility {utility}: {len(texts)} {first} but {len(aligned)} {kind}; give one for each")


def short_name(utility: Utility) -> str:
    """What a message calls a utility: its signature without options."""
    return utility.name.split("|")[0]


def pair_columns(
    utility: Utility, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None
) -> list[Sequence[str]]:
    """What a call of `pairs` scores: hypotheses, references and, if the utility needs them, sources; checked."""
    columns = {"hypotheses": hypotheses, "references": references}
    if utility.needs_source:
        if sources is None:
            raise UserError(f"utility {short_name(utility)}: scores with the source; give sources")
        columns["sources"] = sources
    check_aligned(utility.name, **columns)
    return list(columns.values())


# Threads


def cores() -> int:
    """The number of cores this process may run on (a container or `taskset` may allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_most_helpers: int | None = None  # None: as many as there are cores


def limit_helpers(threads: int | None) -> None:
    """Let `helper_threads` return at most `threads` from now on (None: all cores)."""
    global _most_helpers
    _most_helpers = threads


def helper_threads() -> int:
    """Threads for work outside a single-threaded utility: pruning, forecasts, tokenising."""
    return cores() if _most_helpers is None else min(cores(), _most_helpers)
