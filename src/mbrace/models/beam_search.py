"""Beam search over a grid of rows (search.py): each path of a source in a row of its own, or in one that it shares."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mbrace.models.best import best_totals
from mbrace.models.search import Search, Sequences, StepDecoder, is_end

RECOMBINED = 3  # ids in common, after which paths of a beam may share a state of the decoder


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


class _Beam(Search):
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
        # for recombination: the last ids of each path, and its state; before the first step all are in one
        self.recent = torch.zeros((sources, k, RECOMBINED), dtype=torch.int64, device=device)
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
        """Put the open paths, best first, into their new states; each is a parent, an earlier path, and one more id."""
        before = parents  # without recombination a path is in the row of its own number
        if self.recombines:
            before = self.states.gather(1, parents)
            leaders = self._recombine(parents, ids)
            before, ids = before.gather(1, leaders), ids.gather(1, leaders)
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
