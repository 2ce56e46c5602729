"""How searches use a GPU: Triton kernels where they work, streams, and steps recorded as CUDA graphs.

The host takes longer to launch the 200 kernels of a small decoder's step than the GPU to run them. So a step of fixed
shapes is recorded once and replayed with a single launch. A recorded step reads and writes the same memory each time:
whatever changes must be a tensor that is changed in place; Python runs only while it is recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch

from mbrace.errors import warn
from mbrace.neural.device import first_line, triton_kernels

MOST_ROWS = 16384  # with more rows a step takes the GPU longer than its launches take the host
_failed: set[torch.device] = set()  # devices on which a recording has failed
_recording = threading.Lock()  # steps are recorded one at a time


class Recorder:
    """Replays a step, once it has been recorded."""

    def __init__(self, device: torch.device, rows: int) -> None:
        self._device = device
        self.records = rows <= MOST_ROWS and can_record(device)  # whether steps are recorded at all
        self._recording: Any = None

    def replay(self, step: Callable[[], None]) -> bool:
        """Do the step by a recording, which is made if there is none; False if that cannot be done."""
        if self.records and self._recording is None:
            self._recording = record(step, self._device)
            self.records = self._recording is not None
        if self._recording is None:
            return False
        self._recording.replay()
        return True

    def forget(self) -> None:
        """Drop the recording: memory has moved, shapes have changed, or the search is over."""
        if self._recording is not None:
            if self._device.type == "cuda":  # a recording must not be dropped while it runs
                torch.cuda.current_stream(self._device).synchronize()
            self._recording = None


@cache
def kernels_for(device: torch.device) -> ModuleType | None:
    """The module of Triton kernels (kernels.py), where they can be used: on a CPU only in Triton's interpreter."""
    if triton_kernels(device) is None:  # which tries one
        return None
    from mbrace.models import kernels

    return kernels


def record(step: Callable[[], None], device: torch.device) -> Any:
    """A recording of the step, which is not done yet; None, and a warning, if it cannot be recorded."""
    try:
        return _record(step, device)
    except Exception as error:  # such as too little memory, or an operation that cannot be recorded
        if not isinstance(error, torch.OutOfMemoryError):  # later there may be enough
            _failed.add(device)
        warn(f"decoding continues without CUDA graphs: {first_line(error)}")
        return None


def empty_cache() -> None:
    """Free cached GPU memory, but not while a step is being recorded."""
    with _recording:
        torch.cuda.empty_cache()


def can_record(device: torch.device) -> bool:
    """Whether steps can be recorded on a device."""
    return device.type == "cuda" and torch.version.hip is None and device not in _failed


def _record(step: Callable[[], None], device: torch.device) -> Any:
    with _recording:
        return _captured(step, device, *_stream_and_memory(device, torch.cuda.current_stream(device))[:2])


def _captured(step: Callable[[], object], device: torch.device, stream: Any, pool: Any) -> Any:
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        # not by torch.cuda.graph, which gives all cached memory back to the system first
        graph.capture_begin(pool=pool, capture_error_mode="relaxed")
        try:
            step()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph


@cache
def _stream_and_memory(device: torch.device, replayed_on: Any) -> tuple[Any, Any, Any]:
    """The stream and the memory of recordings that are replayed on one stream of a device: memory is used again by the
    next recording, but recordings that may be replayed at the same time have none in common; and a recording that is
    kept, since memory is given up with its last one."""
    make_stream: Any = torch.cuda.Stream
    stream, pool = make_stream(device), torch.cuda.graph_pool_handle()
    kept = torch.zeros(1, device=device)
    return stream, pool, (_captured(lambda: kept.add_(1), device, stream, pool), kept)


_starting = threading.RLock()  # held by the search that is starting


@contextmanager
def exclusive_start(device: torch.device) -> Iterator[ExitStack]:
    """Inside, no other search starts on a GPU, until the stack is closed."""
    with ExitStack() as starting:
        if device.type == "cuda":
            starting.enter_context(_starting)
        yield starting


@contextmanager
def on_own_stream(device: torch.device, name: str, *, after: Any = None) -> Iterator[None]:
    """Inside, this thread's GPU work goes to the CUDA stream of that name, and begins after what is now queued in the
    stream `after`, by default the thread's current one.

    Tensors made inside are to be used inside only, or copied to the host.
    """
    if device.type != "cuda":
        yield
        return
    stream = _stream(device, name)
    stream.wait_stream(torch.cuda.current_stream(device) if after is None else after)
    with torch.cuda.stream(stream):
        yield


@cache
def _stream(device: torch.device, name: str) -> Any:
    make_stream: Any = torch.cuda.Stream
    return make_stream(device)
