"""A neural utility in a race: a bank of vectors for the window, filled step by step, and a head over it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, require
from mbrace.schedule import doubling
from mbrace.utilities.neural.encoder import Encoder
from mbrace.utilities.neural.head import Block, Head, moved
from mbrace.utility import Ask, Sentence

if TYPE_CHECKING:
    from torch import Tensor


class Bank:
    """The vectors of a window's strings: each distinct string goes through the encoder once."""

    def __init__(self, encoder: Encoder) -> None:
        torch = require("torch", extra="neural")
        self._encoder = encoder
        self._numbers: dict[str, int] = {}
        self._vectors: Tensor = torch.empty((0, encoder.units), device=encoder.device)

    def add(self, texts: Iterable[str]) -> None:
        """Embed the strings not known yet, in one stream."""
        torch = require("torch", extra="neural")
        new = [text for text in dict.fromkeys(texts) if text not in self._numbers]
        if not new:
            return
        first, needed = len(self._numbers), len(self._numbers) + len(new)
        if needed > len(self._vectors):  # grow by half at least, so that steps do not copy everything each time
            room = torch.empty((max(needed, first * 3 // 2), self._encoder.units), device=self._encoder.device)
            room[:first] = self._vectors[:first]
            self._vectors = room
        self._vectors[first:needed] = self._encoder.embed(new)
        self._numbers.update(zip(new, range(first, needed), strict=True))

    def numbers(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Which rows hold these strings."""
        return np.array([self._numbers[text] for text in texts], dtype=np.int64)

    def __getitem__(self, numbers: NDArray[np.int64]) -> Tensor:
        return self._vectors[moved(numbers, self._vectors.device)]


class RaceScorer:
    """The Scorer of one window. A sentence is embedded when it is first asked for: one that has nothing to race for
    costs nothing, and its hypotheses share the stream of the first step's pseudo-references."""

    def __init__(self, encoder: Encoder, head: Head, sentences: Sequence[Sentence], *, reads_source: bool) -> None:
        self.encode_seconds = 0.0
        self._encoder, self._head, self._reads_source = encoder, head, reads_source
        self._bank = Bank(encoder)
        self._sentences = sentences
        self._known: dict[int, tuple[NDArray[np.int64], Tensor]] = {}  # rows of the hypotheses, and their part
        if reads_source:
            for sentence in sentences:
                if sentence.source is None:
                    raise UserError(f"record {sentence.id!r}: source: missing; this metric scores with the source")

    def score(self, asks: Sequence[Ask]) -> Sequence[NDArray[np.float32]]:
        """Embed what is new in one stream over all asks, then score their pairs."""
        torch = require("torch", extra="neural")
        with torch.inference_mode():
            began = time.perf_counter()
            self._bank.add(text for ask in asks for text in self._new_strings(ask))
            self._prepare([ask.sentence for ask in asks if ask.sentence not in self._known])
            if self._encoder.device.type == "cuda":
                torch.cuda.synchronize(self._encoder.device)
            self.encode_seconds += time.perf_counter() - began
            tables = self._head.score([self._block(ask) for ask in asks])
            if self._encoder.device.type == "cpu":
                return [table.numpy() for table in tables]
            flat = torch.cat([table.flatten() for table in tables]).cpu().numpy()  # one copy from the device
            parts = np.split(flat, np.cumsum([table.numel() for table in tables])[:-1])
            return [part.reshape(tuple(table.shape)) for part, table in zip(parts, tables, strict=True)]

    def _new_strings(self, ask: Ask) -> Iterable[str]:
        sentence = self._sentences[ask.sentence]
        if ask.sentence not in self._known:
            yield from sentence.hypotheses
            if self._reads_source and sentence.source is not None:
                yield sentence.source
        yield from ask.references

    def _prepare(self, positions: Sequence[int]) -> None:
        """The parts of the hypotheses of sentences asked for the first time: in one go on a GPU, on a CPU one by one,
        as the head scores there."""
        if self._encoder.device.type == "cpu" and len(positions) > 1:
            for position in positions:
                self._prepare([position])
        elif positions:
            torch = require("torch", extra="neural")
            sentences = [self._sentences[position] for position in positions]
            numbers = [self._bank.numbers(sentence.hypotheses) for sentence in sentences]
            sizes, sources = [len(each) for each in numbers], None
            if self._reads_source:
                texts = [sentence.source for sentence in sentences if sentence.source is not None]
                sources = self._bank[np.repeat(self._bank.numbers(texts), sizes)]
            parts = torch.split(self._head.prepare(self._bank[np.concatenate(numbers)], sources), sizes)
            self._known.update(zip(positions, zip(numbers, parts, strict=True), strict=True))

    def _block(self, ask: Ask) -> Block:
        numbers, prepared = self._known[ask.sentence]
        survivors, references = numbers[ask.survivors], self._bank.numbers(ask.references)
        kept = moved(ask.survivors, prepared.device)
        return Block(self._bank[survivors], prepared[kept], self._bank[references], (survivors, references))


class NeuralUtility:
    """What Comet, Embedding and Learned share: an encoder, a head, and both ways to score with them."""

    name: str
    schedule = doubling(8, 256)
    encoder: Encoder
    head: Head
    needs_source: bool

    @property
    def truncated(self) -> int:
        """How many strings so far were over the length limit and cut."""
        return self.encoder.truncated

    def start(self, sentences: Sequence[Sentence]) -> RaceScorer:
        """Begin the races of a window."""
        return RaceScorer(self.encoder, self.head, sentences, reads_source=self.needs_source)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of hypothesis i against reference i (and source i); each distinct string embedded once."""
        torch = require("torch", extra="neural")
        if self.needs_source and sources is None:
            raise UserError(f"{self.name} scores with the source: give sources")
        if not hypotheses:
            return np.empty(0, dtype=np.float32)
        used = [hypotheses, references, *([sources] if self.needs_source and sources is not None else [])]
        if len({len(texts) for texts in used}) > 1:
            raise UserError(f"pairs: lists of different lengths ({', '.join(str(len(texts)) for texts in used)})")
        with torch.inference_mode():
            bank = Bank(self.encoder)
            bank.add(text for texts in used for text in texts)
            numbers = [bank.numbers(texts) for texts in used]
            scores = []
            for begin in range(0, len(hypotheses), 4096):
                sides = [bank[part[begin : begin + 4096]] for part in numbers]
                scores.append(self.head.aligned(sides[0], sides[1], sides[2] if len(sides) > 2 else None).cpu())
            return torch.cat(scores).numpy()  # type: ignore[no-any-return]
