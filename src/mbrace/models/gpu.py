"""How searches use a GPU: Triton kernels where they work, and steps recorded as CUDA graphs.

A step of a small decoder takes the host longer to start (each of some 200 kernels alone) than the GPU to compute. So a
step of fixed shapes is recorded once and replayed: the host starts one thing per step. A recorded step reads and writes
the same memory each time: whatever changes must be in tensors that are changed in place; what Python computes is part
of the recording only once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch

from mbrace.errors import warn
from mbrace.neural.device import first_line

MOST_ROWS = 16384  # more rows keep a GPU busy for longer than the host takes to start a step
_failed: set[torch.device] = set()  # devices on which a recording has failed


class Recorder:
    """Replays a step, once it has been recorded."""

    def __init__(self, device: torch.device, rows: int) -> None:
        self._device = device
        self._records = rows <= MOST_ROWS and can_record(device)
        self._recording: Any = None

    @property
    def records(self) -> bool:
        """Whether steps are recorded at all."""
        return self._records

    def replay(self, step: Callable[[], None]) -> bool:
        """Do the step by a recording, which is made if there is none; False if that cannot be done."""
        if self._records and self._recording is None:
            self._recording = record(step, self._device)
            self._records = self._recording is not None
        if self._recording is None:
            return False
        self._recording.replay()
        return True

    def forget(self) -> None:
        """What is recorded is void: memory has moved, shapes have changed, or the search is over."""
        if self._recording is not None:
            finish(self._device)
            self._recording = None


@cache
def kernels_for(device: torch.device) -> ModuleType | None:
    """The module of Triton kernels, where they can be used."""
    if device.type == "mps":
        return None
    try:
        from mbrace.models import kernels
    except ImportError:
        return None
    return kernels if kernels.usable(device) else None


def can_record(device: torch.device) -> bool:
    """Whether steps can be recorded on a device."""
    return device.type == "cuda" and torch.version.hip is None and device not in _failed


def record(step: Callable[[], None], device: torch.device) -> Any:
    """A recording of the step, which is not done yet; None, and a warning, if it cannot be recorded."""
    try:
        return _record(step, device)
    except Exception as error:  # such as too little memory, or an operation that cannot be recorded
        if not isinstance(error, torch.OutOfMemoryError):  # later there may be enough
            _failed.add(device)
        warn(f"decoding goes on without CUDA graphs: {first_line(error)}")
        return None


def finish(device: torch.device) -> None:
    """Wait until the GPU has done what it was given: a recording must not be dropped while it runs."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _record(step: Callable[[], None], device: torch.device) -> Any:
    return _captured(step, device, *_stream_and_memory(device)[:2])


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
def _stream_and_memory(device: torch.device) -> tuple[Any, Any, Any]:
    """The stream on which steps are recorded and the memory of recordings, which the next recording uses again; and a
    recording that is kept, since memory is given up with its last one."""
    make_stream: Any = torch.cuda.Stream
    stream, pool = make_stream(device), torch.cuda.graph_pool_handle()
    kept = torch.zeros(1, device=device)
    return stream, pool, (_captured(lambda: kept.add_(1), device, stream, pool), kept)
