"""A neural utility in a race: a bank of vectors for the window, filled step by step, and a head over it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, require
from mbrace.schedule import doubling
from mbrace.utilities.neural.ahead import EncodedAhead
from mbrace.utilities.neural.head import Head
from mbrace.utilities.neural.pairs import Block, to_device
from mbrace.utilities.rebuilt import Rebuilt
from mbrace.utility import Ask, Sentence

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class TextEncoder(Protocol):
    """Strings to vectors: a transformer here, or a server."""

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""

    @property
    def truncated(self) -> int:
        """How many strings so far were over the length limit and cut."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), float32."""
        ...


class _Rows:
    """Rows of numbers on a device, added step by step."""

    def __init__(self) -> None:
        self._stored: Tensor | None = None  # with room for more
        self._count = 0

    def add(self, rows: Tensor) -> int:
        """Where the first of the new rows is."""
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

    def __getitem__(self, numbers: NDArray[np.int64]) -> Tensor:
        assert self._stored is not None
        return self._stored[to_device(numbers, self._stored.device)]


class Bank:
    """Vectors of distinct strings. Each string goes through the encoder once."""

    def __init__(self, encoder: TextEncoder, ahead: EncodedAhead | None = None) -> None:
        self._encoder, self._ahead = encoder, ahead
        self._numbers: dict[str, int] = {}
        self._vectors = _Rows()

    def add(self, texts: Iterable[str]) -> None:
        """Embed the strings not known yet, in one stream; those that were encoded ahead are there."""
        new = [text for text in dict.fromkeys(texts) if text not in self._numbers]
        if self._ahead is not None:
            for begun, vectors in self._ahead.take(new):
                self._store(begun, vectors)
            new = [text for text in new if text not in self._numbers]
        if new:
            self._store(new, self._encoder.embed(new))

    def _store(self, texts: Sequence[str], vectors: Tensor) -> None:
        first = self._vectors.add(vectors)
        self._numbers.update(zip(texts, range(first, first + len(texts)), strict=True))

    def numbers(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Which rows hold these strings."""
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def __getitem__(self, numbers: NDArray[np.int64]) -> Tensor:
        return self._vectors[numbers]


class _Encoded:
    """Of each hypothesis of one sentence, its row in the bank and its row among the head's parts; -1: not encoded."""

    def __init__(self) -> None:
        self._rows = np.empty((2, 0), dtype=np.int64)

    def new(self, hypotheses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of these hypotheses that are not encoded."""
        missing = int(hypotheses.max(initial=-1)) + 1 - self._rows.shape[1]
        if missing > 0:
            self._rows = np.concatenate([self._rows, np.full((2, missing), -1, dtype=np.int64)], axis=1)
        unknown: NDArray[np.bool_] = self._rows[0, hypotheses] < 0
        return hypotheses[unknown]

    def add(self, hypotheses: NDArray[np.int64], bank_rows: NDArray[np.int64], first: int) -> None:
        """Hypotheses that are encoded now; the head's parts of them begin at row `first`."""
        self._rows[0, hypotheses] = bank_rows
        self._rows[1, hypotheses] = first + np.arange(len(hypotheses))

    def rows(self, hypotheses: NDArray[np.int64]) -> NDArray[np.int64]:
        """(2, hypotheses): rows in the bank, and among the head's parts."""
        return self._rows[:, hypotheses]


class RaceScorer:
    """The Scorer of one window. A hypothesis is embedded when it is first asked about: one that has nothing to race for
    costs nothing, and hypotheses share the stream of batches with the pseudo-references of the same time step."""

    def __init__(
        self,
        encoder: TextEncoder,
        head: Head,
        sentences: Sequence[Sentence],
        *,
        reads_source: bool,
        ahead: EncodedAhead | None = None,
    ) -> None:
        self.encode_seconds = 0.0
        self._encoder, self._head, self._reads_source = encoder, head, reads_source
        self._bank = Bank(encoder, ahead)
        self._prepared = _Rows()  # the head's parts of hypotheses
        self._sentences = sentences
        self._encoded = [_Encoded() for _ in sentences]
        if reads_source:
            for sentence in sentences:
                if sentence.source is None:
                    raise UserError(f"record {sentence.id!r}: source: missing; this metric scores with the source")

    def score(self, asks: Sequence[Ask]) -> Sequence[NDArray[np.float32]]:
        """Embed what is new in one stream over all asks, then score their pairs."""
        torch = require("torch", extra="neural")
        with torch.inference_mode():
            began = time.perf_counter()
            new = [(ask.sentence, self._encoded[ask.sentence].new(ask.hypotheses)) for ask in asks]
            self._bank.add(
                text for ask, (_, indexes) in zip(asks, new, strict=True) for text in self._texts(ask, indexes)
            )
            self._prepare([(sentence, indexes) for sentence, indexes in new if len(indexes)])
            if self._encoder.device.type == "cuda":
                torch.cuda.synchronize(self._encoder.device)
            self.encode_seconds += time.perf_counter() - began
            tables = self._head.score(self._blocks(asks))
            if self._encoder.device.type == "cpu":
                return [table.numpy() for table in tables]
            flat = torch.cat([table.flatten() for table in tables]).cpu().numpy()  # one copy from the device
            parts = np.split(flat, np.cumsum([table.numel() for table in tables])[:-1])
            return [part.reshape(tuple(table.shape)) for part, table in zip(parts, tables, strict=True)]

    def _texts(self, ask: Ask, new: NDArray[np.int64]) -> Iterable[str]:
        """The strings of an ask that may have to be embedded."""
        sentence = self._sentences[ask.sentence]
        for index in new.tolist():
            yield sentence.hypotheses[index]
        if len(new) and self._reads_source and sentence.source is not None:
            yield sentence.source
        yield from ask.references

    def _prepare(self, new: Sequence[tuple[int, NDArray[np.int64]]]) -> None:
        """The head's part of new hypotheses: of all sentences in one call on a GPU; on a CPU one by one, as the head
        scores there."""
        if self._encoder.device.type == "cpu" and len(new) > 1:
            for one in new:
                self._prepare([one])
        elif new:
            texts = [[self._sentences[sentence].hypotheses[i] for i in indexes.tolist()] for sentence, indexes in new]
            numbers = [self._bank.numbers(each) for each in texts]
            sizes, sources = [len(each) for each in numbers], None
            if self._reads_source:
                given = [self._sentences[sentence].source or "" for sentence, _ in new]
                sources = self._bank[np.repeat(self._bank.numbers(given), sizes)]
            first = self._prepared.add(self._head.prepare(self._bank[np.concatenate(numbers)], sources))
            for (sentence, indexes), rows in zip(new, numbers, strict=True):
                self._encoded[sentence].add(indexes, rows, first)
                first += len(rows)

    def _blocks(self, asks: Sequence[Ask]) -> list[Block]:
        """The vectors of all asks, looked up in three calls: a GPU waits longer for each than it takes."""
        if not asks:
            return []
        torch = require("torch", extra="neural")
        rows = [self._encoded[ask.sentence].rows(ask.hypotheses) for ask in asks]
        references = [self._bank.numbers(ask.references) for ask in asks]
        heights, widths = [each.shape[1] for each in rows], [len(each) for each in references]
        bank_rows, prepared_rows = np.concatenate(rows, axis=1)
        sides = zip(
            torch.split(self._bank[bank_rows], heights),
            torch.split(self._prepared[prepared_rows], heights),
            torch.split(self._bank[np.concatenate(references)], widths),
            zip((each[0] for each in rows), references, strict=True),
            strict=True,
        )
        return [Block(*each) for each in sides]


class NeuralUtility(Rebuilt):
    """What Comet, Embedding and Learned share: an encoder, a head, and both ways to score with them."""

    name: str
    schedule = doubling(8, 256)
    encoder: TextEncoder
    head: Head
    needs_source: bool
    _ahead: EncodedAhead | None = None

    @property
    def truncated(self) -> int:
        """How many strings so far were over the length limit and cut."""
        return self.encoder.truncated

    def start(self, sentences: Sequence[Sentence]) -> RaceScorer:
        """Begin the races of a window."""
        return RaceScorer(self.encoder, self.head, sentences, reads_source=self.needs_source, ahead=self._ahead)

    def encode_ahead(self, texts: Sequence[str]) -> None:
        """Strings that a race is going to ask for: on a GPU they are encoded from now on (see ahead.py)."""
        if self.encoder.device.type == "cuda" and texts:
            if self._ahead is None:
                self._ahead = EncodedAhead(self.encoder.embed, self.encoder.device)
            self._ahead.begin(texts)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of hypothesis i against reference i (and source i); each distinct string embedded once."""
        if self.needs_source and sources is None:
            raise UserError(f"{self.name} scores with the source: give sources")
        used = [hypotheses, references, *([sources] if self.needs_source and sources is not None else [])]
        return aligned_scores(self.encoder, self.head, used)


def aligned_scores(encoder: TextEncoder, head: Head, used: Sequence[Sequence[str]]) -> NDArray[np.float32]:
    """Scores (rows,) of aligned texts: hypotheses, references and perhaps sources."""
    torch = require("torch", extra="neural")
    if len({len(texts) for texts in used}) > 1:
        raise UserError(f"pairs: lists of different lengths ({', '.join(str(len(texts)) for texts in used)})")
    if not used[0]:
        return np.empty(0, dtype=np.float32)
    with torch.inference_mode():
        bank = Bank(encoder)
        bank.add(text for texts in used for text in texts)
        numbers = [bank.numbers(texts) for texts in used]
        scores = []
        for begin in range(0, len(used[0]), 4096):
            sides = [bank[part[begin : begin + 4096]] for part in numbers]
            scores.append(head.aligned(sides[0], sides[1], sides[2] if len(sides) > 2 else None).cpu())
        return torch.cat(scores).numpy()  # type: ignore[no-any-return]
