"""A second queue of work for a GPU, so that draws can be made beside a beam search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@contextmanager
def on_second_stream(device: torch.device) -> Iterator[None]:
    """Inside, what this thread gives a GPU to do goes into a queue of its own, after what is in the usual queue now.

    Tensors made inside are to be used inside only, or copied to the host.
    """
    if device.type != "cuda":
        yield
        return
    stream = _second_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


@cache
def _second_stream(device: torch.device) -> Any:
    make_stream: Any = torch.cuda.Stream
    return make_stream(device)
