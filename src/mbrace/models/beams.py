"""Beam search for many sources: in parts of similar length, some of which are searched at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mbrace.models import beam_search
from mbrace.models.at_once import run_searches
from mbrace.models.startup import wait_for_startups

if TYPE_CHECKING:
    from mbrace.models.live import LiveModel

ENCODED_AT_ONCE = 1 << 16  # ids of sources, padding included, whose memory is kept for several searches


@dataclass(frozen=True)
class BeamOutputs:
    """One source's outputs of beam search, best first, and their scores: log p / length ** alpha.

    Texts may repeat, since different ids can make the same text.
    """

    texts: Sequence[str]
    scores: Sequence[float]


class Beams:
    """The beam searches of some sources."""

    def __init__(
        self,
        model: LiveModel,
        sources: Sequence[str],
        k: int,
        alpha: float,
        max_length: int | None,
    ) -> None:
        self._model, self._k, self._alpha, self._max_length = model, k, alpha, max_length
        self._rows = model.codec.encode(sources)
        counts = [k if source.strip() else 0 for source in sources]
        self._parts = list(model.parts(self._rows, counts, max_length))
        self._ends = list(itertools.accumulate(map(len, self._parts)))
        self._whole = self._encoded_together()

    def outputs(self) -> list[BeamOutputs]:
        """Those of each source; a source without text has one output without text."""
        model = self._model
        out = [BeamOutputs([""], [0.0])] * len(self._rows)
        found = run_searches(len(self._parts), self._search, self._write, model.device, model.beams_at_once)
        for part, outputs in zip(self._parts, found, strict=True):
            for i, output in zip(part, outputs, strict=True):
                out[i] = output
        return out

    def _encoded_together(self) -> Any:
        """The decoder's memory of all sources, in the order of parts; None if each part is to be encoded by itself.

        A GPU takes about as long for all parts as for one, if there are not too many.
        """
        rows = [self._rows[i] for part in self._parts for i in part]
        by_itself = len(self._parts) < 2 or not self._model.two_searches or self._model.device.type == "cpu"
        if by_itself or len(rows) * max(map(len, rows)) > ENCODED_AT_ONCE:
            return None
        try:
            return self._model.encode(rows)
        except torch.OutOfMemoryError:
            return None

    def _search(self, number: int) -> tuple[list[list[float]], Tensor]:
        """The scores (sources, k) of a part, and ids (sources x k, time), on the host."""
        model, rows = self._model, [self._rows[i] for i in self._parts[number]]
        with torch.inference_mode():  # here, too: it does not go over to other threads
            limits = model.lengths(rows, self._max_length)
            if self._whole is None:
                memory = model.encode(rows)
            else:
                end = self._ends[number]
                memory = self._whole.part(end - len(rows), end, model.padded_width(rows))
            found = beam_search.beam(
                model.decoder, memory, limits, k=self._k, alpha=self._alpha, start=model.start, ends=model.ends
            )
            return found.scores.view(len(rows), -1).tolist(), found.ids.cpu()

    def _write(self, number: int, found: tuple[list[list[float]], Tensor]) -> list[BeamOutputs]:
        """The outputs of the sources of a part."""
        if number < len(self._parts) - 1:
            wait_for_startups()
        texts, k = self._model.texts(found[1]), self._k
        outputs = []
        for row, scores in enumerate(found[0]):
            mine = texts[row * k : row * k + k]
            if not min(scores) > float("-inf"):  # some are no outputs
                real = [n for n, score in enumerate(scores) if score > float("-inf")]
                mine, scores = [mine[n] for n in real], [scores[n] for n in real]
            outputs.append(BeamOutputs(mine, scores))
        return outputs
