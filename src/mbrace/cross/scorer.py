"""Cross-encoders in a race: the pairs of all asks of a time step are scored in one stream, no pair twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mbrace.cross.batches import CHUNK, BatchStream, InputRows, Pieces
from mbrace.errors import UserError, warn
from mbrace.metrics.base import Rebuilt
from mbrace.sampler import doubling
from mbrace.utility import (
    Ask,
    Sentence,
    check_aligned,
    pair_columns,
    refuse_quality_only,
    split_tables,
)

HYPOTHESIS, REFERENCE, SOURCE = ROLES = ("hypothesis", "reference", "source")


class WindowScorer:
    """The Scorer of one window: its strings are numbered, and tokenised once, in `pieces`. `pairs` has no sentences."""

    utility: CrossEncoder
    pieces: Pieces
    encode_seconds = 0.0  # spent so far on inputs without a reference

    def __init__(self, utility: CrossEncoder, sentences: Sequence[Sentence]) -> None:
        self.utility, self._sentences = utility, sentences

    def number(self, texts: Iterable[str], role: str) -> NDArray[np.int64]:
        """The numbers of strings as hypotheses, references or sources. Here they are tokenised alike in every role."""
        return self.pieces.number(texts)

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
            columns[0].append(np.repeat(self.number(hypotheses, HYPOTHESIS), width))
            columns[1].append(np.tile(self.number(ask.references, REFERENCE), rows))
            if self.utility.needs_source:
                columns[2].append(np.repeat(self.number([sentence.source or ""], SOURCE), rows * width))
        return split_tables(self.score_pairs([np.concatenate(column) for column in columns if column]), asks)

    def score_pairs(self, columns: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Scores of pairs, given as columns of numbers: hypotheses, references and, if the utility reads them, sources.
        Equal pairs are scored once."""
        if not columns or not len(columns[0]):
            return np.empty(0, dtype=np.float32)
        (hypotheses, references, *sources), index = _distinct(columns)
        found = self.scores(hypotheses, references, sources[0] if sources else np.empty(0, dtype=np.int64))
        self.utility.warn_of_truncation()
        return found[index]


class CrossEncoder(Rebuilt):
    """What BLEURT, XCOMET and MetricX share: scoring the pairs of a race, and aligned pairs."""

    name: str
    schedule = doubling(8, 256)
    needs_source: bool
    stream: BatchStream
    _warned_of_truncation = False

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
        scorer, texts = self.scorer([]), pair_columns(self, hypotheses, references, sources)
        return scorer.score_pairs([scorer.number(*both) for both in zip(texts, ROLES, strict=False)])

    def warn_of_truncation(self) -> None:
        """Say so once if texts were cut."""
        if self.truncated and not self._warned_of_truncation:
            self._warned_of_truncation = True
            limit = f"length limit of {self.stream.limit} tokens"
            warn(f"{self.name}: text over the metric's {limit} is cut there, as the original cuts it")


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
        columns, index = _distinct([scorer.number(hypotheses, HYPOTHESIS), scorer.number(sources, SOURCE)])
        found = scorer.qualities(*columns)
        self.warn_of_truncation()
        return found[index]


def _distinct(columns: Sequence[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """The distinct rows of aligned columns, and for each row which of them it is."""
    key = columns[0]
    for column in columns[1:]:
        _, key = np.unique(key, return_inverse=True)  # small numbers again, so that the product cannot overflow
        key = key.ravel() * (int(column.max()) + 1) + column
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return [column[first] for column in columns], index.ravel()


def chunks(parts: Sequence[NDArray[np.int64] | int], size: int = CHUNK) -> Iterator[InputRows]:
    """Rows of aligned columns of piece numbers (or one for all rows), a chunk at a time."""
    count = max(len(part) for part in parts if not isinstance(part, int))
    for begin in range(0, count, size):
        end = min(begin + size, count)
        columns = [np.full(end - begin, part) if isinstance(part, int) else part[begin:end] for part in parts]
        yield InputRows(np.arange(begin, end), np.stack(columns, axis=1).astype(np.int64))
