"""Host memory from which a GPU copies while the host goes on: allocated once and used again.

Allocating such memory, which the system must not move, can make the host wait for what the GPU is doing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SMALLEST = 1 << 20  # numbers per buffer
_MOST_BUFFERS = 4


def copy_to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    """Whole numbers below 2^31, one array after another, as int64 on a device, without waiting for what it is doing."""
    if device.type == "cuda":
        return _buffers_of(device).copy_to_device(arrays).long()
    joined = np.concatenate([array.astype(np.int32, copy=False) for array in arrays])
    return torch.from_numpy(joined).to(device, non_blocking=True).long()


class _Buffers:
    """Buffers in host memory for copies to one GPU, and for each when its last copy is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._buffers: list[tuple[Tensor, Any]] = []  # and events; the buffer used longest ago first

    def copy_to_device(self, arrays: Sequence[NDArray[Any]]) -> Tensor:
        size = sum(map(len, arrays))
        with self._lock, torch.cuda.device(self._device):
            buffer, done = self._free(size)
            np.concatenate(arrays, out=buffer.numpy()[:size], casting="same_kind")
            there = buffer[:size].to(self._device, non_blocking=True)
            done.record()
            self._buffers.append((buffer, done))
        return there

    def _free(self, size: int) -> tuple[Tensor, Any]:
        """A buffer for so many numbers that no copy is reading; waits for one if there are many."""
        for index, (buffer, done) in enumerate(self._buffers):
            if len(buffer) >= size and done.query():
                return self._buffers.pop(index)
        if len(self._buffers) == _MOST_BUFFERS:
            buffer, done = self._buffers.pop(0)
            done.synchronize()
            if len(buffer) >= size:
                return buffer, done
        room = max(_SMALLEST, 1 << (size - 1).bit_length())
        make_event: Any = torch.cuda.Event
        return torch.empty(room, dtype=torch.int32, pin_memory=True), make_event()


@cache
def _buffers_of(device: torch.device) -> _Buffers:
    return _Buffers(device)
