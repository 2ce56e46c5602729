"""Sampling and beam search with a decoder that advances a grid of rows, (sources, width), step by step.

The rows of one source are neighbours. Finished rows stay in the grid until there are so many that it pays to remove
them. Only a count is read back from the device, every few steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mbrace.models.best import best_totals
from mbrace.models.choice import ArithmeticUniforms, IndependentUniforms, Truncation, next_ids
from mbrace.models.recorded import Recorder


class DecoderState(Protocol):
    """The rows of a batch between steps."""

    @property
    def recordable(self) -> bool:
        """Whether a step changes tensors only in place, so that it can be recorded (see recorded.py)."""

    def begin(self, time: int) -> bool:
        """Called before the step at `time`: make room for it. True if memory has moved."""
        ...

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Feed the last ids (sources, width) of the rows; logits (sources, width, vocabulary) and a bias to be added.

        The bias (vocabulary,) is float32, or None; logits are in the model's own precision.
        """
        ...

    def select(self, rows: Tensor, *, sources: Tensor | None = None, width: int | None = None) -> None:
        """Keep `rows` (flat indices, with repeats) of `sources` only (default: all); `width` is the new width."""
        ...


class StepDecoder(Protocol):
    """A model that decodes step by step."""

    def encode(self, source: Tensor, mask: Tensor) -> Any:
        """The memory of padded source ids (sources, width), real where `mask` is True. It has `select` and `join`."""
        ...

    def start(self, memory: Any, width: int) -> DecoderState:
        """The state of `width` rows per source of `memory`, before the first step."""
        ...


@dataclass(frozen=True)
class Sequences:
    """Ids (rows, time), end included and filled up with -1; scores (rows,)."""

    ids: Tensor
    scores: Tensor


def sample(
    decoder: StepDecoder,
    memory: Any,
    keys: Tensor,
    first: Tensor,
    counts: Tensor,
    limits: Tensor,
    *,
    start: int,
    ends: tuple[int, ...],
    truncation: Truncation,
    arithmetic: bool = False,
) -> Sequences:
    """Draws number first[i] .. first[i] + counts[i] - 1 of each source i, whose random key is keys[i].

    All are int64 tensors (sources,) on the decoder's device; `limits` is the most ids of a row. The result has
    max(counts) rows per source (empty beyond its own count) and log-probabilities under the full model. `arithmetic`
    spreads the draws of a source evenly over the model's distribution (see `ArithmeticUniforms`).
    """
    search = _Sampling(decoder, memory, keys, first, counts, limits, start, ends, truncation, arithmetic)
    for time in range(int(limits.max())):
        search.advance(time)
        if (time + 1) % search.check_every == 0 and not search.cut():
            break
    search.recorder.forget()
    return Sequences(search.out[:-1], search.scores[:-1])


class _Search:
    """A search between steps. `step` changes its tensors in place, so that it can be recorded."""

    state: DecoderState

    def __init__(self, device: torch.device, rows: int) -> None:
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)  # the time of the next step
        self.recorder = Recorder(device, rows)
        # Steps between looks at how many rows are left: reading from a GPU makes the host wait.
        self.check_every = 1 if device.type != "cuda" else 8 if self.recorder.records else 4

    def step(self) -> None:
        """One time step."""
        raise NotImplementedError

    def advance(self, time: int, *, first: int = 1) -> None:
        """The step at `time`; from time `first` on, shapes are those of the step before, and it may be replayed."""
        if self.state.begin(time):
            self.recorder.forget()
        if time < first or not self.state.recordable or not self.recorder.replay(self.step):
            self.state.begin(time)  # again, if recording was tried and failed
            self.step()

    def worth_cutting(self, rows: int, of: int) -> bool:
        """Whether it pays to go on with `rows` alone: a step is to be recorded again then."""
        return rows <= (0.6 if self.recorder.records else 0.8) * of


class _Sampling(_Search):
    def __init__(
        self,
        decoder: StepDecoder,
        memory: Any,
        keys: Tensor,
        first: Tensor,
        counts: Tensor,
        limits: Tensor,
        start: int,
        ends: tuple[int, ...],
        truncation: Truncation,
        arithmetic: bool,
    ) -> None:
        sources, self.width = len(keys), int(counts.max())
        total, device = sources * self.width, keys.device
        super().__init__(device, total)
        numbers = torch.arange(self.width, device=device)
        kind = ArithmeticUniforms if arithmetic else IndependentUniforms
        self.random = kind(keys[:, None], first[:, None] + numbers)
        self.alive = (numbers < counts[:, None]).flatten()
        self.limit = limits.repeat_interleave(self.width)
        # finished rows write to row `total`, which is dropped
        self.total = total
        self.owner = torch.where(self.alive, torch.arange(total, device=device), total)
        self.out = torch.full((total + 1, int(limits.max())), -1, dtype=torch.int32, device=device)
        self.scores = torch.zeros(total + 1, dtype=torch.float32, device=device)
        self.state, self.ids = decoder.start(memory, self.width), torch.full((total,), start, device=device)
        self.ends, self.truncation = ends, truncation

    def step(self) -> None:
        """Draw the next id of every row."""
        logits, bias = self.state.step(self.ids.view(-1, self.width))
        chosen = next_ids(logits.flatten(0, 1), bias, self.random.at(self.clock), self.truncation)
        self.random.advance(chosen)
        self.ids.copy_(chosen.ids)
        self.out[self.owner, self.clock] = chosen.ids.int()
        self.scores.index_add_(0, self.owner, chosen.logprobs)
        self.clock += 1
        self.alive &= ~is_end(chosen.ids, self.ends) & (self.limit > self.clock)
        self.owner.masked_fill_(~self.alive, self.total)

    def cut(self) -> bool:
        """Go on with fewer rows if that pays; False if none is left."""
        left = self.alive.view(-1, self.width).sum(1)
        most, open_count = map(int, torch.stack([left.max(), (left > 0).sum()]).tolist())
        if most > 0 and self.worth_cutting(most * open_count, self.alive.numel()):
            self.recorder.forget()
            # open rows first within each source, then the grid is cut to the sources and width still needed
            sources = left.nonzero()[:, 0]
            order = self.alive.view(-1, self.width).int().argsort(dim=1, descending=True, stable=True)[sources, :most]
            rows = (sources[:, None] * self.width + order).flatten()
            self.state.select(rows, sources=sources, width=most)
            self.random.select(rows)
            self.ids, self.alive, self.limit, self.owner = (
                x[rows] for x in (self.ids, self.alive, self.limit, self.owner)
            )
            self.width = most
        return most > 0


def is_end(ids: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Which ids end a row."""
    found = ids == ends[0]
    for end in ends[1:]:
        found = found | (ids == end)
    return found


def beam(
    decoder: StepDecoder, memory: Any, limits: Tensor, *, k: int, start: int, ends: tuple[int, ...], alpha: float = 1.0
) -> Sequences:
    """The k best of beam search for each source, best first: (sources * k) rows; scores are log p / length ** alpha.

    As transformers' beam search (early_stopping=False): a source is done when no open row, at its present length,
    scores better than the worst of k finished ones. If fewer than k finished, empty rows with scores of -inf follow.
    """
    search = _Beam(decoder, memory, limits, k, start, ends, alpha)
    for time in range(int(limits.max())):
        search.advance(time, first=2)  # at the first step a source has one row
        if (time + 1) % search.check_every == 0 and not search.cut():
            break
    search.recorder.forget()
    return Sequences(search.done_ids[:-1].flatten(0, 1), search.done_scores[:-1].flatten())


class _Beam(_Search):
    def __init__(
        self,
        decoder: StepDecoder,
        memory: Any,
        limits: Tensor,
        k: int,
        start: int,
        ends: tuple[int, ...],
        alpha: float,
    ) -> None:
        device, sources, horizon = limits.device, len(limits), int(limits.max())
        super().__init__(device, sources * k)
        self.k, self.ends = k, ends
        self.penalties = torch.tensor([(time + 1) ** alpha for time in range(horizon)], device=device)
        self.done_ids = torch.full((sources + 1, k, horizon), -1, dtype=torch.int32, device=device)
        self.done_scores = torch.full((sources + 1, k), -math.inf, device=device)
        self.scores = torch.full((sources, k), -math.inf, device=device)
        self.scores[:, 0] = 0.0
        self.past = torch.full((sources, k, horizon), -1, dtype=torch.int32, device=device)
        self.owner, self.limit = torch.arange(sources, device=device), limits
        self.closed = torch.zeros(sources, dtype=torch.bool, device=device)
        self.state, self.ids = decoder.start(memory, 1), torch.full((sources, 1), start, device=device)

    def step(self) -> None:
        """Every open row by one id."""
        k, horizon, width = self.k, self.past.shape[-1], self.ids.shape[1]
        logits, bias = self.state.step(self.ids)
        vocabulary = logits.shape[-1]
        # before the first step all rows of a source would be equal: there is one
        best, flat = best_totals(logits, bias, self.scores[:, :width], 2 * k)
        if best.shape[1] < 2 * k:
            best = torch.nn.functional.pad(best, (0, 2 * k - best.shape[1]), value=-math.inf)
            flat = torch.nn.functional.pad(flat, (0, 2 * k - flat.shape[1]))
        del logits
        row, token = flat // vocabulary, flat % vocabulary
        penalty = self.penalties[self.clock]
        last = (self.limit == self.clock + 1)[:, None]  # the limit ends a row, as </s> does
        ending = is_end(token, self.ends) | last
        paths = self.past.gather(1, row[:, :, None].expand(-1, -1, horizon))
        paths.index_copy_(2, self.clock, token.int()[:, :, None])
        # finished: rows that end among the first k compete with those that finished before
        ranks = torch.arange(2 * k, device=token.device)
        ended = torch.where(ending & (ranks < k) & ~self.closed[:, None], best / penalty, -math.inf)
        merged, which = torch.cat([self.done_scores[self.owner], ended], dim=1).topk(k, dim=1)
        both = torch.cat([self.done_ids[self.owner], paths], dim=1)
        self.done_ids[self.owner] = both.gather(1, which[:, :, None].expand(-1, -1, horizon))
        self.done_scores[self.owner] = merged
        # open: the k best rows that do not end
        scores, keep = best.masked_fill(ending, -math.inf).topk(k, dim=1)
        self.scores.copy_(scores)
        self.past.copy_(paths.gather(1, keep[:, :, None].expand(-1, -1, horizon)))
        self.closed |= (merged[:, -1] >= scores[:, 0] / penalty) | (scores[:, 0] == -math.inf)
        rows = torch.arange(len(self.owner), device=token.device)[:, None] * width + row.gather(1, keep)
        if width == k:
            self.ids.copy_(token.gather(1, keep))
        else:
            self.ids = token.gather(1, keep)
        self.clock += 1
        self.state.select(rows.flatten(), width=k)

    def cut(self) -> bool:
        """Go on with the open sources if that pays; False if none is left."""
        alive = (~self.closed).nonzero()[:, 0]
        if len(alive) > 0 and self.worth_cutting(len(alive), len(self.owner)):
            self.recorder.forget()
            rows = (alive[:, None] * self.k + torch.arange(self.k, device=alive.device)).flatten()
            self.state.select(rows, sources=alive, width=self.k)
            self.scores, self.ids, self.past, self.owner, self.limit, self.closed = (
                x[alive] for x in (self.scores, self.ids, self.past, self.owner, self.limit, self.closed)
            )
        return len(alive) > 0
