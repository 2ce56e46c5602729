"""What beam search and sampling share: time steps of a decoder's rows, and concurrent searches.

The rows of one source are neighbours, and rows in use come first. Others exist only on a GPU, where a step is recorded
for a fixed number of rows: kernels (kernels.py) skip them, except in matrix products by torch. Only the number of rows
left is read back, every few steps.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from mbrace.models import gpu

# Recording a step takes about as long as a GPU takes to run the remaining steps for this many more rows.
RECORDING_ROWS = 1000


@dataclass(frozen=True)
class Memory:
    """What a decoder attends to: tensors (sources, ..., length, ...), whose dimension `dim` is the length, and their
    mask (sources, length); `last` are the logits (sources, vocabulary) that follow a prompt.

    Memories of different lengths are joined by padding, on the left or the right.
    """

    tensors: list[Tensor]
    mask: Tensor
    dim: int
    left: bool = False
    last: Tensor | None = None

    def __len__(self) -> int:
        return len(self.mask)

    def select(self, sources: Tensor) -> Memory:
        """The memory of some of the sources."""
        last = None if self.last is None else self.last[sources]
        return replace(self, tensors=[x[sources] for x in self.tensors], mask=self.mask[sources], last=last)

    @staticmethod
    def join(memories: Sequence[Memory]) -> Memory:
        """One memory of all sources."""
        first, width = memories[0], max(memory.mask.shape[1] for memory in memories)

        def padded(parts: Sequence[Tensor], dim: int) -> Tensor:
            """(sources, ...) of all parts, filled up with zeros."""
            missing = [x.new_zeros((*x.shape[:dim], width - x.shape[dim], *x.shape[dim + 1 :])) for x in parts]
            pairs = zip(missing, parts, strict=True) if first.left else zip(parts, missing, strict=True)
            return torch.cat([torch.cat(pair, dim) for pair in pairs])

        tensors = [padded(each, first.dim) for each in zip(*(memory.tensors for memory in memories), strict=True)]
        last = None if first.last is None else torch.cat([m.last for m in memories if m.last is not None])
        return replace(first, tensors=tensors, mask=padded([m.mask for m in memories], 1), last=last)


class DecoderState:
    """The rows of a batch between steps. What is here is for a state that cannot be recorded (see gpu.py)."""

    recordable = False  # whether a step changes tensors only in place
    skips = False  # whether rows that are not in use take little time in all parts of a step

    @property
    def used(self) -> Tensor | None:
        """How many rows, the first ones, are in use, (1,), if the others take less time; None if all take as long."""
        return None

    def must_grow(self, time: int) -> bool:
        """Whether the step at `time` needs more room than there is, so that memory will move."""
        return True

    def make_room(self, time: int, rows: int) -> bool:
        """Called before the step at `time`: make room for it. True if memory has moved."""
        return False

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Feed the last id of each row, (rows,); logits (rows, vocabulary) and a bias to be added.

        The bias (vocabulary,) is float32, or None; logits are in the model's own precision, and undefined for rows
        that are not in use.
        """
        raise NotImplementedError

    def select(self, rows: Tensor, offsets: Tensor, *, sources: Tensor | None = None) -> None:
        """Keep `rows` (indices, with repeats), of `sources` only (default: all).

        The rows of source i are offsets[i] to offsets[i + 1]; from the last offset on, rows are not in use.
        """
        raise NotImplementedError


class StepDecoder(Protocol):
    """A model that decodes step by step."""

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """The memory of padded source ids (sources, width), real where `mask` is True."""
        ...

    def start(self, memory: Memory, width: int, most: int | None = None) -> DecoderState:
        """The state of `width` rows per source of `memory`, before the first step; later, of `most` (default: width)
        at most."""
        ...


@dataclass(frozen=True)
class Sequences:
    """Ids (rows, time), end included and filled up with -1; scores (rows,)."""

    ids: Tensor
    scores: Tensor


class Search:
    """A search between steps. `step` changes its tensors in place, so that it can be recorded."""

    state: DecoderState
    ids: Tensor  # the last of each row

    def __init__(self, device: torch.device, rows: int) -> None:
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)  # the time of the next step
        self.recorder = gpu.Recorder(device, rows)
        # Steps between checks of how many rows are left: reading from a GPU makes the host wait.
        self.check_every = 1 if device.type != "cuda" else 8 if self.recorder.records else 4

    def keeps_rows(self) -> bool:
        """Whether rows that are not in use stay, so that a step that is recorded has the same shapes."""
        return self.state.recordable and (self.clock.device.type == "cuda" or self.recorder.records)

    def step(self) -> None:
        """One time step."""
        raise NotImplementedError

    def run(self, steps: int, starting: ExitStack) -> None:
        """At most `steps` steps. `starting` is closed as soon as steps are replayed: other searches can start."""
        for time in range(steps):
            self.advance(time)
            if time > 0:
                starting.close()
            if (time + 1) % self.check_every == 0 and not self.compact(time + 1):
                break
        self.recorder.forget()

    def compact(self, time: int) -> bool:
        """Drop finished rows before the step at `time` if that pays; False if none is left."""
        raise NotImplementedError

    def advance(self, time: int) -> None:
        """The step at `time`: from the second step on, since their shapes are the same, by a recording if possible."""
        if self.state.make_room(time, len(self.ids)):
            self.recorder.forget()
        if time == 0 or not self.state.recordable or not self.recorder.replay(self.step):
            self.state.make_room(time, len(self.ids))  # again, if recording was tried and failed
            self.step()

    def worth_compacting(self, rows: int, of: int, time: int) -> bool:
        """Whether it pays, before the step at `time`, to keep only `rows`, though a step must be recorded again."""
        if self.recorder.records and not self.state.must_grow(time):
            return not self.state.skips and rows <= 0.4 * of and of - rows >= RECORDING_ROWS
        return rows <= 0.9 * of


def is_end(ids: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Which ids end a row."""
    found = ids == ends[0]
    for end in ends[1:]:
        found = found | (ids == end)
    return found


# Python's switch interval in seconds while several threads launch GPU work: the usual 0.005 makes the GPU wait.
SWITCH_INTERVAL = 0.0005

Found = TypeVar("Found")
Written = TypeVar("Written")


def run_searches(
    count: int,
    search: Callable[[int], Found],
    write: Callable[[int, Found], Written],
    device: torch.device,
    concurrent: int = 1,
) -> list[Written]:
    """Run `search` for 0 to count - 1 and post-process each result by `write` while the next search runs.

    `concurrent` searches run at the same time, each on a stream of its own. One for which the GPU has too little memory
    next to the others is run again alone.
    """
    with ThreadPoolExecutor(1) as writer:
        if min(concurrent, count) < 2:
            written = [writer.submit(write, number, search(number)) for number in range(count)]
            return [each.result() for each in written]
        begun = _run_together(
            count, search, lambda number, found: writer.submit(write, number, found), device, concurrent
        )
        for number, each in enumerate(begun):
            if each is None:
                gpu.empty_cache()
                begun[number] = writer.submit(write, number, search(number))
        return [each.result() for each in begun if each is not None]


def _run_together(
    count: int,
    search: Callable[[int], Found],
    write: Callable[[int, Found], Future[Written]],
    device: torch.device,
    concurrent: int,
) -> list[Future[Written] | None]:
    """The same for concurrent searches; None where there was too little memory."""
    gpu.kernels_for(device)  # found out before several threads need to know
    here: Any = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def work(number: int) -> Future[Written] | None:
        with gpu.on_own_stream(device, threading.current_thread().name, after=here):
            try:
                found = search(number)
            except torch.OutOfMemoryError:
                return None
        return write(number, found)

    searchers = ThreadPoolExecutor(concurrent, thread_name_prefix="search")  # search_0, search_1, ...
    try:
        with _short_switch_interval():
            found = list(searchers.map(work, range(count)))
    except BaseException as error:  # after Ctrl-C, running searches end later
        searchers.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    searchers.shutdown()
    return found


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCH_INTERVAL, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
