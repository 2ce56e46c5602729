"""BLEURT's network: BERT over a pair, with word vectors that may be narrower than its layers, and one linear output.

It works on a dictionary of weights with the names of `bleurt-pytorch`, so that it needs no class of transformers, and
the names can be checked before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mbrace.neural.head import linear


@dataclass(frozen=True)
class BleurtShape:
    """The sizes in config.json. `embedding_size` is None if word vectors are as wide as the layers."""

    vocab_size: int
    embedding_size: int | None
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Every weight's name and shape."""
        width, inner = self.hidden_size, self.intermediate_size
        narrow = self.embedding_size or width
        shapes: dict[str, tuple[int, ...]] = {
            "bleurt.embeddings.word_embeddings.weight": (self.vocab_size, narrow),
            "bleurt.embeddings.position_embeddings.weight": (self.max_position_embeddings, narrow),
            "bleurt.embeddings.token_type_embeddings.weight": (self.type_vocab_size, narrow),
        }
        linears = {"bleurt.pooler.dense": (width, width), "classifier": (1, width)}
        norms = {"bleurt.embeddings.LayerNorm": narrow}
        if self.embedding_size is not None:
            linears["bleurt.encoder.embedding_projection"] = (width, narrow)
        for number in range(self.num_hidden_layers):
            base = f"bleurt.encoder.layer.{number}."
            linears |= {f"{base}attention.self.{part}": (width, width) for part in ("query", "key", "value")}
            linears |= {f"{base}attention.output.dense": (width, width)}
            linears |= {f"{base}intermediate.dense": (inner, width), f"{base}output.dense": (width, inner)}
            norms |= {f"{base}attention.output.LayerNorm": width, f"{base}output.LayerNorm": width}
        for name, shape in linears.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        for name, size in norms.items():
            shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
        return shapes


class BleurtNetwork:
    """Token ids of pairs to scores. Layers run in `dtype`, the pooler and the output in float32."""

    def __init__(
        self,
        shape: BleurtShape,
        weights: dict[str, Tensor],
        activation: Callable[[Tensor], Tensor],
        layer_norm_eps: float,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._shape, self._activation, self._epsilon = shape, activation, layer_norm_eps
        last = ("bleurt.pooler.", "classifier.")
        self._weights = {
            name: value.to(device=device, dtype=value.dtype if name.startswith(last) else dtype)
            for name, value in weights.items()
        }

    def __call__(self, ids: Tensor, types: Tensor, attended: Tensor | None) -> Tensor:
        """Scores (pairs,) in float32 of token ids and segment numbers (pairs, tokens).

        `attended` (pairs, tokens) is False for padding; None if there is none.
        """
        embeddings, weights = "bleurt.embeddings.", self._weights
        hidden = weights[f"{embeddings}word_embeddings.weight"][ids]
        hidden = hidden + weights[f"{embeddings}token_type_embeddings.weight"][types]
        hidden = hidden + weights[f"{embeddings}position_embeddings.weight"][: ids.shape[1]]
        hidden = self._normalised(hidden, f"{embeddings}LayerNorm")
        if self._shape.embedding_size is not None:
            hidden = self._linear(hidden, "bleurt.encoder.embedding_projection")
        mask = None if attended is None else attended[:, None, None, :]
        for number in range(self._shape.num_hidden_layers):
            hidden = self._layer(hidden, mask, f"bleurt.encoder.layer.{number}.")
        # With `linear`, a pair's score has the same bits on a CPU whatever the number of pairs.
        pooler = "bleurt.pooler.dense."
        pooled = linear(hidden[:, 0].float(), weights[f"{pooler}weight"]) + weights[f"{pooler}bias"]
        score: Tensor = linear(pooled.tanh(), weights["classifier.weight"]) + weights["classifier.bias"]
        return score[:, 0]

    def _layer(self, hidden: Tensor, mask: Tensor | None, base: str) -> Tensor:
        pairs, tokens, width = hidden.shape
        heads = self._shape.num_attention_heads
        query, key, value = (
            self._linear(hidden, f"{base}attention.self.{part}").view(pairs, tokens, heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        seen = self._linear(seen.transpose(1, 2).reshape(pairs, tokens, width), f"{base}attention.output.dense")
        hidden = self._normalised(seen + hidden, f"{base}attention.output.LayerNorm")
        inner = self._activation(self._linear(hidden, f"{base}intermediate.dense"))
        return self._normalised(self._linear(inner, f"{base}output.dense") + hidden, f"{base}output.LayerNorm")

    def _linear(self, hidden: Tensor, name: str) -> Tensor:
        return functional.linear(hidden, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _normalised(self, hidden: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.layer_norm(hidden, weight.shape, weight, bias, self._epsilon)
