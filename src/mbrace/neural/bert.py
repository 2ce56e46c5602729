"""BERT's forward pass without its modules.

Calling those of transformers keeps a GPU waiting, and on a CPU they cannot take strings of several lengths without
padding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.neural.device import without_cudnn_attention
from mbrace.neural.norm import add_norm
from mbrace.neural.packed import attend_within
from mbrace.neural.tokens import PackedTokens, pair_mask

TOLERANCE = {torch.float32: 1e-2, torch.float16: 0.05, torch.bfloat16: 0.2}  # of hidden states, which are around 1


class PlainBert:
    """The weights of a transformers BertModel; matrices that multiply the same input are joined into one."""

    def __init__(self, model: Any) -> None:
        first = model.embeddings
        self.words, self.kinds = first.word_embeddings.weight, first.token_type_embeddings.weight
        self.positions, self.norm = first.position_embeddings.weight, _norm(first.LayerNorm)
        self.heads = model.config.num_attention_heads
        self.layers = [_Layer(layer) for layer in model.encoder.layer]

    def __call__(self, ids: Tensor, mask: Tensor | None, *, only_last: bool = False) -> list[Tensor]:
        """The hidden states (strings, tokens, units) of every layer, embeddings first, or those of the last layer only.

        `mask` (strings, 1, tokens, tokens) says which tokens each token attends to; None: to all of its string.
        """

        def attend(qkv: Tensor) -> Tensor:
            return _attend(qkv, mask)

        positions = self.positions[: ids.shape[1]].expand(*ids.shape, -1)
        return _collected(self._states(ids, positions, attend), only_last=only_last)

    def packed(self, ids: Tensor, groups: Sequence[tuple[int, int]], *, only_last: bool = False) -> list[Tensor]:
        """As above for strings that follow one another, ids (tokens,): hidden states (tokens, units).

        A group is a number of strings and how many tokens each of them has. Matrix products are of all tokens at once,
        attention is within groups: a string's states are those that it has alone.
        """
        positions = torch.cat([torch.arange(length, device=ids.device).repeat(strings) for strings, length in groups])
        sizes = [strings * length for strings, length in groups]

        def attend(qkv: Tensor) -> Tensor:
            parts = zip(torch.split(qkv, sizes), groups, strict=True)
            return torch.cat([_attend(part.view(*group, *part.shape[1:])).flatten(0, 1) for part, group in parts])

        return _collected(self._states(ids, self.positions[positions], attend), only_last=only_last)

    def fused(self, tokens: PackedTokens) -> Iterator[Tensor]:
        """The same on a GPU, by a kernel for strings of any lengths: one layer after another, embeddings first."""

        def attend(qkv: Tensor) -> Tensor:
            return attend_within(qkv, tokens.offsets, tokens.longest)

        return self._states(tokens.ids, self.positions[tokens.positions], attend)

    def _states(self, ids: Tensor, positions: Tensor, attend: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """The hidden states (..., units) of every layer, embeddings first, for ids (...) at positions (..., units).

        `attend` is attention within strings, from (..., 3, heads, size) to (..., units).
        """
        x = add_norm(F.embedding(ids, self.words) + self.kinds[0], positions, *self.norm)
        yield x
        for layer in self.layers:
            mixed = attend(F.linear(x, *layer.own).view(*ids.shape, 3, self.heads, -1))
            x = add_norm(x, F.linear(mixed, *layer.own_out), *layer.own_norm)
            inner = layer.activation(F.linear(x, *layer.first))
            x = add_norm(x, F.linear(inner, *layer.second), *layer.norm)
            yield x


def _attend(qkv: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention (strings, tokens, heads x size) within strings, from (strings, tokens, 3, heads, size)."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def _collected(states: Iterator[Tensor], *, only_last: bool) -> list[Tensor]:
    return list(deque(states, maxlen=1 if only_last else None))


class _Layer:
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
@without_cudnn_attention()
def without_modules(model: Any) -> PlainBert | None:
    """A BertModel without its modules, if it gives their hidden states, as is found out by a trial; else None."""
    if type(model).__name__ != "BertModel":
        return None
    weights = next(model.parameters())
    ids = torch.arange(34, device=weights.device).view(2, 17) * 37 % min(model.config.vocab_size, 1000)
    attended = torch.arange(17, device=weights.device) < torch.tensor([[17], [11]], device=weights.device)
    try:
        plain = PlainBert(model)
        for mask in (None, pair_mask(attended)):
            there = torch.ones_like(attended) if mask is None else attended
            theirs = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, return_dict=True)
            for ours, other in zip(plain(ids, mask), theirs.hidden_states, strict=True):
                if not torch.allclose(ours[there], other[there], atol=TOLERANCE[weights.dtype], rtol=0.05):
                    return None
        # `attended` and what it gave are the last of these
        packed = plain.packed(ids[attended], [(1, 17), (1, 11)], only_last=True)[-1]
        if not torch.allclose(packed, other[attended], atol=TOLERANCE[weights.dtype], rtol=0.05):
            return None
    except Exception:  # other versions of transformers: its own modules are always right
        return None
    return plain
