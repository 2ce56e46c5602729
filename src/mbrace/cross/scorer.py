"""Cross-encoders in a race: the pairs of all asks of a time step are scored in one stream, no pair twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.metrics.base import Rebuilt
from mbrace.neural.batches import BatchStream
from mbrace.neural.tokens import Tokens
from mbrace.sampler import doubling
from mbrace.utility import (
    Ask,
    Sentence,
    check_aligned,
    pair_columns,
    refuse_quality_only,
    split_tables,
)


class Numbers:
    """Distinct strings of a window, numbered."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """The numbers of strings; the same string has the same number."""
        found = []
        for text in texts:
            number = self._numbers.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
            found.append(number)
        return np.array(found, dtype=np.int64)


class Pieces(Numbers):
    """Strings that are tokenised once, and joined to rows of a network. The first numbers are of `fixed` token ids."""

    def __init__(self, tokenize: Callable[[Sequence[str]], Tokens], fixed: Sequence[Sequence[int]] = ()) -> None:
        super().__init__()
        self._tokenize, self._tokens = tokenize, Tokens.of(fixed)
        self.texts += [""] * len(fixed)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(pieces,): their numbers of tokens."""
        new = self.texts[len(self._tokens) :]
        if new:
            self._tokens = self._tokens.joined(self._tokenize(new))
        return self._tokens.lengths

    def join(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tokens:
        """Token ids of rows (rows, parts) of pieces end to end, of each piece the first `lengths` (rows, parts)."""
        sizes = lengths.ravel()
        begins = self._tokens.starts[rows].ravel() - (np.cumsum(sizes) - sizes)
        return Tokens(self._tokens.flat[np.repeat(begins, sizes) + np.arange(sizes.sum())], lengths.sum(axis=1))


class WindowScorer:
    """The Scorer of one window, whose strings have numbers. `pairs` has no sentences."""

    utility: CrossEncoder
    encode_seconds = 0.0  # spent so far on inputs without a reference

    def __init__(self, utility: CrossEncoder, sentences: Sequence[Sentence], number: Numbers) -> None:
        self.utility, self._sentences, self.number = utility, sentences, number

    def scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of distinct pairs; `sources` is empty where the utility does not read them."""
        raise NotImplementedError

    def qualities(self, hypotheses: NDArray[np.int64], sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores (hypotheses,) of distinct hypotheses with their sources alone, where the utility estimates quality."""
        raise NotImplementedError

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float32]]:
        """One table per ask, (hypotheses, references)."""
        columns: list[list[NDArray[np.int64]]] = [[], [], []]
        for ask in asks:
            sentence, rows, width = self._sentences[ask.sentence], len(ask.hypotheses), len(ask.references)
            hypotheses = (sentence.hypotheses[index] for index in ask.hypotheses.tolist())
            columns[0].append(np.repeat(self.number(hypotheses), width))
            columns[1].append(np.tile(self.number(ask.references), rows))
            if self.utility.needs_source:
                columns[2].append(np.repeat(self.number([sentence.source or ""]), rows * width))
        return split_tables(self.score_pairs([np.concatenate(column) for column in columns if column]), asks)

    def score_pairs(self, columns: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Scores of pairs, given as columns of numbers: hypotheses, references and, if the utility reads them, sources.
        Equal pairs are scored once."""
        if not columns or not len(columns[0]):
            return np.empty(0, dtype=np.float32)
        (hypotheses, references, *sources), index = _distinct(columns)
        return self.scores(hypotheses, references, sources[0] if sources else np.empty(0, dtype=np.int64))[index]


class CrossEncoder(Rebuilt):
    """What BLEURT, XCOMET and MetricX share: scoring the pairs of a race, and aligned pairs."""

    name: str
    schedule = doubling(8, 256)
    needs_source: bool
    stream: BatchStream

    def scorer(self, sentences: Sequence[Sentence]) -> WindowScorer:
        """The scorer of a window of these sentences."""
        raise NotImplementedError

    @property
    def truncated(self) -> int:
        """How many texts (strings, or inputs joined from them) so far were longer than the limit and cut."""
        return self.stream.truncated

    def start(self, sentences: Sequence[Sentence]) -> WindowScorer:
        """Begin the races of a window."""
        refuse_quality_only(self)
        return self.scorer(sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of hypothesis i against reference i (and source i); equal pairs are scored once."""
        refuse_quality_only(self)
        scorer, columns = self.scorer([]), pair_columns(self, hypotheses, references, sources)
        return scorer.score_pairs([scorer.number(texts) for texts in columns])


class CrossUtility(CrossEncoder):
    """A cross-encoder that may also estimate the quality of a hypothesis with its source alone: XCOMET and MetricX."""

    reads_references: bool  # if not, it can only estimate quality
    reads_sources: bool

    def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> NDArray[np.float32]:
        """Scores (hypotheses,) of hypothesis i with source i and no reference; equal ones are scored once."""
        if not self.reads_sources:
            raise UserError(f"{self.name} does not read the source, so it cannot estimate quality without a reference")
        check_aligned(self.name, hypotheses=hypotheses, sources=sources)
        if not hypotheses:
            return np.empty(0, dtype=np.float32)
        scorer = self.scorer([])
        columns, index = _distinct([scorer.number(hypotheses), scorer.number(sources)])
        return scorer.qualities(*columns)[index]


def _distinct(columns: Sequence[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """The distinct rows of aligned columns, and for each row which of them it is."""
    key = columns[0]
    for column in columns[1:]:
        _, key = np.unique(key, return_inverse=True)  # small numbers again, so that the product cannot overflow
        key = key.ravel() * (int(column.max()) + 1) + column
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return [column[first] for column in columns], index.ravel()
