"""Strings to sentence vectors: batches of strings, sorted by length, go through a transformer.

BERT, RoBERTa and XLM-RoBERTa need no padding (packed.py): in float32 on a CPU, and in 16 bits on a GPU. Other networks
get padded batches on a GPU, and on a CPU batches of strings of one length (batches.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from mbrace.neural.batches import BatchStream
from mbrace.neural.packed import packed_network
from mbrace.neural.tokens import PackedTokens, TokenBatch, Tokens, copy_to_device, tokenised


@dataclass(frozen=True)
class Readout:
    """From a transformer's hidden states to one vector: which layers, and how their tokens are pooled.

    `weights` mixes all layers (COMET's layer-wise attention, times gamma); without them only `layer` is read.
    """

    pool: str  # avg, max, cls or last
    weights: tuple[float, ...] | None = None
    layer: int = -1
    layer_norm: bool = False  # normalise each layer over the sentence's tokens and units before mixing

    def __call__(self, states: Sequence[Any], kept: Tensor | None) -> Tensor:
        """(strings, units) in float32, of strings of one length, from hidden states (strings, tokens, units) of every
        layer.

        `kept` (strings, tokens) is False for a literal `<pad>` in the text, which in COMET attention and layer norm see
        and pooling does not; None if there is none.
        """
        if self.pool == "max":
            mixed: Any = sum(w * self._normed(states[layer].float()) for layer, w in self._weights.items())
            return (mixed if kept is None else mixed.masked_fill(~kept.unsqueeze(-1), float("-inf"))).amax(dim=1)  # type: ignore[no-any-return]
        # Averaging tokens and mixing layers are both linear: average each layer first, then mix the short vectors.
        vectors: Any = sum(w * self._pooled(states[layer], kept) for layer, w in self._weights.items())
        return vectors  # type: ignore[no-any-return]

    def by_length(self, states: Sequence[Any], batch: TokenBatch) -> Tensor:
        """The same for strings of several lengths, padded."""
        vectors, begin = [], 0
        ids = batch.ids() if batch.holds_pad.any() else None
        for strings, length in batch.groups:
            end = begin + strings
            grids = [None if state is None else state[begin:end, :length] for state in states]
            vectors.append(self(grids, None if ids is None else ids[begin:end, :length] != batch.pad))
            begin = end
        return torch.cat(vectors)

    def packed(self, states: Sequence[Any], tokens: PackedTokens, batch: TokenBatch) -> Tensor:
        """The same for strings of several lengths that follow one another: states (tokens, units)."""
        kept = tokens.ids != batch.pad if batch.holds_pad.any() else None
        if tokens.ids.is_cuda and self.pool == "avg" and not self.layer_norm:
            return self._means(states, kept, tokens, batch.lengths)
        vectors, begin = [], 0
        for shape in tokens.groups:
            part = slice(begin, begin + shape[0] * shape[1])
            own, *grids = [None if each is None else each[part].unflatten(0, shape) for each in (kept, *states)]
            vectors.append(self(grids, own))
            begin = part.stop
        return torch.cat(vectors)

    def reads(self, layers: int) -> set[int]:
        """Which of the hidden states of a network with `layers` of them are read."""
        return {layer % layers for layer in self._weights}

    def _means(self, states: Sequence[Any], kept: Tensor | None, tokens: PackedTokens, lengths: Tensor) -> Tensor:
        """Averages in one call for all lengths."""
        mixed: Any = None
        for layer, weight in self._weights.items():
            if mixed is None:
                mixed = torch.zeros_like(states[layer], dtype=torch.float32)
            mixed.add_(states[layer], alpha=weight)
        if kept is not None:
            mixed.masked_fill_(~kept[:, None], 0.0)
        numbers = torch.arange(len(mixed), dtype=tokens.offsets.dtype, device=mixed.device)
        return F.embedding_bag(numbers, mixed, tokens.offsets[:-1], mode="sum") / lengths[:, None]

    @property
    def _weights(self) -> dict[int, float]:
        """The weights of the layers that are read: sparsemax drops whole layers."""
        weights = {self.layer: 1.0} if self.weights is None else dict(enumerate(self.weights))
        return {layer: weight for layer, weight in weights.items() if weight}

    def _normed(self, state: Tensor) -> Tensor:
        if not self.layer_norm:
            return state
        mean, deviation = _moments(state)
        return (state - mean[:, None, None]) / deviation[:, None, None]

    def _pooled(self, state: Tensor, kept: Tensor | None) -> Tensor:
        length = state.shape[1]
        share: Tensor | float = 1.0  # pooled tokens / all tokens: less than 1 if the text holds <pad>
        if self.pool == "cls":
            pooled = state[:, 0].float()
        elif self.pool == "last":
            pooled = state[:, -1].float()
        elif kept is None:
            pooled = state.sum(dim=1, dtype=torch.float32) / length
        else:
            pooled = (state * kept.unsqueeze(-1)).sum(dim=1, dtype=torch.float32) / length
            share = kept.sum(dim=1, keepdim=True) / length
        if not self.layer_norm:
            return pooled
        mean, deviation = _moments(state.float())
        centred: Tensor = pooled - mean[:, None] * share
        return centred / deviation[:, None]


def _moments(state: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (strings,) over a string's tokens and units, as in COMET's masked layer norm."""
    count = state.shape[1] * state.shape[2]
    mean = state.flatten(1).sum(1) / count
    variance = ((state - mean[:, None, None]) ** 2).flatten(1).sum(1) / count
    return mean, (variance + 1e-12).sqrt()


class Encoder:
    """A transformer, its tokenizer and a readout: `embed` turns strings into vectors.

    Strings of more than `max_length` tokens are cut, as COMET cuts them.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        readout: Readout,
        *,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype,
        batch_tokens: int | None = None,
    ) -> None:
        self.device, self.dtype, self.readout = device, dtype, readout
        self.units: int = model.config.hidden_size
        self._model = model.to(device=device, dtype=dtype).eval()
        self._packed = packed_network(self._model)
        self._tokenizer = tokenizer.backend_tokenizer
        pad, packed = tokenizer.pad_token_id, self._packed is not None
        self.stream = BatchStream(pad=pad, limit=max_length, device=device, batch_tokens=batch_tokens, packed=packed)

    @property
    def truncated(self) -> int:
        """How many strings so far were longer than the limit and cut."""
        return self.stream.truncated

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Token ids with the special tokens around them, cut to the length limit."""
        tokens, cut = tokenised(self._tokenizer, texts, self.stream.limit)
        self.stream.cut(cut)
        return tokens

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), float32, on the encoder's device."""
        if not texts:
            return torch.empty((0, self.units), device=self.device)
        done, parts = zip(*self.batches(texts), strict=True)
        rows = np.argsort(np.concatenate(done))  # of each text
        return torch.cat(parts)[copy_to_device([rows], self.device)]

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Batches as they are finished, longest texts first: the indices of their texts, and vectors."""
        characters = np.fromiter(map(len, texts), np.int64, len(texts))
        return self.stream.run(characters, lambda some: self.tokenize([texts[i] for i in some.tolist()]), self._forward)

    def _forward(self, batch: TokenBatch) -> Tensor:
        """Vectors of one batch, (strings, units)."""
        count, batch = len(batch), batch.enough()
        if self._packed is None:
            return self.readout.by_length(self._padded_states(batch), batch)[:count]
        tokens, layers = batch.packed(), len(self._packed.layers) + 1
        read = self.readout.reads(layers)
        states: list[Tensor | None] = [None] * layers
        # layers above the last one that is read are not computed
        for layer, state in zip(range(max(read) + 1), self._packed(tokens), strict=False):
            states[layer] = state if layer in read else None
        return self.readout.packed(states, tokens, batch)[:count]

    def _padded_states(self, batch: TokenBatch) -> Sequence[Any]:
        """The hidden states (strings, tokens, units) of every layer, or of the last alone."""
        layers = self._model.config.num_hidden_layers + 1
        mixes = self.readout.reads(layers) != {layers - 1}
        given = {"input_ids": batch.ids(), "attention_mask": batch.mask()}
        out = self._model(**given, output_hidden_states=mixes, return_dict=True)
        return out.hidden_states if mixes else [None] * (layers - 1) + [out.last_hidden_state]
