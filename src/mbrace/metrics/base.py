"""What metrics share: a base for string metrics, threads, and pickling of utilities with a model."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mbrace.utility import Ask, Sentence, check_aligned, cores

Metric = TypeVar("Metric", bound="Multithreaded")


class Multithreaded:
    """A string metric, a dataclass, with a number of `threads` that changes no score; None is all cores."""

    threads: int | None

    @property
    def workers(self) -> int:
        """The threads that count and, in a race, prune."""
        return cores() if self.threads is None else self.threads

    def single_threaded(self: Metric) -> Metric:
        """The same metric on one thread, for races on several threads at once."""
        return replace(self, threads=1)  # type: ignore[type-var]


class Rebuilt:
    """Pickled as the arguments it was made with: the hooks and GPU memory of a model cannot be pickled."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """Remember the arguments for `__reduce__`."""
        made = super().__new__(cls)
        made._made_with = arguments, options
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """The class and its arguments: an equal object is made where this one is unpickled."""
        arguments, options = self._made_with
        return partial(type(self), **options), arguments


Prepared = TypeVar("Prepared")


class StringMetric(ABC, Generic[Prepared]):
    """A utility made of two steps: prepare a string, and score prepared hypotheses against prepared references."""

    schedule: ClassVar[tuple[int, ...]] = (16, 32, 64, 128, 256)
    needs_source: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Its signature, for results."""

    @abstractmethod
    def preparer(self) -> Callable[[str], Prepared]:
        """A function that prepares strings. Only strings prepared by the same function may be compared."""

    @abstractmethod
    def table(self, hypotheses: Sequence[Prepared], references: Sequence[Prepared]) -> NDArray[np.floating]:
        """(hypotheses, references): their utilities."""

    def start(self, sentences: Sequence[Sentence]) -> StringMetricScorer[Prepared]:
        """Begin the races of a window."""
        return StringMetricScorer(self, sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores of aligned pairs, (pairs,)."""
        scores = [self.table([h], [r])[0, 0] for h, r in self.prepared_pairs(hypotheses, references)]
        return np.array(scores, dtype=np.float32)

    def prepared_pairs(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[tuple[Prepared, Prepared]]:
        """Aligned pairs, prepared."""
        check_aligned(self.name, hypotheses=hypotheses, references=references)
        prepared = []
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            prepare = self.preparer()
            prepared.append((prepare(hypothesis), prepare(reference)))
        return prepared


class StringMetricScorer(Generic[Prepared]):
    """Scores the races of one window. A string is prepared when it is first needed, once for both roles."""

    def __init__(self, utility: StringMetric[Prepared], sentences: Sequence[Sentence]) -> None:
        self._utility = utility
        self._sentences = sentences
        self._preparers = [utility.preparer() for _ in sentences]
        self._prepared: list[dict[str, Prepared]] = [{} for _ in sentences]
        self.encode_seconds = 0.0

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.floating]]:
        """The utilities of each ask, (hypotheses, references)."""
        return [self._table(ask) for ask in asks]

    def _table(self, ask: Ask) -> NDArray[np.floating]:
        began = time.perf_counter()
        texts = self._sentences[ask.sentence].hypotheses
        hypotheses = self._prepare(ask.sentence, [texts[row] for row in ask.hypotheses])
        references = self._prepare(ask.sentence, ask.references)
        self.encode_seconds += time.perf_counter() - began
        return self._utility.table(hypotheses, references)

    def _prepare(self, sentence: int, texts: Sequence[str]) -> list[Prepared]:
        known, prepare = self._prepared[sentence], self._preparers[sentence]
        for text in texts:
            if text not in known:
                known[text] = prepare(text)
        return [known[text] for text in texts]


class Alphabet:
    """Turns texts into strings with one character per word, so that comparing characters compares words."""

    def __init__(self, words_of: Callable[[str], Sequence[str]]) -> None:
        self._words_of = words_of
        self._characters: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """One character per word of the text; the same word always gets the same character."""
        characters = self._characters
        return "".join([characters.setdefault(word, chr(len(characters))) for word in self._words_of(text)])
