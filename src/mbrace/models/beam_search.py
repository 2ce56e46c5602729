"""Beam search: each open path of a source is a row of the decoder; parts of similar length are searched together.

The best continuations of a source's paths are found without sorting through the totals of all ids. Ids are cut into
chunks. A chunk among whose ids is one of the n best is itself one of the n best chunks by its maximum: if n others had
higher maxima, those would be n better ids. So the n best chunks are found first, and then the n best of their ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mbrace.models import gpu
from mbrace.models.next_ids import log_probabilities
from mbrace.models.search import Memory, Search, Sequences, StepDecoder, is_end, run_searches

if TYPE_CHECKING:
    from mbrace.models.live import LiveModel


class _Beam(Search):
    """k open paths per source, each in a row of the decoder; k outputs of each, scored log p / length ** alpha.

    As transformers' beam search (early_stopping=False): a source is done when no open path, at its present length,
    scores better than the worst of k finished ones. If fewer than k finished, empty rows with scores of -inf follow.

    A path is kept as its last extension, a path of the step before and the id that followed it: path x ids + id.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        memory: Memory,
        limits: Tensor,
        k: int,
        alpha: float,
        start: int,
        ends: tuple[int, ...],
    ) -> None:
        device, sources, horizon = limits.device, len(limits), int(limits.max())
        super().__init__(device, sources * k)
        self.k, self.ends, self.vocabulary = k, ends, 1  # known from the first step on
        lengths = range(1, horizon + 1)
        self.penalties = torch.tensor([n**alpha for n in lengths], dtype=torch.float32, device=device)
        # the open paths of all steps and all sources
        self.extensions = torch.zeros((horizon, sources, k), dtype=torch.int64, device=device)
        # the k best that are finished, in any order, then those of the present step: scores, and where to find them,
        # time x (k x ids) + extension
        self.ended_scores = torch.full((sources, 2 * k), -math.inf, device=device)
        self.ended = torch.zeros((sources, 2 * k), dtype=torch.int64, device=device)
        self.all_ended = self.ended_scores[:, :k].clone(), self.ended[:, :k].clone()  # of sources that were cut, too
        self.scores = torch.full((sources, k), -math.inf, device=device)
        self.scores[:, 0] = 0.0
        self.row_of_path = torch.arange(sources, device=device)[:, None].repeat(1, k)  # that each path is in
        self.paths = 1  # per source before the first step
        # the row that each row continues, and the first row of each source
        self.parent_rows, self.offsets = torch.arange(sources, device=device), torch.arange(sources + 1, device=device)
        self.owner, self.limit = torch.arange(sources, device=device), limits
        self.closed = torch.zeros(sources, dtype=torch.bool, device=device)
        self.state = decoder.start(memory, 1, k)
        self.ids = torch.full((sources,), start, device=device)
        self.fixed_size = self.keeps_rows()
        if not self.fixed_size:  # only rows in use are kept, and soon there may be none
            self.check_every = 1

    def step(self) -> None:
        """Every open path by one id."""
        k = self.k
        logits, bias = self.state.step(self.ids)
        self.vocabulary = logits.shape[-1]
        row, scores = self.row_of_path[:, : self.paths], self.scores[:, : self.paths]
        best, extensions = best_totals(logits, bias, scores, 2 * k, row, self.state.used)
        if best.shape[1] < 2 * k:
            best = torch.nn.functional.pad(best, (0, 2 * k - best.shape[1]), value=-math.inf)
            extensions = torch.nn.functional.pad(extensions, (0, 2 * k - extensions.shape[1]))
        del logits
        kept, parents, ids, best_open = self._split(best, extensions)
        self.extensions[self.clock, self.owner] = kept
        # finished: paths that end among the first k compete with those that finished before
        scores, which = self.ended_scores.topk(k, dim=1, sorted=False)
        self.ended[:, :k] = self.ended.gather(1, which)
        self.ended_scores[:, :k] = scores
        self.closed |= ~(scores.amin(1) < best_open)  # also where scores are NaN
        self.clock += 1
        self._enter_rows(parents, ids)

    def _split(self, best: Tensor, extensions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Split the 2k best extensions of each source, best first, into those that end and those that stay open.

        Those of the first k that end are stored as the present step's. The scores of the k best that stay open are
        stored, too; returned are their extensions, paths and ids (sources, k), and the first one's score by length
        (sources,). Where there are fewer, scores of -inf follow.
        """
        k, size = self.k, self.k * self.vocabulary
        penalty = self.penalties[self.clock]
        last = (self.limit == self.clock + 1)[:, None]  # the limit ends a path, as </s> does
        ending = is_end(extensions % self.vocabulary, self.ends) | last
        ends_now = ending[:, :k] & ~self.closed[:, None]
        self.ended_scores[:, k:] = torch.where(ends_now, best[:, :k] / penalty, -math.inf)
        self.ended[:, k:] = extensions[:, :k] + self.clock * size
        # the n-th that stays open goes to column n; the others to column k, which is dropped
        column = ((~ending).cumsum(1) - 1).masked_fill_(ending, k).clamp_(max=k)
        scores = best.new_full((len(best), k + 1), -math.inf).scatter_(1, column, best)
        self.scores.copy_(scores[:, :k])
        kept = extensions.new_zeros((len(best), k + 1)).scatter_(1, column, extensions)[:, :k]
        best_open = (scores[:, 0] / penalty).masked_fill_(scores[:, 0] == -math.inf, -math.inf)
        return kept, kept // self.vocabulary, kept % self.vocabulary, best_open

    def _enter_rows(self, parents: Tensor, ids: Tensor) -> None:
        """Put the open paths, best first, into their new rows; each is a parent, an earlier path, and one more id."""
        sources, size = len(ids), ids.numel()
        if self.fixed_size and len(self.parent_rows) != size:
            self.parent_rows, self.ids = self.parent_rows.new_zeros(size), self.ids.new_zeros(size)
        is_open = (self.scores > -math.inf) & ~self.closed[:, None]
        torch.cumsum(is_open.sum(1), 0, out=self.offsets[1:])
        before = self.row_of_path.gather(1, parents)
        torch.sub(is_open.cumsum(1) + self.offsets[:sources, None], 1, out=self.row_of_path)
        if self.fixed_size:  # paths that are not open go to a row beyond the last
            to = torch.where(is_open, self.row_of_path, size).flatten()
            for kept, of_paths in ((self.parent_rows, before), (self.ids, ids)):
                kept.copy_(torch.nn.functional.pad(kept, (0, 1)).scatter_(0, to, of_paths.flatten())[:-1])
        else:
            self.parent_rows, self.ids = before[is_open], ids[is_open]
        self.row_of_path.clamp_(min=0)
        self.state.select(self.parent_rows, self.offsets)
        self.paths = self.k

    def compact(self, time: int) -> bool:
        """Drop finished sources before the step at `time` if that pays; False if none is open."""
        alive = (~self.closed).nonzero()[:, 0]
        left = len(alive) * self.k
        if len(alive) > 0 and self.worth_compacting(left, len(self.owner) * self.k, time):
            self.recorder.forget()
            self._save_ended()
            counts = self.offsets.diff()[alive]  # those of finished sources are 0
            self.offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
            if self.fixed_size:
                self.parent_rows, self.ids = self.parent_rows.new_zeros(left), self.ids[:left].clone()
            self.state.select(torch.arange(len(self.ids), device=alive.device), self.offsets, sources=alive)
            for name in "scores", "row_of_path", "ended_scores", "ended", "owner", "limit", "closed":
                setattr(self, name, getattr(self, name)[alive])
        return len(alive) > 0

    def _save_ended(self) -> None:
        for to, present in zip(self.all_ended, (self.ended_scores, self.ended), strict=True):
            to[self.owner] = present[:, : self.k]

    def finished(self) -> Sequences:
        """The finished paths of all sources, best first: each is followed back from its end."""
        self._save_ended()
        ended, order = self.all_ended[1].sort(dim=1)  # of equal scores, the earlier end is first
        scores, best_first = self.all_ended[0].gather(1, order).sort(dim=1, descending=True, stable=True)
        ended = ended.gather(1, best_first)
        size = self.k * self.vocabulary
        length = torch.where(scores > -math.inf, ended // size + 1, 0)
        ids = backtrack(self.extensions, ended % size, length, max(1, int(length.max())), self.vocabulary)
        return Sequences(ids, scores.flatten())


@dataclass(frozen=True)
class BeamOutputs:
    """One source's outputs of beam search, best first, and their scores: log p / length ** alpha.

    Texts may repeat, since different ids can make the same text.
    """

    texts: Sequence[str]
    scores: Sequence[float]


def beam_outputs(
    model: LiveModel, sources: Sequence[str], k: int, alpha: float, max_length: int | None
) -> list[BeamOutputs]:
    """The outputs of each source; a source without text has one output without text."""
    rows = model.codec.encode(sources)
    parts = list(model.parts(rows, [k if source.strip() else 0 for source in sources]))

    def search(number: int) -> tuple[list[list[float]], Tensor]:
        """The scores (sources, k) of a part, and ids (sources x k, time), on the host."""
        mine = [rows[i] for i in parts[number]]
        with torch.inference_mode():  # here, too: it does not go over to other threads
            limits, memory = model.lengths(mine, max_length), model.encode(mine)
            with gpu.exclusive_start(model.device) as starting:
                beams = _Beam(model.decoder, memory, limits, k, alpha, model.start, model.ends)
                beams.run(int(limits.max()), starting)
            found = beams.finished()
            return found.scores.view(len(mine), -1).tolist(), found.ids.cpu()

    def write(number: int, found: tuple[list[list[float]], Tensor]) -> list[BeamOutputs]:
        """The outputs of the sources of a part."""
        texts = model.texts(found[1])
        outputs = []
        for row, scores in enumerate(found[0]):
            real = [n for n, score in enumerate(scores) if score > -math.inf]  # others are no outputs
            outputs.append(BeamOutputs([texts[row * k + n] for n in real], [scores[n] for n in real]))
        return outputs

    out = [BeamOutputs([""], [0.0])] * len(rows)
    found = run_searches(len(parts), search, write, model.device, model.concurrent_beams)
    for part, outputs in zip(parts, found, strict=True):
        for i, output in zip(part, outputs, strict=True):
            out[i] = output
    return out


def backtrack(extensions: Tensor, lasts: Tensor, lengths: Tensor, longest: int, ids: int) -> Tensor:
    """The ids (paths, longest) of finished paths, filled up with -1: each is followed back from its last extension.

    An extension is path x ids + id. `lasts` and `lengths` are (sources, k); the extensions of open paths are (time,
    sources, k).
    """
    parents = torch.zeros_like(lasts)
    path = torch.empty_like(extensions[:longest])
    for time in reversed(range(longest)):
        torch.where(lengths == time + 1, lasts, extensions[time].gather(1, parents), out=path[time])
        parents = path[time] // ids
    found = (path % ids).int().permute(1, 2, 0)
    times = torch.arange(longest, device=found.device)
    return torch.where(times < lengths[:, :, None], found, -1).flatten(0, 1).contiguous()


CHUNK = 64  # ids


def best_totals(
    logits: Tensor, bias: Tensor | None, scores: Tensor, count: int, row: Tensor, used: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The `count` best totals of each source, best first, and their indexes, path x ids + id: both (sources, count).

    Logits are (rows, ids), to which bias (ids,) is added; undefined from row `used` (1,) on, if that is given. A total
    is the log-probability of an id, in the row that its path is in, plus the score of the path: `row` and `scores` are
    (sources, paths). Of equal totals at the end of the list any may be missing. Logits may be overwritten.
    """
    ids, paths = logits.shape[-1], scores.shape[1]
    parts = -(-ids // CHUNK)  # chunks per row
    kernels, shifts = gpu.kernels_for(logits.device), None
    few = paths * parts <= 2 * count
    if few or kernels is None:
        logits, bias = log_probabilities(logits, bias), None
    if few:
        found = _of_paths(logits, scores, row).topk(min(count, paths * ids), dim=1)
        return found.values, found.indices
    if kernels is None:
        highest = _maxima(logits, parts)
    else:
        highest, shifts = kernels.chunk_maxima(logits, bias, CHUNK, used)
    chunks = _of_paths(highest, scores, row).topk(count, dim=1, sorted=False).indices
    values, first = _chunk_totals(logits, bias, shifts, scores, row, chunks)
    best, at = values.flatten(1).topk(count, dim=1)
    index = first.gather(1, at // CHUNK) + at % CHUNK
    return best, index.clamp_(max=paths * ids - 1)  # a total of -inf may be one beyond the last id


def _of_paths(of_rows: Tensor, scores: Tensor, row: Tensor) -> Tensor:
    """Values (rows, n) for the paths of each source, (sources, paths x n), with the paths' scores added."""
    return (of_rows[row] + scores[:, :, None]).flatten(1)


def _chunk_totals(
    logits: Tensor, bias: Tensor | None, shifts: Tensor | None, scores: Tensor, row: Tensor, chunks: Tensor
) -> tuple[Tensor, Tensor]:
    """The totals of the ids of some chunks (sources, count) of a source's paths, (sources, count, CHUNK), and the index
    of each chunk's first, path x ids + id. Logits (rows, ids), with the bias (ids,) and their row's shift (rows,) where
    these are given, are log-probabilities."""
    ids, parts = logits.shape[1], -(-logits.shape[1] // CHUNK)
    path, part = chunks // parts, chunks % parts
    number = part[:, :, None] * CHUNK + torch.arange(CHUNK, device=chunks.device)
    beyond = number >= ids
    number.clamp_(max=ids - 1)
    rows = row.gather(1, path)[:, :, None]
    values = logits[rows, number].float()
    if bias is not None:
        values += bias[number]
    if shifts is not None:
        values += shifts[rows]
    values += scores.gather(1, path)[:, :, None]
    if parts * CHUNK != ids:
        values.masked_fill_(beyond, -torch.inf)
    return values, path * ids + part * CHUNK


def _maxima(logprobs: Tensor, parts: int) -> Tensor:
    """The maximum of each chunk, (rows, parts)."""
    missing = parts * CHUNK - logprobs.shape[1]
    if not missing:
        return logprobs.view(len(logprobs), parts, CHUNK).amax(2)
    whole = logprobs[:, : (parts - 1) * CHUNK].reshape(len(logprobs), parts - 1, CHUNK).amax(2)
    return torch.cat([whole, logprobs[:, (parts - 1) * CHUNK :].amax(1, keepdim=True)], dim=1)
