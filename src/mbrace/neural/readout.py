"""From a transformer's hidden states to one vector per string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class Readout:
    """From a transformer's hidden states to one vector: which layers, and how their tokens are pooled.

    `weights` mixes all layers (COMET's layer-wise attention, times gamma); without them only `layer` is read.
    """

    pool: str  # avg, max, cls or last
    weights: tuple[float, ...] | None = None
    layer: int = -1
    layer_norm: bool = False  # normalise each layer over the sentence's tokens and units before mixing

    def __call__(self, states: Sequence[Any] | dict[int, Tensor], kept: Tensor | None, lengths: Tensor) -> Tensor:
        """(strings, units) in float32 from hidden states (strings, tokens, units) of every layer.

        `kept` (strings, tokens) is False for padding tokens, and as in COMET also for a literal `<pad>` in the text,
        which attention and layer norm see and pooling does not; None if all are kept. `lengths` (strings,) counts the
        tokens that attend.
        """
        weights = self._weights
        if self.pool == "max":
            mixed: Any = sum(w * self._normed(states[layer].float(), lengths) for layer, w in weights.items())
            return (mixed if kept is None else mixed.masked_fill(~kept.unsqueeze(-1), float("-inf"))).amax(dim=1)  # type: ignore[no-any-return]
        # Averaging tokens and mixing layers are both linear: average each layer first, then mix the short vectors.
        vectors: Any = sum(w * self._pooled(states[layer], kept, lengths) for layer, w in weights.items())
        return vectors  # type: ignore[no-any-return]

    def reads(self, layers: int) -> set[int]:
        """Which of the hidden states of a network with `layers` of them are read."""
        return {layer % layers for layer in self._weights}

    @property
    def is_mean(self) -> bool:
        """Whether `mean` can be used."""
        return self.pool == "avg" and not self.layer_norm

    def mean(self, states: Sequence[Any], kept: Tensor | None, lengths: Tensor, offsets: Tensor) -> Tensor:
        """The same in one call for strings of any lengths that follow one another: states (tokens, units).

        String i has `lengths[i]` tokens, from offsets[i] on.
        """
        mixed: Any = 0.0
        for layer, weight in self._weights.items():
            mixed = mixed + states[layer].float() * weight
        if kept is not None:
            mixed = mixed.masked_fill(~kept[:, None], 0.0)
        numbers = torch.arange(len(mixed), dtype=offsets.dtype, device=mixed.device)
        return F.embedding_bag(numbers, mixed, offsets[:-1], mode="sum") / lengths[:, None]

    @property
    def _weights(self) -> dict[int, float]:
        """The weights of the layers that are read: sparsemax drops whole layers."""
        weights = {self.layer: 1.0} if self.weights is None else dict(enumerate(self.weights))
        return {layer: weight for layer, weight in weights.items() if weight}

    def _normed(self, state: Tensor, lengths: Tensor) -> Tensor:
        if not self.layer_norm:
            return state
        mean, deviation = _moments(state, lengths)
        return (state - mean[:, None, None]) / deviation[:, None, None]

    def _pooled(self, state: Tensor, kept: Tensor | None, lengths: Tensor) -> Tensor:
        share: Tensor | float = 1.0  # pooled tokens / attended tokens: less than 1 if the text holds <pad>
        if self.pool == "cls":
            pooled = state[:, 0].float()
        elif self.pool == "last":
            pooled = state[torch.arange(len(state), device=state.device), lengths - 1].float()
        elif kept is None:
            pooled = state.sum(dim=1, dtype=torch.float32) / lengths[:, None]
        else:
            pooled = (state * kept.unsqueeze(-1)).sum(dim=1, dtype=torch.float32) / lengths[:, None]
            share = kept.sum(dim=1, keepdim=True) / lengths[:, None]
        if not self.layer_norm:
            return pooled
        mean, deviation = _moments(state.float(), lengths)
        centred: Tensor = pooled - mean[:, None] * share
        return centred / deviation[:, None]


def _moments(state: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (strings,) over a string's tokens and units, as in COMET's masked layer norm."""
    mask = (torch.arange(state.shape[1], device=state.device)[None] < lengths[:, None]).unsqueeze(-1)
    count = lengths * state.shape[-1]
    mean = (state * mask).flatten(1).sum(1) / count
    variance = (((state - mean[:, None, None]) * mask) ** 2).flatten(1).sum(1) / count
    return mean, (variance + 1e-12).sqrt()
