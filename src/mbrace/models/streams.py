"""Queues of work for a GPU beside the usual one, so that several things can be done at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@contextmanager
def on_own_stream(device: torch.device, name: str, *, urgent: bool = False, after: Any = None) -> Iterator[None]:
    """Inside, what this thread gives a GPU to do goes into the queue of that name. The GPU begins with it when it has
    done what is now in the queue `after`, by default the thread's usual one.

    Work in an urgent queue is begun before that in others. Tensors made inside are to be used inside only, or copied to
    the host.
    """
    if device.type != "cuda":
        yield
        return
    stream = _stream(device, name, -1 if urgent else 0)
    stream.wait_stream(torch.cuda.current_stream(device) if after is None else after)
    with torch.cuda.stream(stream):
        yield


@cache
def _stream(device: torch.device, name: str, priority: int) -> Any:
    make_stream: Any = torch.cuda.Stream
    return make_stream(device, priority=priority)
