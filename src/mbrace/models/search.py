"""Searches with a decoder that advances a grid of rows, (sources, width), step by step; and sampling.

The rows of one source are neighbours. Finished rows stay in the grid until there are so many that it pays to remove
them. Only a count is read back from the device, every few steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mbrace.models.choice import ArithmeticUniforms, IndependentUniforms, Truncation, next_ids
from mbrace.models.recorded import Recorder

# A step is recorded in about the time that a GPU takes for the steps that are left, for so many rows more.
RECORDING_ROWS = 1000


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


class Search:
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


class _Sampling(Search):
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
