"""Searches with a decoder that advances rows step by step; and sampling.

The rows of one source are neighbours, and those in use come first. Mostly there are no others. On a GPU, where a step
is recorded for a fixed number of rows, some are left over. With kernels (fused.py) these take little time, unless
nearly all rows are in use and matrix products are torch's. Only a count is read back, every few steps.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mbrace.models.choice import ArithmeticUniforms, IndependentUniforms, Truncation, kept_rows, next_ids
from mbrace.models.recorded import Recorder
from mbrace.models.startup import startup_lock

# A step is recorded in about the time that a GPU takes for the steps that are left, for so many rows more.
RECORDING_ROWS = 1000


class DecoderState(Protocol):
    """The rows of a batch between steps."""

    @property
    def recordable(self) -> bool:
        """Whether a step changes tensors only in place, so that it can be recorded (see recorded.py)."""

    @property
    def used(self) -> Tensor | None:
        """How many rows, the first ones, are in use, (1,), if the others take less time; None if all take as long."""

    @property
    def skips(self) -> bool:
        """Whether rows that are not in use take little time in all parts of a step."""

    def moves(self, time: int) -> bool:
        """Whether the step at `time` needs more room than there is, so that memory will move."""
        ...

    def begin(self, time: int, rows: int) -> bool:
        """Called before the step at `time`: make room for it. True if memory has moved."""
        ...

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Feed the last id of each row, (rows,); logits (rows, vocabulary) and a bias to be added.

        The bias (vocabulary,) is float32, or None; logits are in the model's own precision, and mean nothing for rows
        that are not in use.
        """
        ...

    def select(self, rows: Tensor, offsets: Tensor, *, sources: Tensor | None = None) -> None:
        """Go on with `rows` (indices, with repeats), of `sources` only (default: all).

        The rows of source i are offsets[i] to offsets[i + 1]; from the last offset on, rows are not in use.
        """
        ...


class StepDecoder(Protocol):
    """A model that decodes step by step."""

    def encode(self, source: Tensor, mask: Tensor) -> Any:
        """The memory of padded source ids (sources, width), real where `mask` is True.

        It has `select` and `join`; that of a model with `two_searches` (live.py), which pads on the right, also `part`.
        """
        ...

    def start(self, memory: Any, width: int, most: int | None = None) -> DecoderState:
        """The state of `width` rows per source of `memory`, before the first step; later, of `most` (default: width)
        at most."""
        ...


@dataclass(frozen=True)
class Sequences:
    """Ids (rows, time), end included and filled up with -1; scores (rows,)."""

    ids: Tensor
    scores: Tensor


@dataclass(frozen=True)
class WantedDraws:
    """Draws number first[i] .. first[i] + counts[i] - 1 of each source i, whose random key is keys[i], of at most
    limits[i] ids: int64 tensors (sources,) on the decoder's device."""

    keys: Tensor
    first: Tensor
    counts: Tensor
    limits: Tensor


def sample(
    decoder: StepDecoder,
    memory: Any,
    wanted: WantedDraws,
    *,
    start: int,
    ends: tuple[int, ...],
    truncation: Truncation,
    arithmetic: bool = False,
) -> Sequences:
    """max(counts) rows per source (empty beyond its own count) and log-probabilities under the full model.

    `arithmetic` spreads the draws of a source evenly over the model's distribution (see `ArithmeticUniforms`).
    """
    with startup_lock(wanted.keys.device) as startup:
        search = _Sampling(decoder, memory, wanted, start, ends, truncation, arithmetic)
        search.run(int(wanted.limits.max()), startup)
    return Sequences(search.out[:-1], search.scores[:-1])


class Search:
    """A search between steps. `step` changes its tensors in place, so that it can be recorded."""

    state: DecoderState
    ids: Tensor  # the last of each row

    def __init__(self, device: torch.device, rows: int) -> None:
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)  # the time of the next step
        self.recorder = Recorder(device, rows)
        # Steps between looks at how many rows are left: reading from a GPU makes the host wait.
        self.check_every = 1 if device.type != "cuda" else 8 if self.recorder.records else 4

    def keeps_rows(self) -> bool:
        """Whether rows that are not in use stay, so that a step that is recorded has the same shapes."""
        return self.state.recordable and (self.clock.device.type == "cuda" or self.recorder.records)

    def step(self) -> None:
        """One time step."""
        raise NotImplementedError

    def run(self, steps: int, startup: ExitStack) -> None:
        """At most `steps` steps. `startup` is closed as soon as steps are replayed: other searches can start."""
        for time in range(steps):
            self.advance(time)
            if time > 0:
                startup.close()
            if (time + 1) % self.check_every == 0 and not self.cut(time + 1):
                break
        self.recorder.forget()

    def cut(self, time: int) -> bool:
        """Go on, from the step at `time`, with what is left, if that pays; False if nothing is left."""
        raise NotImplementedError

    def advance(self, time: int) -> None:
        """The step at `time`: from the second step on, since their shapes are the same, by a recording if possible."""
        if self.state.begin(time, len(self.ids)):
            self.recorder.forget()
        if time == 0 or not self.state.recordable or not self.recorder.replay(self.step):
            self.state.begin(time, len(self.ids))  # again, if recording was tried and failed
            self.step()

    def worth_cutting(self, rows: int, of: int, time: int) -> bool:
        """Whether it pays, before the step at `time`, to go on with `rows` alone: a step is to be recorded again."""
        if self.recorder.records and not self.state.moves(time):
            return not self.state.skips and rows <= 0.4 * of and of - rows >= RECORDING_ROWS
        return rows <= 0.9 * of


class _Sampling(Search):
    def __init__(
        self,
        decoder: StepDecoder,
        memory: Any,
        wanted: WantedDraws,
        start: int,
        ends: tuple[int, ...],
        truncation: Truncation,
        arithmetic: bool,
    ) -> None:
        keys, limits = wanted.keys, wanted.limits
        self.sources = sources = len(keys)
        width = int(wanted.counts.max())
        total, device = sources * width, keys.device
        super().__init__(device, total)
        numbers = torch.arange(width, device=device)
        kind = ArithmeticUniforms if arithmetic else IndependentUniforms
        self.random = kind(keys[:, None], wanted.first[:, None] + numbers)
        self.alive = (numbers < wanted.counts[:, None]).flatten()
        self.last_left = total  # rows that were alive at the last look
        self.limit = limits.repeat_interleave(width)
        self.source = torch.arange(sources, device=device).repeat_interleave(width)
        # finished rows write to row `total`, which is dropped
        self.total = total
        self.owner = torch.where(self.alive, torch.arange(total, device=device), total)
        self.out = torch.full((total + 1, int(limits.max())), -1, dtype=torch.int32, device=device)
        self.scores = torch.zeros(total + 1, dtype=torch.float32, device=device)
        self.state, self.ids = decoder.start(memory, width), torch.full((total,), start, device=device)
        self.ends, self.truncation = ends, truncation

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

    def cut(self, time: int) -> bool:
        """Go on, from the step at `time`, with fewer rows if that pays; False if none is left."""
        left, rows = int(self.alive.sum()), len(self.alive)
        if left > 0 and self.worth_cutting(left, rows, time):
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


def is_end(ids: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Which ids end a row."""
    found = ids == ends[0]
    for end in ends[1:]:
        found = found | (ids == end)
    return found
