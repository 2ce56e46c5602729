"""Neural utilities in a race: a bank of vectors for the window, filled step by step, and a head that scores them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.methods.groups import Average, Clustering, Group
from mbrace.metrics.base import Rebuilt
from mbrace.neural.head import Head, PairBlock, to_device
from mbrace.sampler import doubling
from mbrace.utility import Ask, Sentence, pair_columns, split_tables


class TextEncoder(Protocol):
    """Strings to vectors: a transformer here, or a server."""

    @property
    def device(self) -> torch.device:
        """The device that holds the vectors."""

    @property
    def truncated(self) -> int:
        """How many strings so far were longer than the limit and cut."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), float32."""
        ...


class GrowingRows:
    """Rows of numbers on a device, to which more can be added."""

    def __init__(self) -> None:
        self._stored: Tensor | None = None  # with room for more
        self._count = 0

    def add(self, rows: Tensor) -> int:
        """Append rows; returns the index of the first."""
        first, needed = self._count, self._count + len(rows)
        if self._stored is None or needed > len(self._stored):
            # grow by half at least, so that steps do not copy everything each time
            room = rows.new_empty((max(needed, first * 3 // 2), *rows.shape[1:]))
            if self._stored is not None:
                room[:first] = self._stored[:first]
            self._stored = room
        self._stored[first:needed] = rows
        self._count = needed
        return first

    def __getitem__(self, rows: NDArray[np.int64] | Tensor) -> Tensor:
        assert self._stored is not None
        on_device = rows if isinstance(rows, torch.Tensor) else to_device(rows, self._stored.device)
        return self._stored[on_device]


class Bank:
    """Vectors of distinct strings. Each string goes through the encoder once."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._numbers: dict[str, int] = {}
        self._vectors = GrowingRows()

    def add(self, texts: Iterable[str]) -> None:
        """Embed the strings not known yet, in one stream."""
        new = [text for text in dict.fromkeys(texts) if text not in self._numbers]
        if new:
            first = self._vectors.add(self._encoder.embed(new))
            self._numbers.update(zip(new, range(first, first + len(new)), strict=True))

    def add_vectors(self, vectors: Tensor) -> NDArray[np.int64]:
        """Add vectors that belong to no string; returns their rows."""
        first = self._vectors.add(vectors)
        return np.arange(first, first + len(vectors))

    def numbers(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The rows of these strings."""
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def __getitem__(self, numbers: NDArray[np.int64]) -> Tensor:
        return self._vectors[numbers]


class RaceScorer:
    """The Scorer of one window. A hypothesis is encoded when an ask first names it, in the same batches as the
    pseudo-references of that time step; one that no ask names costs nothing."""

    def __init__(self, encoder: TextEncoder, head: Head, sentences: Sequence[Sentence], *, reads_source: bool) -> None:
        self.encode_seconds = 0.0
        self._head, self._sentences, self._reads_source = head, sentences, reads_source
        self._bank, self._device = Bank(encoder), encoder.device

    def score(self, asks: Sequence[Ask]) -> Sequence[NDArray[np.float32]]:
        """Embed the new strings of all asks in one stream, then score all pairs."""
        if not asks:
            return []
        with torch.inference_mode():
            began = time.perf_counter()
            hypotheses = [asked_hypotheses(self._sentences, ask) for ask in asks]
            sources = [self._sentences[ask.sentence].source or "" for ask in asks] if self._reads_source else []
            references = itertools.chain.from_iterable(self._strings(ask.references) for ask in asks if ask.references)
            self._bank.add(itertools.chain(*hypotheses, sources, references))
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            self.encode_seconds += time.perf_counter() - began
            # looked up in only three calls: launching one on a GPU takes longer than its work
            sides = [
                self._vectors([self._bank.numbers(texts) for texts in hypotheses]),
                self._vectors([self._reference_rows(ask) for ask in asks]),
            ]
            if sources:
                sides.append(self._vectors([self._bank.numbers([source]) for source in sources]))
            tables = self._head.score([PairBlock(*each) for each in zip(*sides, strict=True)])
            if self._device.type == "cpu":
                return [table.numpy() for table in tables]
            flat = torch.cat([table.flatten() for table in tables])
            return split_tables(flat.cpu().numpy(), asks)  # in one copy from the device

    def _vectors(self, rows: Sequence[NDArray[np.int64]]) -> Sequence[Tensor]:
        """The vectors in these rows of the bank."""
        return torch.split(self._bank[np.concatenate(rows)], [len(each) for each in rows])

    def _strings(self, references: Sequence[str]) -> Iterable[str]:
        """The strings to embed for these references."""
        return references

    def _reference_rows(self, ask: Ask) -> NDArray[np.int64]:
        """The rows of the bank that hold the references of an ask."""
        return self._bank.numbers(ask.references)


def asked_hypotheses(sentences: Sequence[Sentence], ask: Ask) -> list[str]:
    """The hypotheses that an ask names."""
    texts = sentences[ask.sentence].hypotheses
    return [texts[index] for index in ask.hypotheses.tolist()]


class GroupScorer(RaceScorer):
    """The same for references that stand for many: averages of vectors, or centres of clusters."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._shares: dict[int, NDArray[np.float32]] = {}  # by sentence: the weights of its clusters, if they count

    def score(self, asks: Sequence[Ask]) -> Sequence[NDArray[np.float32]]:
        """As for single references, but weighted centroids have their scores multiplied by their weights, so that the
        plain average over centroids is the weighted one."""
        tables = list(super().score(asks))
        for number, ask in enumerate(asks):
            if ask.sentence in self._shares:
                tables[number] = tables[number] * (len(ask.references) * self._shares.pop(ask.sentence))
        return tables

    def _strings(self, references: Sequence[str]) -> Iterable[str]:
        groups = [each.of for each in references if isinstance(each, Group)]
        some = groups[:1] if isinstance(groups[0], Clustering) else groups  # centres share one clustering
        return itertools.chain.from_iterable(each.texts for each in some)

    def _reference_rows(self, ask: Ask) -> NDArray[np.int64]:
        groups = [each.of for each in ask.references if isinstance(each, Group)]
        if not isinstance(groups[0], Clustering):
            return self._bank.add_vectors(torch.stack([self._mean(each) for each in groups]))
        clustering = groups[0]
        vectors = self._bank[self._bank.numbers(clustering.texts)]
        centres, shares = k_means(vectors, clustering.weights, len(groups), clustering.seed)
        if not clustering.equal:
            self._shares[ask.sentence] = shares
        return self._bank.add_vectors(centres)

    def _mean(self, average: Average) -> Tensor:
        vectors = self._bank[self._bank.numbers(average.texts)]
        weights = vectors.new_tensor(average.weights / average.weights.sum())
        return (vectors * weights[:, None]).sum(dim=0)


ITERATIONS = 5  # of k-means


def k_means(vectors: Tensor, weights: NDArray[np.float64], count: int, seed: int) -> tuple[Tensor, NDArray[np.float32]]:
    """Centres (count, units) of clusters of `vectors`, (texts, units), weighted by `weights`, (texts,); and the share
    of the weights in each cluster, (count,)."""
    chosen = spread_out(vectors, weights, count, np.random.Generator(np.random.PCG64(seed)))
    centres, assigned = lloyd(vectors, weights, vectors[torch.from_numpy(chosen).to(vectors.device)])
    shares = np.bincount(assigned, weights=weights, minlength=count) / weights.sum()
    return centres, shares.astype(np.float32)


def spread_out(
    vectors: Tensor, weights: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """k-means++: indices chosen at random, each with chances in proportion to the squared distance from those
    before."""
    chosen = [_drawn(weights, rng)]
    nearest = _squares(vectors, vectors[chosen[-1]])
    while len(chosen) < count:
        chances = weights * nearest
        # if all that are left equal one that was chosen, any will do
        chosen.append(_drawn(chances if chances.sum() > 0 else weights, rng))
        nearest = np.minimum(nearest, _squares(vectors, vectors[chosen[-1]]))
    return np.array(chosen)


def lloyd(
    vectors: Tensor, weights: NDArray[np.float64], centres: Tensor, *, iterations: int = ITERATIONS
) -> tuple[Tensor, NDArray[np.int64]]:
    """Moves each centre to the mean of the vectors nearest to it, several times; returns the centres, and which one
    each vector belongs to. A centre that is nearest to no vector stays where it is."""
    counts = vectors.new_tensor(weights)
    assigned: Tensor | None = None
    for _ in range(iterations):
        nearest = torch.cdist(vectors, centres).argmin(dim=1)
        if assigned is not None and torch.equal(nearest, assigned):
            break
        assigned = nearest
        totals = counts.new_zeros(len(centres)).index_add_(0, assigned, counts)
        sums = torch.zeros_like(centres).index_add_(0, assigned, vectors * counts[:, None])
        centres = torch.where(totals[:, None] > 0, sums / totals.clamp(min=1e-30)[:, None], centres)
    assert assigned is not None
    return centres, assigned.cpu().numpy()


def _drawn(chances: NDArray[np.float64], rng: np.random.Generator) -> int:
    """A random index, in proportion to the chances."""
    ends = np.cumsum(chances)
    return int(min(np.searchsorted(ends, rng.random() * ends[-1], side="right"), np.flatnonzero(chances)[-1]))


def _squares(vectors: Tensor, centre: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = ((vectors - centre) ** 2).sum(dim=1).double().cpu().numpy()
    return found


class NeuralUtility(Rebuilt):
    """What Comet, Embedding and Learned share: an encoder, a head, and scoring with them in a race or aligned pairs."""

    name: str
    schedule = doubling(8, 256)
    encoder: TextEncoder
    head: Head
    needs_source: bool

    @property
    def truncated(self) -> int:
        """How many strings so far were longer than the limit and cut."""
        return self.encoder.truncated

    def start(self, sentences: Sequence[Sentence]) -> RaceScorer:
        """Begin the races of a window."""
        return RaceScorer(self.encoder, self.head, sentences, reads_source=self.needs_source)

    def start_groups(self, sentences: Sequence[Sentence]) -> GroupScorer:
        """The same for references that are averages of others, or centres of clusters, by their vectors."""
        return GroupScorer(self.encoder, self.head, sentences, reads_source=self.needs_source)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of hypothesis i against reference i (and source i); each distinct string is embedded once."""
        columns = pair_columns(self, hypotheses, references, sources)
        return aligned_scores(self.encoder, self.head, columns)


def aligned_scores(encoder: TextEncoder, head: Head, columns: Sequence[Sequence[str]]) -> NDArray[np.float32]:
    """Scores (rows,) of aligned columns of texts: hypotheses, references and perhaps sources."""
    if not columns[0]:
        return np.empty(0, dtype=np.float32)
    with torch.inference_mode():
        bank = Bank(encoder)
        bank.add(text for texts in columns for text in texts)
        numbers = [bank.numbers(texts) for texts in columns]
        scores = []
        for begin in range(0, len(columns[0]), 4096):
            sides = [bank[part[begin : begin + 4096]] for part in numbers]
            scores.append(head.aligned(sides[0], sides[1], sides[2] if len(sides) > 2 else None).cpu())
        return torch.cat(scores).numpy()
