"""Strings that are encoded before they are asked for: on a GPU a thread does so while a model generates others.

A GPU that generates text step by step is not busy all of the time, and neither is the host. On a CPU both would only
take cores away from each other, so there nothing is begun, and strings are encoded when they are asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mbrace.errors import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MOST_GROUPS = 4  # kept that nobody has asked for


@dataclass(frozen=True)
class _Group:
    rows: dict[str, int]  # of the strings that nobody has taken yet
    vectors: Future[tuple[Tensor, Any]]  # and, on a GPU, the event that says that they are there


class EncodedAhead:
    """Groups of strings that are being encoded or were, each until its strings are taken."""

    def __init__(self, embed: Callable[[Sequence[str]], Tensor], device: torch.device) -> None:
        self._embed, self._device = embed, device
        self._worker = ThreadPoolExecutor(1, "encode-ahead")
        self._groups: list[_Group] = []
        self._lock = threading.Lock()
        self._stream: Any = None  # of the GPU, for the thread alone
        if device.type == "cuda":
            make_stream: Any = require("torch", extra="neural").cuda.Stream
            self._stream = make_stream(device)

    def begin(self, texts: Sequence[str]) -> None:
        """Encode these strings in the background."""
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        if self._stream is not None:
            cuda = require("torch", extra="neural").cuda
            self._stream.wait_stream(cuda.current_stream(self._device))  # whoever made the network may be there
        with self._lock:
            self._groups = [*self._groups, _Group(rows, self._worker.submit(self._work, list(rows)))][-_MOST_GROUPS:]

    def take(self, texts: Sequence[str]) -> Iterator[tuple[list[str], Tensor]]:
        """Those of these strings that were begun, and their vectors; waits for them. Each is given once."""
        torch = require("torch", extra="neural")
        with self._lock:
            groups = list(self._groups)
        for group in groups:
            found = {text: group.rows.pop(text) for text in texts if text in group.rows}
            if not found:
                continue
            vectors, ready = group.vectors.result()
            if ready is not None:
                stream = torch.cuda.current_stream(self._device)
                stream.wait_event(ready)
                vectors.record_stream(stream)  # not to be used for anything else before that has read it
            if not group.rows:
                with self._lock:
                    self._groups = [each for each in self._groups if each is not group]
            yield list(found), vectors[torch.tensor(list(found.values())).to(self._device, non_blocking=True)]

    def _work(self, texts: list[str]) -> tuple[Tensor, Any]:
        torch = require("torch", extra="neural")
        with torch.inference_mode():
            if self._stream is None:
                return self._embed(texts), None
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                vectors = self._embed(texts)
                ready = torch.cuda.Event()
                ready.record()
                return vectors, ready
