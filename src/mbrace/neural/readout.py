"""From a transformer's hidden states to one vector per string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrace.neural.packed import add_mean
from mbrace.neural.tokens import PackedTokens


@dataclass(frozen=True)
class Readout:
    """From a transformer's hidden states to one vector: which layers, and how their tokens are pooled.

    `weights` mixes all layers (COMET's layer-wise attention, times gamma); without them only `layer` is read.
    """

    pool: str  # avg, max, cls or last
    weights: tuple[float, ...] | None = None
    layer: int = -1
    layer_norm: bool = False  # normalise each layer over the sentence's tokens and units before mixing

    def __call__(self, states: Sequence[Tensor] | dict[int, Tensor], kept: Tensor | None, lengths: Tensor) -> Tensor:
        """(strings, units) in float32 from hidden states (strings, tokens, units) of every layer.

        `kept` (strings, tokens) is False for padding tokens, and as in COMET also for a literal `<pad>` in the text,
        which attention and layer norm see and pooling does not; None if all are kept. `lengths` (strings,) counts the
        tokens that attend.
        """
        weights = self._weights
        if self.pool == "max":
            mixed = sum(w * self._normed(states[layer].float(), lengths) for layer, w in weights.items())
            if kept is not None:
                mixed = mixed.masked_fill(~kept.unsqueeze(-1), float("-inf"))  # type: ignore[union-attr]
            return mixed.amax(dim=1)  # type: ignore[union-attr]
        # Averaging tokens and mixing layers are both linear: average each layer first, then mix the short vectors.
        vectors = None
        for layer, weight in weights.items():
            pooled = self._pooled(states[layer], kept, lengths)
            vectors = weight * pooled if vectors is None else vectors + weight * pooled
        assert vectors is not None
        return vectors

    @property
    def _weights(self) -> dict[int, float]:
        """The weights of the layers that are read: sparsemax drops whole layers."""
        weights = {self.layer: 1.0} if self.weights is None else dict(enumerate(self.weights))
        return {layer: weight for layer, weight in weights.items() if weight}

    @property
    def reads_packed(self) -> bool:
        """Whether `packed` can be used."""
        return self.pool in ("avg", "cls", "last") and not self.layer_norm

    def packed(self, states: Iterable[Tensor], layers: int, tokens: PackedTokens, *, pad: int) -> Tensor:
        """The same on a GPU for strings that follow one another: states (tokens, units) of one layer after another.

        Of `layers` layers, those above the last one that is read are not computed.
        """
        weights = {layer % layers: weight for layer, weight in self._weights.items()}
        offsets, vectors = tokens.offsets, None
        for layer, state in zip(range(max(weights) + 1), states, strict=False):
            if vectors is None:
                shape = len(offsets) - 1, state.shape[1]
                vectors = torch.zeros(shape, dtype=torch.float32, device=state.device)
            if layer not in weights:
                continue
            if self.pool == "avg":
                add_mean(vectors, state, tokens.ids, offsets, weight=weights[layer], pad=pad)
            else:
                read = offsets[:-1] if self.pool == "cls" else offsets[1:] - 1
                # a string without tokens has no vector: it gets some token's, not one behind the last
                vectors.add_(state[read.clamp(max=len(state) - 1)], alpha=weights[layer])
        assert vectors is not None
        return vectors

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
