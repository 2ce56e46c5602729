"""BERT-like transformers over packed (unpadded) sequences.

The tokens of all strings are the rows of one matrix product, and attention stays within each string: on a GPU, in 16
bits, by torch's variable-length attention; on a CPU by one call per length. The modules of transformers are not called:
they pad, and calling them keeps a GPU waiting.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.neural.device import has_16_bits, supports_triton, triton_kernels
from mbrace.neural.tokens import PackedTokens

NETWORKS = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel")

# Attention (tokens, heads x size) of each token to those of its string, from (tokens, 3, heads, size).
Attention = Callable[[Tensor, PackedTokens], Tensor]


def attend_by_length(qkv: Tensor, tokens: PackedTokens) -> Tensor:
    """One call for the strings of each length: a string's rows have the bits that they have alone on a CPU."""
    parts = torch.split(qkv, [strings * length for strings, length in tokens.groups])
    found = []
    for part, (strings, length) in zip(parts, tokens.groups, strict=True):
        q, k, v = part.view(strings, length, *part.shape[1:]).permute(2, 0, 3, 1, 4)
        found.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1).flatten(1))
    return torch.cat(found)


def attend_in_one_call(qkv: Tensor, tokens: PackedTokens) -> Tensor:
    """torch's variable-length attention, for a GPU in 16 bits."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = qkv.unbind(1)
    offsets, longest = tokens.offsets, tokens.longest
    mixed: Tensor = varlen_attn(q, k, v, offsets, offsets, longest, longest)  # type: ignore[assignment]
    return mixed.flatten(1)


def attention_for(weights: Tensor, head_size: int) -> Attention | None:
    """The attention for packed strings, by the device and precision of a network's weights; None where strings are to
    be padded."""
    if weights.device.type == "cpu":
        return attend_by_length if weights.dtype == torch.float32 else None
    if not supports_triton(weights.device) or not has_16_bits(weights.dtype) or head_size % 8 or head_size > 256:
        return None
    try:
        importlib.import_module("torch.nn.attention.varlen")
    except ImportError:  # before torch 2.10
        return None
    return attend_in_one_call


def add_norm(x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float, used: Tensor | None = None) -> Tensor:
    """Layer normalisation of x + branch, both (..., units); from row `used` (1,) on, if given, it is undefined."""
    kernels = triton_kernels(x.device) if x.is_cuda else None
    if kernels is None:
        return F.layer_norm(x + branch, weight.shape, weight, bias, eps)
    normed: Tensor = kernels.fused_add_norm(x, branch, weight, bias, eps, used)
    return normed


class PackedNetwork:
    """The weights of a transformer of `NETWORKS`; matrices that multiply the same input are joined into one."""

    def __init__(self, model: Any, attend: Attention) -> None:
        first = model.embeddings
        self._words, self._positions = first.word_embeddings.weight, first.position_embeddings.weight
        self._kind, self._norm = first.token_type_embeddings.weight[0], _norm(first.LayerNorm)
        # RoBERTa and its like count positions from here on, and leave out the padding token where a text holds it
        self._padding: int | None = getattr(first, "padding_idx", None)
        self._heads, self._attend = model.config.num_attention_heads, attend
        self.layers = [_Layer(layer) for layer in model.encoder.layer]

    def __call__(self, tokens: PackedTokens) -> Iterator[Tensor]:
        """The hidden states (tokens, units) of one layer after another, embeddings first."""
        x = F.embedding(tokens.ids, self._words) + self._kind
        x = add_norm(x, F.embedding(self._numbers(tokens), self._positions), *self._norm)
        yield x
        for layer in self.layers:
            mixed = self._attend(F.linear(x, *layer.own).view(len(x), 3, self._heads, -1), tokens)
            x = add_norm(x, F.linear(mixed, *layer.own_out), *layer.own_norm)
            inner = layer.activation(F.linear(x, *layer.first))
            x = add_norm(x, F.linear(inner, *layer.second), *layer.norm)
            yield x

    def _numbers(self, tokens: PackedTokens) -> Tensor:
        """The number of each token's position."""
        if self._padding is None:
            return tokens.positions
        kept = tokens.ids != self._padding
        counted = F.pad(kept.cumsum(0), (1, 0))
        owner_begins = torch.arange(len(kept), device=kept.device) - tokens.positions
        return (counted[1:] - counted[owner_begins]) * kept + self._padding


class _Layer:
    """The weights of one layer, each as (weight, bias), and norms as (weight, bias, epsilon)."""

    def __init__(self, layer: Any) -> None:
        own, out = layer.attention.self, layer.attention.output
        parts = (own.query, own.key, own.value)
        self.own = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
        self.own_out, self.own_norm = (out.dense.weight, out.dense.bias), _norm(out.LayerNorm)
        inner, out = layer.intermediate, layer.output
        self.first, self.activation = (inner.dense.weight, inner.dense.bias), inner.intermediate_act_fn
        self.second, self.norm = (out.dense.weight, out.dense.bias), _norm(out.LayerNorm)


def _norm(module: Any) -> tuple[Tensor, Tensor, float]:
    return module.weight, module.bias, module.eps


@torch.inference_mode()
def packed_network(model: Any) -> PackedNetwork | None:
    """A transformer over packed strings; None where its strings are to be padded."""
    config, weights = model.config, next(model.parameters())
    plain = getattr(config, "position_embedding_type", "absolute") == "absolute"
    if type(model).__name__ not in NETWORKS or not plain:
        return None
    attend = attention_for(weights, config.hidden_size // config.num_attention_heads)
    return None if attend is None else PackedNetwork(model, attend)
