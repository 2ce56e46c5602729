"""Seconds and calls of the parts of translating: searches, time steps, tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from mbrace.models import live, search
from mbrace.models.live import LiveModel
from mbrace.models.sampling import EncodedSources
from mbrace.neural.encoder import Encoder


@dataclass
class Clock:
    """Seconds and numbers of calls, by what was done."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted. The GPU may go on when it returns: only waiting shows that."""

        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
                self.calls[name] = self.calls.get(name, 0) + 1

        return timed


@contextmanager
def clocked(clock: Clock) -> Iterator[None]:
    """Count inside: searches, time steps, ids to texts, texts to tokens."""
    with (
        mock.patch.object(EncodedSources, "draw", clock.around("sample", EncodedSources.draw)),
        mock.patch.object(live, "beam_outputs", clock.around("beam", live.beam_outputs)),
        mock.patch.object(search.Search, "advance", clock.around("step", search.Search.advance)),
        mock.patch.object(LiveModel, "texts", clock.around("texts", LiveModel.texts)),
        mock.patch.object(Encoder, "tokenize", clock.around("tokenise", Encoder.tokenize)),
    ):
        yield
