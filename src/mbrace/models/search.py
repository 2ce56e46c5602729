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

from mbrace.models.choice import EvenNumbers, Numbers, Truncation, add_logprobs, next_ids


class DecoderState(Protocol):
    """The rows of a batch between steps."""

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
    spreads the draws of a source evenly over the model's distribution (see `EvenNumbers`).
    """
    sources, width = len(keys), int(counts.max())
    total, horizon = sources * width, int(limits.max())
    device = keys.device
    numbers = torch.arange(width, device=device)
    kind = EvenNumbers if arithmetic else Numbers
    random = kind(keys[:, None], first[:, None] + numbers)
    alive = (numbers < counts[:, None]).flatten()
    limit = limits.repeat_interleave(width)
    owner = torch.where(
        alive, torch.arange(total, device=device), total
    )  # finished rows write to row `total`, which is dropped
    out = torch.full((total + 1, horizon), -1, dtype=torch.int32, device=device)
    scores = torch.zeros(total + 1, dtype=torch.float32, device=device)
    state, ids = decoder.start(memory, width), torch.full((total,), start, device=device)
    check_every = 4 if device.type == "cuda" else 1  # steps; reading from a GPU makes it wait
    for time in range(horizon):
        logits, bias = state.step(ids.view(-1, width))
        chosen = next_ids(logits.flatten(0, 1), bias, random.at(time), truncation)
        random.advance(chosen)
        ids = chosen.ids
        out[owner, time] = ids.int()
        scores.index_add_(0, owner, chosen.logprobs)
        alive &= ~is_end(ids, ends) & (limit > time + 1)
        owner = owner.masked_fill(~alive, total)
        if (time + 1) % check_every == 0:
            left = alive.view(-1, width).sum(1)
            most = int(left.max())
            if most == 0:
                break
            open_sources = left.nonzero()[:, 0]
            if most * len(open_sources) <= 0.8 * alive.numel():
                # open rows first within each source, then the grid is cut to the sources and width still needed
                order = alive.view(-1, width).int().argsort(dim=1, descending=True, stable=True)[open_sources, :most]
                rows = (open_sources[:, None] * width + order).flatten()
                state.select(rows, sources=open_sources, width=most)
                random.select(rows)
                ids, alive, limit, owner = (x[rows] for x in (ids, alive, limit, owner))
                width = most
    return Sequences(out[:total], scores[:total])


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
    device, sources, horizon = limits.device, len(limits), int(limits.max())
    done_ids = torch.full((sources + 1, k, horizon), -1, dtype=torch.int32, device=device)
    done_scores = torch.full((sources + 1, k), -math.inf, device=device)
    scores = torch.full((sources, k), -math.inf, device=device)
    scores[:, 0] = 0.0
    past = torch.full((sources, k, horizon), -1, dtype=torch.int32, device=device)
    owner, limit, closed = (
        torch.arange(sources, device=device),
        limits,
        torch.zeros(sources, dtype=torch.bool, device=device),
    )
    state, ids = decoder.start(memory, 1), torch.full((sources, 1), start, device=device)
    check_every = 4 if device.type == "cuda" else 1  # steps; reading from a GPU makes it wait
    for time in range(horizon):
        logits, bias = state.step(ids)
        vocabulary = logits.shape[-1]
        # before the first step all rows of a source would be equal: there is one
        totals = add_logprobs(logits.flatten(0, 1), bias, scores[:, : logits.shape[1]].flatten()).view(len(logits), -1)
        best, flat = totals.topk(min(2 * k, totals.shape[1]), dim=1)
        if best.shape[1] < 2 * k:
            best = torch.nn.functional.pad(best, (0, 2 * k - best.shape[1]), value=-math.inf)
            flat = torch.nn.functional.pad(flat, (0, 2 * k - flat.shape[1]))
        del totals, logits
        row, token = flat // vocabulary, flat % vocabulary
        last = (limit == time + 1)[:, None]  # the limit ends a row, as </s> does
        ending = is_end(token, ends) | last
        paths = past.gather(1, row[:, :, None].expand(-1, -1, horizon))
        paths[:, :, time] = token.int()
        # finished: rows that end among the first k compete with those that finished before
        ranks = torch.arange(2 * k, device=device)
        ended = torch.where(ending & (ranks < k) & ~closed[:, None], best / (time + 1) ** alpha, -math.inf)
        old = done_scores[owner]
        merged, which = torch.cat([old, ended], dim=1).topk(k, dim=1)
        both = torch.cat([done_ids[owner], paths], dim=1)
        done_ids[owner] = both.gather(1, which[:, :, None].expand(-1, -1, horizon))
        done_scores[owner] = merged
        # open: the k best rows that do not end
        scores, keep = best.masked_fill(ending, -math.inf).topk(k, dim=1)
        row, ids = row.gather(1, keep), token.gather(1, keep)
        past = paths.gather(1, keep[:, :, None].expand(-1, -1, horizon))
        best_open = scores[:, 0] / (time + 1) ** alpha
        closed |= (merged[:, -1] >= best_open) | (scores[:, 0] == -math.inf)
        rows = (torch.arange(len(owner), device=device)[:, None] * (1 if time == 0 else k) + row).flatten()
        if (time + 1) % check_every == 0:
            alive = (~closed).nonzero()[:, 0]
            if len(alive) == 0:
                break
            if len(alive) <= 0.8 * len(owner):
                rows = rows.view(-1, k)[alive].flatten()
                state.select(rows, sources=alive, width=k)
                scores, ids, past, owner, limit, closed = (x[alive] for x in (scores, ids, past, owner, limit, closed))
                continue
        state.select(rows, width=k)
    return Sequences(done_ids[:sources].flatten(0, 1), done_scores[:sources].flatten())
