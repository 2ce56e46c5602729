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

# A step is recorded in about the time that a GPU takes for the steps that are left, for so many rows more.
RECORDING_ROWS = 1000
RECOMBINED = 3  # ids in common, after which paths of a beam may share a state of the decoder


class DecoderState(Protocol):
    """The rows of a batch between steps."""

    @property
    def recordable(self) -> bool:
        """Whether a step changes tensors only in place, so that it can be recorded (see recorded.py)."""

    def begin(self, time: int) -> bool:
        """Called before the step at `time`: make room for it. True if memory has moved."""
        ...

    def step(self, ids: Tensor, opened: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Feed the last ids (sources, width) of the rows; logits (sources, width, vocabulary) and a bias to be added.

        The bias (vocabulary,) is float32, or None; logits are in the model's own precision. `opened` (rows,) is False
        where a row is finished and its logits are not used.
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
        if self.recorder.records:
            return rows <= 0.4 * of and of - rows >= RECORDING_ROWS
        return rows <= 0.8 * of


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
        logits, bias = self.state.step(self.ids.view(-1, self.width), self.alive)
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
    decoder: StepDecoder,
    memory: Any,
    limits: Tensor,
    *,
    k: int,
    start: int,
    ends: tuple[int, ...],
    alpha: float = 1.0,
    states: int | None = None,
) -> Sequences:
    """The k best of beam search for each source, best first: (sources * k) rows; scores are log p / length ** alpha.

    As transformers' beam search (early_stopping=False): a source is done when no open path, at its present length,
    scores better than the worst of k finished ones. If fewer than k finished, empty rows with scores of -inf follow.

    With `states`, paths are recombined: at every time step, those that end in the same RECOMBINED ids go on as one in
    the decoder, which sees the best of them, and there are at most so many of those states. The scores of the others
    are then approximations.
    """
    search = _Beam(decoder, memory, limits, k, start, ends, alpha, states)
    for time in range(int(limits.max())):
        search.advance(time, first=2)  # at the first step a source has one row
        if (time + 1) % search.check_every == 0 and not search.cut():
            break
    search.recorder.forget()
    return Sequences(search.done_ids[:-1].flatten(0, 1), search.done_scores[:-1].flatten())


class _Beam(_Search):
    """k open paths per source. Each is in a state: a row of the decoder, its own or one that it shares."""

    def __init__(
        self,
        decoder: StepDecoder,
        memory: Any,
        limits: Tensor,
        k: int,
        start: int,
        ends: tuple[int, ...],
        alpha: float,
        states: int | None,
    ) -> None:
        device, sources, horizon = limits.device, len(limits), int(limits.max())
        self.recombines, self.width = states is not None and states < k, min(states or k, k)
        super().__init__(device, sources * self.width)
        self.k, self.ends = k, ends
        self.penalties = torch.tensor([(time + 1) ** alpha for time in range(horizon)], device=device)
        self.done_ids = torch.full((sources + 1, k, horizon), -1, dtype=torch.int32, device=device)
        self.done_scores = torch.full((sources + 1, k), -math.inf, device=device)
        self.scores = torch.full((sources, k), -math.inf, device=device)
        self.scores[:, 0] = 0.0
        self.past = torch.full((sources, k, horizon), -1, dtype=torch.int32, device=device)
        self.recent = torch.zeros((sources, k, RECOMBINED), dtype=torch.int64, device=device)  # the last ids
        # before the first step all paths of a source are one, in one state
        self.states = torch.zeros((sources, k), dtype=torch.int64, device=device)
        self.owner, self.limit = torch.arange(sources, device=device), limits
        self.closed = torch.zeros(sources, dtype=torch.bool, device=device)
        self.state, self.ids = decoder.start(memory, 1), torch.full((sources, 1), start, device=device)

    def step(self) -> None:
        """Every open path by one id."""
        k, horizon = self.k, self.past.shape[-1]
        logits, bias = self.state.step(self.ids, (~self.closed).repeat_interleave(self.ids.shape[1]))
        vocabulary = logits.shape[-1]
        paths = 1 if logits.shape[1] == 1 else k  # before the first step a source has one
        states = self.states[:, :paths] if self.recombines else None
        best, flat = best_totals(logits, bias, self.scores[:, :paths], 2 * k, states)
        if best.shape[1] < 2 * k:
            best = torch.nn.functional.pad(best, (0, 2 * k - best.shape[1]), value=-math.inf)
            flat = torch.nn.functional.pad(flat, (0, 2 * k - flat.shape[1]))
        del logits
        path, token = flat // vocabulary, flat % vocabulary
        penalty = self.penalties[self.clock]
        last = (self.limit == self.clock + 1)[:, None]  # the limit ends a path, as </s> does
        ending = is_end(token, self.ends) | last
        texts = self.past.gather(1, path[:, :, None].expand(-1, -1, horizon))
        texts.index_copy_(2, self.clock, token.int()[:, :, None])
        # finished: paths that end among the first k compete with those that finished before
        ranks = torch.arange(2 * k, device=token.device)
        ended = torch.where(ending & (ranks < k) & ~self.closed[:, None], best / penalty, -math.inf)
        merged, which = torch.cat([self.done_scores[self.owner], ended], dim=1).topk(k, dim=1)
        both = torch.cat([self.done_ids[self.owner], texts], dim=1)
        self.done_ids[self.owner] = both.gather(1, which[:, :, None].expand(-1, -1, horizon))
        self.done_scores[self.owner] = merged
        # open: the k best paths that do not end
        scores, keep = best.masked_fill(ending, -math.inf).topk(k, dim=1)
        self.scores.copy_(scores)
        self.past.copy_(texts.gather(1, keep[:, :, None].expand(-1, -1, horizon)))
        self.closed |= (merged[:, -1] >= scores[:, 0] / penalty) | (scores[:, 0] == -math.inf)
        self.clock += 1
        self._enter_states(path.gather(1, keep), token.gather(1, keep))

    def _enter_states(self, parents: Tensor, ids: Tensor) -> None:
        """The open paths, best first, are in new states: each is its parent, another path, and one more id."""
        before = self.states.gather(1, parents)
        if self.recombines:
            leaders = self._recombine(parents, ids)
            before, ids = before.gather(1, leaders), ids.gather(1, leaders)
        else:
            self.states.copy_(torch.arange(self.k, device=ids.device).expand_as(self.states))
        rows = torch.arange(len(ids), device=ids.device)[:, None] * self.ids.shape[1] + before
        if self.ids.shape == ids.shape:
            self.ids.copy_(ids)
        else:
            self.ids = ids
        self.state.select(rows.flatten(), width=self.width)

    def _recombine(self, parents: Tensor, ids: Tensor) -> Tensor:
        """Paths that end alike share a state; returns the best path of each state, (sources, width)."""
        shape = -1, -1, RECOMBINED
        self.recent.copy_(self.recent.gather(1, parents[:, :, None].expand(shape)).roll(-1, 2))
        self.recent[:, :, -1] = ids
        alike = ids.new_ones((len(ids), self.k, self.k), dtype=torch.bool)
        for recent in self.recent.unbind(2):
            alike &= recent[:, :, None] == recent[:, None]
        number = torch.arange(self.k, device=ids.device)
        first = alike.int().argmax(2)  # the best path that ends as this one does
        leads = first == number
        states = (leads.cumsum(1) - 1).gather(1, first)
        self.scores.masked_fill_(states >= self.width, -math.inf)
        self.states.copy_(states.clamp(max=self.width - 1))
        leaders = ids.new_zeros((len(ids), self.width + 1))
        leaders.scatter_(1, torch.where(leads, states, self.width).clamp(max=self.width), number.expand_as(ids))
        return leaders[:, :-1]

    def cut(self) -> bool:
        """Go on with the open sources if that pays; False if none is left."""
        alive = (~self.closed).nonzero()[:, 0]
        if len(alive) > 0 and self.worth_cutting(len(alive) * self.width, len(self.owner) * self.width):
            self.recorder.forget()
            rows = (alive[:, None] * self.width + torch.arange(self.width, device=alive.device)).flatten()
            self.state.select(rows, sources=alive, width=self.width)
            self.scores, self.states, self.recent, self.ids, self.past, self.owner, self.limit, self.closed = (
                x[alive]
                for x in (
                    self.scores, self.states, self.recent, self.ids, self.past, self.owner, self.limit, self.closed
                )
            )  # fmt: skip
        return len(alive) > 0
