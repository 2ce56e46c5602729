"""BERT-like transformers over strings whose tokens follow one another, without padding.

The tokens of all strings are the rows of one matrix product, and attention stays within each string: on a GPU, in 16
bits, by torch's variable-length attention; on a CPU by one call per length. The modules of transformers are not called:
they pad, and calling them keeps a GPU waiting.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from mbrace.neural.device import has_16_bits, supports_triton, without_cudnn_attention
from mbrace.neural.tokens import PackedTokens, TokenBatch, Tokens

NETWORKS = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel")
COMPILE_FROM = 1e17  # operations: a few minutes of a large GPU, of which compiled layers save a fifteenth
# How far hidden states, which are around 1, may be from those of the modules in the trial.
TOLERANCE = {torch.float32: 1e-2, torch.float16: 0.05, torch.bfloat16: 0.2}

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


@cache
def attention_for(device: torch.device, dtype: torch.dtype) -> Attention | None:
    """The attention for packed strings on a device; None where strings are to be padded."""
    if device.type == "cpu":
        return attend_by_length if dtype == torch.float32 else None
    if device.type != "cuda" or not has_16_bits(dtype):
        return None
    try:
        importlib.import_module("torch.nn.attention.varlen")
    except ImportError:  # before torch 2.10
        return None
    return attend_in_one_call


def add_norm(x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float, used: Tensor | None = None) -> Tensor:
    """Layer normalisation of x + branch, both (..., units); from row `used` (1,) on, if given, it is undefined."""
    kernel = kernel_for(x.device)
    if kernel is None:
        return F.layer_norm(x + branch, weight.shape, weight, bias, eps)
    normed: Tensor = kernel(x, branch, weight, bias, eps, used)
    return normed


@cache
def kernel_for(device: torch.device) -> Any:
    """The same by a Triton kernel, in one pass over memory, where that can be used."""
    if not supports_triton(device):
        return None
    try:
        from mbrace.neural import kernels

        one = torch.ones(1, 96, device=device)
        kernels.fused_add_norm(one, one, one[0], one[0], 1e-5)
        return kernels.fused_add_norm
    except Exception:  # such as no Triton, or no compiler for its launcher: the plain way is always right
        return None


class PackedNetwork:
    """The weights of a transformer of `NETWORKS`; matrices that multiply the same input are joined into one."""

    def __init__(self, model: Any, attend: Attention) -> None:
        first = model.embeddings
        self._words, self._positions = first.word_embeddings.weight, first.position_embeddings.weight
        self._kind, self._norm = first.token_type_embeddings.weight[0], _norm(first.LayerNorm)
        # RoBERTa and its like count positions from here on, and leave out the padding token where a text holds it
        self._padding: int | None = getattr(first, "padding_idx", None)
        self._heads, self._attend = model.config.num_attention_heads, attend
        self._finish: Callable[[Tensor, Tensor, _Layer], Tensor] = _finish_layer
        self.layers = [_Layer(layer) for layer in model.encoder.layer]
        self._per_token = 2 * sum(weight.numel() for weight in model.encoder.parameters())  # operations
        self._operations = 0  # so far

    def __call__(self, tokens: PackedTokens) -> Iterator[Tensor]:
        """The hidden states (tokens, units) of one layer after another, embeddings first."""
        x = F.embedding(tokens.ids, self._words) + self._kind
        x = add_norm(x, F.embedding(self._numbers(tokens), self._positions), *self._norm)
        yield x
        self._operations += len(x) * self._per_token
        if x.is_cuda and self._finish is _finish_layer and self._operations > COMPILE_FROM:
            self.compile()
        for layer in self.layers:
            mixed = self._attend(F.linear(x, *layer.own).view(len(x), 3, self._heads, -1), tokens)
            x = self._finish(x, mixed, layer)
            yield x

    def compile(self) -> None:
        """Fuse the steps between matrix products by torch.compile, if it can: that takes some seconds."""
        compiled, self._operations = torch.compile(_finish_in_torch, dynamic=True), 0

        def finish(x: Tensor, mixed: Tensor, layer: _Layer) -> Tensor:
            try:
                return compiled(x, mixed, layer)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # such as no compiler
                self._finish, self._operations = _finish_layer, -sys.maxsize  # not tried again
                return _finish_layer(x, mixed, layer)

        self._finish = finish

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


def _finish_layer(x: Tensor, mixed: Tensor, layer: _Layer) -> Tensor:
    """A layer after its attention."""
    x = add_norm(x, F.linear(mixed, *layer.own_out), *layer.own_norm)
    inner = layer.activation(F.linear(x, *layer.first))
    return add_norm(x, F.linear(inner, *layer.second), *layer.norm)


def _finish_in_torch(x: Tensor, mixed: Tensor, layer: _Layer) -> Tensor:
    """The same in torch's own operations, for torch.compile."""
    weight, bias, eps = layer.own_norm
    x = F.layer_norm(x + F.linear(mixed, *layer.own_out), weight.shape, weight, bias, eps)
    inner = layer.activation(F.linear(x, *layer.first))
    weight, bias, eps = layer.norm
    return F.layer_norm(x + F.linear(inner, *layer.second), weight.shape, weight, bias, eps)


def _norm(module: Any) -> tuple[Tensor, Tensor, float]:
    return module.weight, module.bias, module.eps


@torch.inference_mode()
@without_cudnn_attention()
def packed_network(model: Any) -> PackedNetwork | None:
    """A transformer over packed strings, if it gives the hidden states of its modules, as a trial finds out."""
    weights = next(model.parameters())
    attend = attention_for(weights.device, weights.dtype)
    if attend is None or type(model).__name__ not in NETWORKS:
        return None
    lengths = np.array([17, 11, 11])
    ids = (np.arange(lengths.sum()) * 37 % min(model.config.vocab_size, 1000)).astype(np.int32)
    tokens = TokenBatch.copy(Tokens(ids, lengths), np.arange(3), weights.device, pad=-1).packed()
    try:
        network = PackedNetwork(model, attend)
        for ours, theirs in zip(network(tokens), _states_of_modules(model, tokens.ids, lengths), strict=True):
            if not torch.allclose(ours, theirs, atol=TOLERANCE[weights.dtype], rtol=0.05):
                return None
    except Exception:  # other versions of transformers or torch, or heads that torch's attention does not take
        return None
    return network


def _states_of_modules(model: Any, ids: Tensor, lengths: NDArray[np.int64]) -> list[Tensor]:
    """The hidden states (tokens, units) of every layer, each string in a batch of its own."""
    found = [
        model(input_ids=string[None], output_hidden_states=True, return_dict=True).hidden_states
        for string in torch.split(ids, lengths.tolist())
    ]
    return [torch.cat([state[0] for state in layer]) for layer in zip(*found, strict=True)]
