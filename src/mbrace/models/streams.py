"""Queues of work for a GPU beside the usual one, so that several things can be done at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@contextmanager
def on_own_stream(device: torch.device, name: str, *, urgent: bool = False) -> Iterator[None]:
    """Inside, what this thread gives a GPU to do goes into the queue of that name, after what is now in the usual one.

    What is in an urgent queue is begun first: small steps, that others would keep waiting. Tensors made inside are to
    be used inside only, or copied to the host.
    """
    if device.type != "cuda":
        yield
        return
    stream = _stream(device, name, -1 if urgent else 0)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


@cache
def _stream(device: torch.device, name: str, priority: int) -> Any:
    make_stream: Any = torch.cuda.Stream
    return make_stream(device, priority=priority)
