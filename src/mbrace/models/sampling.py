"""Sampling: the draws of a batch, and a live source of pseudo-references that draws while a race is open."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mbrace.models import gpu
from mbrace.models.next_ids import (
    ArithmeticUniforms,
    DrawSettings,
    IndependentUniforms,
    kept_rows,
    next_ids,
    sentence_key,
)
from mbrace.models.search import Memory, Search, Sequences, is_end, run_searches
from mbrace.neural.device import without_cudnn_attention
from mbrace.records import Record
from mbrace.sampler import Draws, Want, source_of

if TYPE_CHECKING:
    from mbrace.models.live import LiveModel


class _Sampling(Search):
    """The draws of one batch, max(counts) rows per source (empty beyond its own count).

    Draws number first[i] .. first[i] + counts[i] - 1 of each source i, whose random key is keys[i], of at most
    limits[i] ids: int64 tensors (sources,). Scores are log-probabilities under the full model.
    """

    def __init__(
        self,
        model: LiveModel,
        memory: Memory,
        keys: Tensor,
        first: Tensor,
        counts: Tensor,
        limits: Tensor,
        settings: DrawSettings,
    ) -> None:
        self.sources = sources = len(keys)
        width = int(counts.max())
        total, device = sources * width, keys.device
        super().__init__(device, total)
        numbers = torch.arange(width, device=device)
        kind = ArithmeticUniforms if settings.arithmetic else IndependentUniforms
        self.random = kind(keys[:, None], first[:, None] + numbers)
        self.alive = (numbers < counts[:, None]).flatten()
        self.last_left = total  # rows that were alive at the last check
        self.limit = limits.repeat_interleave(width)
        self.source = torch.arange(sources, device=device).repeat_interleave(width)
        # finished rows write to row `total`, which is dropped
        self.total = total
        self.owner = torch.where(self.alive, torch.arange(total, device=device), total)
        self.out = torch.full((total + 1, int(limits.max())), -1, dtype=torch.int32, device=device)
        self.scores = torch.zeros(total + 1, dtype=torch.float32, device=device)
        self.state, self.ids = model.decoder.start(memory, width), torch.full((total,), model.start, device=device)
        self.ends, self.truncation = model.ends, settings.truncation

    def step(self) -> None:
        """Draw the next id of every row."""
        logits, bias = self.state.step(self.ids)
        chosen = next_ids(logits, bias, self.random.at(self.clock), self.truncation, self.state.used)
        self.random.advance(chosen)
        self.ids.copy_(chosen.ids)
        self.out[self.owner, self.clock] = chosen.ids.int()
        self.scores.index_add_(0, self.owner, chosen.logprobs)
        self.clock += 1
        self.alive &= ~is_end(chosen.ids, self.ends) & (self.limit > self.clock)
        self.owner.masked_fill_(~self.alive, self.total)

    def compact(self, time: int) -> bool:
        """Drop finished rows before the step at `time` if that pays; False if none is left."""
        left, rows = int(self.alive.sum()), len(self.alive)
        if left > 0 and self.worth_compacting(left, rows, time):
            self.recorder.forget()
            self._keep(left, left)
        elif 0 < left < self.last_left and self.state.used is not None:
            self._keep(left, rows)
        return left > 0

    def _keep(self, left: int, size: int) -> None:
        """Put the rows that are left first, of `size` rows."""
        rows = self.alive.nonzero()[:, 0]
        offsets = torch.searchsorted(self.source[rows], torch.arange(self.sources + 1, device=rows.device))
        rows = torch.nn.functional.pad(rows, (0, size - left))
        self.state.select(rows, offsets)
        self.random.select(rows)
        self.ids, self.alive, self.limit, self.source, self.owner = (
            kept_rows(x, rows) for x in (self.ids, self.alive, self.limit, self.source, self.owner)
        )
        self.alive[left:], self.owner[left:] = False, self.total
        self.last_left = left


class EncodedSources:
    """Sources to draw for, each encoded once, at its first draw."""

    def __init__(
        self,
        model: LiveModel,
        sources: Sequence[str],
        ids: Sequence[str | int],
        settings: DrawSettings,
    ) -> None:
        self._model, self._settings = model, settings
        self._rows = model.codec.encode(sources)
        self._blank = [not source.strip() for source in sources]
        self._keys = [sentence_key(settings.seed, name) for name in ids]
        self._memories: list[Memory] = []  # of the sources that were encoded together
        self._places: dict[int, tuple[int, int]] = {}  # of each source: its memory, and its row there

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws of each want; sentences of similar length are decoded together."""
        model = self._model
        pieces = [piece for piece in _split(wants, model.rows) if not self._blank[piece[1].sentence]]
        found: list[list[Draws]] = [[] for _ in wants]
        for i, want in enumerate(wants):  # a source without text has outputs without text
            if self._blank[want.sentence]:
                found[i].append(Draws([""] * want.count, [0.0] * want.count))
        rows = [self._rows[want.sentence] for _, want in pieces]
        parts = list(model.parts(rows, [want.count for _, want in pieces]))

        def search_part(number: int) -> tuple[list[float], torch.Tensor]:
            drawn = self._draw([pieces[p][1] for p in parts[number]])
            return drawn.scores.tolist(), drawn.ids.cpu()

        def write(number: int, drawn: tuple[list[float], torch.Tensor]) -> None:
            scores, texts = drawn[0], model.texts(drawn[1])
            width = max(pieces[p][1].count for p in parts[number])
            for row, p in enumerate(parts[number]):  # the pieces of a want come in their order
                i, want = pieces[p]
                span = slice(row * width, row * width + want.count)
                found[i].append(Draws(texts[span], scores[span]))

        # every step has a new shape
        stream = gpu.on_own_stream(model.device, "draws")
        with torch.inference_mode(), without_cudnn_attention(), stream:
            run_searches(len(parts), search_part, write, model.device)
        return [_joined(draws) for draws in found]

    def _memory(self, sentences: Sequence[int]) -> Memory:
        """The decoder's memory of these sources, which are encoded if they have not been."""
        missing = [i for i in dict.fromkeys(sentences) if i not in self._places]
        if missing:
            self._memories.append(self._model.encode([self._rows[i] for i in missing]))
            self._places.update((i, (len(self._memories) - 1, row)) for row, i in enumerate(missing))
        if list(sentences) == missing:
            return self._memories[-1]
        rows_of: dict[int, list[int]] = {}  # of each memory
        order = []  # indices into `sentences`, by memory
        for index in sorted(range(len(sentences)), key=lambda index: self._places[sentences[index]][0]):
            number, row = self._places[sentences[index]]
            rows_of.setdefault(number, []).append(row)
            order.append(index)
        device = self._model.device
        parts = [self._memories[n].select(torch.tensor(rows, device=device)) for n, rows in rows_of.items()]
        if len(parts) == 1:
            return parts[0]
        return Memory.join(parts).select(torch.tensor(order, device=device).argsort())

    def _draw(self, wants: Sequence[Want]) -> Sequences:
        """The draws of one batch: as many rows for each want as the largest has."""
        model, device = self._model, self._model.device
        memory = self._memory([want.sentence for want in wants])
        numbers = [[self._keys[want.sentence], want.first, want.count] for want in wants]
        keys, first, counts = torch.tensor(numbers, device=device).unbind(1)
        limits = model.lengths([self._rows[want.sentence] for want in wants], self._settings.max_length)
        with gpu.exclusive_start(device) as starting:
            search = _Sampling(model, memory, keys, first, counts, limits, self._settings)
            search.run(int(limits.max()), starting)
        return Sequences(search.out[:-1], search.scores[:-1])


def _split(wants: Sequence[Want], rows: int) -> list[tuple[int, Want]]:
    """Wants of at most `rows` draws, each with the index of the want it is part of."""
    pieces = []
    for i, want in enumerate(wants):
        for first in range(want.first, want.first + want.count, rows):
            pieces.append((i, Want(want.sentence, first, min(rows, want.first + want.count - first))))
    return pieces


def _joined(parts: Sequence[Draws]) -> Draws:
    return Draws([text for part in parts for text in part.texts], [p for part in parts for p in part.logprobs or []])


class ModelSampler:
    """A sampler (see mbrace.sampler) that draws pseudo-references from a model."""

    def __init__(
        self,
        model: LiveModel,
        settings: DrawSettings,
        *,
        ahead: int | Sequence[int],
        weighted: bool,
    ) -> None:
        self._model, self._settings, self.weighted = model, settings, weighted
        self.blocks = (ahead,) if isinstance(ahead, int) else tuple(ahead)  # draws are made up to the next of these
        self.drawn = 0  # pseudo-references drawn so far
        self._prefetched: _Prefetched | None = None

    def prefetch(self, sources: Sequence[str], ids: Sequence[str | int]) -> None:
        """Draw the first block of these sources in the background, such as during beam search for their hypotheses:
        concurrent searches keep a GPU busier."""
        block = self.blocks[0] if self.blocks and self._model.thread_safe else 0
        if not block or (self._prefetched is not None and self._prefetched.indices(ids, sources) is not None):
            return
        gpu.kernels_for(self._model.device)  # found out before two threads need to know
        self._prefetched = _Prefetched(self._encoded(sources, ids), ids, sources, block)

    def start(self, records: Sequence[Record]) -> _ModelDrawer:
        """Begin a window."""
        sources = [source_of(record) for record in records]
        names = [record.id for record in records]
        prefetched, self._prefetched = self._prefetched, None
        indices = None if prefetched is None else prefetched.indices(names, sources)
        if prefetched is None or indices is None:
            return _ModelDrawer(self, self._encoded(sources, names), list(range(len(records))))
        return _ModelDrawer(self, prefetched.encoded, indices, prefetched)

    def _encoded(self, sources: Sequence[str], ids: Sequence[str | int]) -> EncodedSources:
        return EncodedSources(self._model, sources, ids, self._settings)


class _Prefetched:
    """The first draws of some sources, made by a daemon thread."""

    def __init__(self, encoded: EncodedSources, ids: Sequence[str | int], sources: Sequence[str], count: int) -> None:
        self.encoded = encoded
        self._indices = {name: index for index, name in enumerate(zip(ids, sources, strict=True))}
        self._drawn: Future[dict[int, Draws]] = Future()
        wants = [Want(index, 0, count) for index, source in enumerate(sources) if source.strip()]
        Thread(target=self._work, args=(wants,), name="mbrace-draws", daemon=True).start()

    def _work(self, wants: list[Want]) -> None:
        try:
            drawn = self.encoded.draw(wants)
            self._drawn.set_result({want.sentence: draws for want, draws in zip(wants, drawn, strict=True)})
        except BaseException as error:  # any error is handed over, or the race would wait forever
            self._drawn.set_exception(error)

    def indices(self, ids: Sequence[str | int], sources: Sequence[str]) -> list[int] | None:
        """The indices of these sources among the encoded ones; None if one is missing."""
        found = [self._indices.get(name, -1) for name in zip(ids, sources, strict=True)]
        return None if -1 in found else found

    def drawn(self) -> dict[int, Draws]:
        """Wait for the draws, by index; none if a source made them fail."""
        return {} if self._drawn.exception() is not None else self._drawn.result()


class _ModelDrawer:
    """Draws for one window; draws made ahead of their use are kept.

    `indices` are those of the window's sources among the encoded ones; `prefetched` has the first draws of all of them.
    """

    def __init__(
        self, sampler: ModelSampler, encoded: EncodedSources, indices: list[int], prefetched: _Prefetched | None = None
    ) -> None:
        self._sampler, self._encoded, self._indices, self._prefetched = sampler, encoded, indices, prefetched
        self._drawn = [Draws([], [])] * len(indices)

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws of each want."""
        self._take_prefetched()
        missing = []
        for want in wants:
            have, end = len(self._drawn[want.sentence].texts), want.first + want.count
            if end > have:
                ahead = next((block for block in self._sampler.blocks if block >= end), end)
                missing.append(Want(want.sentence, have, ahead - have))
        self._sampler.drawn += sum(want.count for want in missing)
        of_encoded = [Want(self._indices[want.sentence], want.first, want.count) for want in missing]
        for want, draws in zip(missing, self._encoded.draw(of_encoded), strict=True):
            self._drawn[want.sentence] = _joined([self._drawn[want.sentence], draws])
        found = []
        for want in wants:
            drawn, part = self._drawn[want.sentence], slice(want.first, want.first + want.count)
            logprobs = (drawn.logprobs or [])[part] if self._sampler.weighted else None
            found.append(Draws(drawn.texts[part], logprobs))
        return found

    def _take_prefetched(self) -> None:
        """Wait for the first draws; those that failed are made again when they are missing."""
        prefetched, self._prefetched = self._prefetched, None
        drawn = {} if prefetched is None else prefetched.drawn()
        self._sampler.drawn += sum(len(draws.texts) for draws in drawn.values())
        for sentence, index in enumerate(self._indices):
            self._drawn[sentence] = drawn.get(index, self._drawn[sentence])
