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

from mbrace.errors import UserError
from mbrace.models.draw_keys import draw_keys, even_points, uniforms


class DecoderState(Protocol):
    """The rows of a batch between steps."""

    def step(self, ids: Tensor) -> Tensor:
        """Feed the last ids (sources, width) of the rows; logits (sources, width, vocabulary) in float32."""
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


SCALE = 2.0**40  # probabilities become whole numbers: multiples of 1 / SCALE


@dataclass(frozen=True)
class Truncation:
    """Which ids may be drawn; thresholds apply in this order to the model's distribution at `temperature`."""

    epsilon: float | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not 1e-6 <= self.temperature < math.inf:  # below it, logits / temperature overflow float32
            raise UserError(f"temperature {self.temperature}: must be 1e-06 or more, and finite")
        for name, value in (("epsilon", self.epsilon), ("min_p", self.min_p)):
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"{name} {value}: must be from 0 to 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p {self.top_p}: must be more than 0, and at most 1")
        if self.top_k is not None and self.top_k < 0:
            raise UserError(f"top_k {self.top_k}: must be 1 or more, or 0 for all")

    def __call__(self, logits: Tensor) -> Tensor:
        """Unnormalised weights of the ids that may be drawn; the most probable id always may.

        Epsilon sampling (Hewitt et al. 2022) drops ids with a probability below epsilon.
        """
        p = torch.softmax(logits if self.temperature == 1.0 else logits / self.temperature, dim=-1)
        best = p.amax(-1, keepdim=True)
        if self.epsilon:
            p = torch.where(p >= best.clamp(max=self.epsilon), p, 0.0)
        if self.top_k and self.top_k < p.shape[-1]:
            p = torch.where(p >= p.topk(self.top_k, dim=-1).values[..., -1:], p, 0.0)
        if self.top_p is not None and self.top_p < 1.0:
            ordered = p.sort(dim=-1, descending=True).values
            before = ordered.cumsum(-1) - ordered  # mass of the more probable ids
            last = torch.where(before < self.top_p * p.sum(-1, keepdim=True), ordered, math.inf).amin(-1, keepdim=True)
            p = torch.where(p >= last, p, 0.0)
        if self.min_p:
            p = torch.where(p >= self.min_p * best, p, 0.0)
        return p


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
        logits = state.step(ids.view(-1, width)).flatten(0, 1)
        weights = truncation(logits)
        ids = random.choose(weights, time)
        out[owner, time] = ids.int()
        if truncation.temperature == 1.0:  # a weight that is not zero is the model's probability
            logprobs = weights.gather(1, ids[:, None])[:, 0].log()
        else:
            logprobs = logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
        scores.index_add_(0, owner, logprobs)
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


class Numbers:
    """The random numbers of the rows of a grid, one per row and time step, independent of each other."""

    def __init__(self, sentences: Tensor, draws: Tensor) -> None:
        self._streams = draw_keys(sentences, draws).flatten()

    def choose(self, weights: Tensor, time: int) -> Tensor:
        """The next id of each row; weights (rows, ids)."""
        return choose(weights, uniforms(self._streams, time))

    def select(self, rows: Tensor) -> None:
        """Only these rows go on."""
        self._streams = self._streams[rows]


class EvenNumbers(Numbers):
    """Arithmetic sampling (Vilnis et al. 2023): one number per row chooses the whole output.

    The id is the one whose interval of the cumulative distribution holds the number; the number's position within that
    interval is the number of the next time step. Every output alone has the probability that it has with independent
    numbers, but the outputs of a sentence are spread evenly. When a row's intervals have used up 24 of the 53 bits of
    its number, it goes on with independent numbers.
    """

    def __init__(self, sentences: Tensor, draws: Tensor) -> None:
        super().__init__(sentences, draws)
        self._points = even_points(sentences, draws).flatten()
        self._widths = torch.ones_like(self._points)  # of the interval that all ids of a row so far have in [0, 1)

    def choose(self, weights: Tensor, time: int) -> Tensor:
        """The next id of each row; weights (rows, ids)."""
        exact = self._widths > 2.0**-24
        points = torch.where(exact, self._points, uniforms(self._streams, time))
        ids = choose(weights, points)
        whole = (weights * SCALE).long()
        sizes = whole.gather(1, ids[:, None])[:, 0]
        totals = whole.sum(-1)
        before = torch.where(torch.arange(weights.shape[1], device=ids.device) < ids[:, None], whole, 0).sum(-1)
        self._points = ((points * totals - before) / sizes).clamp(0.0, 1.0 - 2.0**-53)
        self._widths = self._widths * sizes / totals
        return ids

    def select(self, rows: Tensor) -> None:
        """Only these rows go on."""
        super().select(rows)
        self._points, self._widths = self._points[rows], self._widths[rows]


def choose(weights: Tensor, u: Tensor) -> Tensor:
    """Ids by inverse CDF: the first whose cumulative weight exceeds u times the sum. Weights (rows, ids), u (rows,).

    Integers are summed, which is exact in any order: a weight of zero is never drawn, and all devices agree.
    """
    if weights.device.type == "cpu":
        return _choose_sparse(weights, u)
    cdf = (weights * SCALE).long().cumsum(-1)
    total = cdf[:, -1]
    point = torch.minimum((u * total).long(), total - 1)
    return torch.searchsorted(cdf, point[:, None], right=True)[:, 0]


def _choose_sparse(weights: Tensor, u: Tensor) -> Tensor:
    """The same from the nonzero weights of all rows in one array, so that a CPU reads less memory.

    (A GPU would have to wait until they are counted.)
    """
    row, number = weights.nonzero().unbind(1)
    cdf = (weights[row, number] * SCALE).long().cumsum(0)
    last = torch.searchsorted(row, torch.arange(len(weights)), right=True) - 1
    end = cdf[last]
    begin = torch.cat([end.new_zeros(1), end[:-1]])
    point = begin + torch.minimum((u * (end - begin)).long(), end - begin - 1)
    return number[torch.searchsorted(cdf, point, right=True)]


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
        logits = state.step(ids)
        vocabulary = logits.shape[-1]
        if time == 0:  # all rows of a source would be equal: there is one
            totals = logits[:, 0].log_softmax(-1)
        else:
            totals = logits.log_softmax(-1).add_(scores[:, :, None]).flatten(1)
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
