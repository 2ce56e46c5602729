"""Vectors of strings that a thread encodes before they are asked for, beside other work of a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mbrace.utilities.neural.streams import on_own_stream

MOST = 1 << 17  # strings that are kept for those who will ask for them


@dataclass(frozen=True, eq=False)
class _Batch:
    """Strings that are encoded together: their vectors, and an event after which a GPU has them."""

    vectors: Future[tuple[Tensor, Any]]


class EncodedAhead:
    """Strings that are being encoded, and their vectors until they are asked for."""

    def __init__(self, encode: Callable[[Sequence[str]], Tensor], device: torch.device) -> None:
        self._encode, self._device = encode, device
        self._places: dict[str, tuple[_Batch, int]] = {}  # the batch of each string, and its row there
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="mbrace-encoder")
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the weights are there, for any queue of work

    def begin(self, texts: Sequence[str]) -> None:
        """Begin to encode these strings, unless that has begun."""
        with self._lock:
            new = [text for text in dict.fromkeys(texts) if text not in self._places]
            if not new:
                return
            if len(self._places) + len(new) > MOST:  # somebody does not ask for what was begun
                self._places.clear()
            batch = _Batch(self._worker.submit(self._vectors, new))
            self._places.update((text, (batch, row)) for row, text in enumerate(new))

    def take(self, texts: Sequence[str]) -> list[tuple[list[int], Tensor]]:
        """The vectors of those of these strings that were begun, with their indices in `texts`; each is given once.

        Waits until they are encoded. Strings whose encoding failed are left out.
        """
        of_batch: dict[_Batch, tuple[list[int], list[int]]] = {}
        with self._lock:
            for index, text in enumerate(texts if self._places else ()):
                place = self._places.pop(text, None)
                if place is not None:
                    indices, rows = of_batch.setdefault(place[0], ([], []))
                    indices.append(index)
                    rows.append(place[1])
        found = []
        for batch, (indices, rows) in of_batch.items():
            if batch.vectors.exception() is None:
                vectors, made = batch.vectors.result()
                if made is not None:
                    here = torch.cuda.current_stream(self._device)
                    here.wait_event(made)
                    vectors.record_stream(here)
                found.append((indices, vectors[torch.tensor(rows, device=vectors.device)]))
        return found

    def _vectors(self, texts: Sequence[str]) -> tuple[Tensor, Any]:
        with on_own_stream(self._device, "encode ahead"), torch.inference_mode():
            vectors = self._encode(texts)
            if self._device.type != "cuda":
                return vectors, None
            make_event: Any = torch.cuda.Event
            made = make_event()
            made.record()
            return vectors, made
