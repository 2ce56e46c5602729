"""Marian's transformer, written for many outputs per source.

`forward` is the training pass of a MarianMTModel; unlike transformers' own, it never makes the GPU wait for the host.
`MarianDecoder` decodes rows, some for each source, step by step. All rows of a source attend to one copy of its
keys and values, so the encoder's states are not repeated. The tests compare both with transformers.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.models.choice import kernels_for
from mbrace.models.past import past_for
from mbrace.neural.device import has_16_bits, without_cudnn_attention
from mbrace.neural.packed import add_norm

Weights: TypeAlias = tuple[Tensor, "Tensor | None"]  # a matrix (units, inputs), and a bias


def can_skip_rows(dtype: torch.dtype, units: int) -> bool:
    """Whether the kernels that skip rows can multiply such numbers: of 16 bits, and 64 units at a time."""
    return has_16_bits(dtype) and units % 64 == 0


@without_cudnn_attention()
def forward(model: Any, source: Tensor, target: Tensor, *, pad: int) -> Tensor:
    """Logits (sentences, target width, vocabulary) of a MarianMTModel for `target`; both ids are (sentences, width)."""
    states, bias = encode(model, source, pad=pad)
    start = target.new_full((len(target), 1), model.config.decoder_start_token_id)
    x = _embed(model, model.model.decoder, torch.cat([start, target[:, :-1]], dim=1))
    for layer in model.model.decoder.layers:
        # No padding mask: padding comes last, so causal attention hides it from every real position.
        x = _sublayer(model, layer.self_attn_layer_norm, x, _attend(layer.self_attn, x, x, causal=True))
        x = _sublayer(model, layer.encoder_attn_layer_norm, x, _attend(layer.encoder_attn, x, states, bias=bias))
        x = _sublayer(model, layer.final_layer_norm, x, layer.fc2(layer.activation_fn(layer.fc1(x))))
    return F.linear(x, model.lm_head.weight)


def encode(model: Any, source: Tensor, *, pad: int) -> tuple[Tensor, Tensor]:
    """Encoder states (sentences, width, d) and the bias (sentences, 1, 1, width) that hides padding."""
    bias = torch.zeros(source.shape, device=source.device).masked_fill(source == pad, -math.inf)[:, None, None]
    x = _embed(model, model.model.encoder, source)
    for layer in model.model.encoder.layers:
        x = _sublayer(model, layer.self_attn_layer_norm, x, _attend(layer.self_attn, x, x, bias=bias))
        x = _sublayer(model, layer.final_layer_norm, x, layer.fc2(layer.activation_fn(layer.fc1(x))))
    return x, bias


def _embed(model: Any, side: Any, ids: Tensor) -> Tensor:
    scale = math.sqrt(model.config.d_model) if model.config.scale_embedding else 1.0
    x = F.embedding(ids, side.embed_tokens.weight) * scale + side.embed_positions.weight[: ids.shape[1]]
    return F.dropout(x, model.config.dropout, model.training)


def _sublayer(model: Any, norm: Any, x: Tensor, branch: Tensor) -> Tensor:
    return norm(x + F.dropout(branch, model.config.dropout, model.training))  # type: ignore[no-any-return]


def _attend(module: Any, x: Tensor, y: Tensor, *, bias: Tensor | None = None, causal: bool = False) -> Tensor:
    heads = module.num_heads
    q, k, v = module.q_proj(x), module.k_proj(y), module.v_proj(y)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    mask = None if bias is None else bias.to(q.dtype).expand(-1, heads, q.shape[2], -1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return module.out_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MarianDecoder:
    """Decodes with a MarianMTModel step by step. It holds the weights; `start` gives the state of a batch."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        config, decoder = model.config, model.model.decoder
        self.model, self.dtype, self.heads = model, dtype, config.decoder_attention_heads
        self.pad, self.device = int(config.pad_token_id), model.lm_head.weight.device
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embedding = decoder.embed_tokens.weight.to(dtype)
        self.head = (model.lm_head.weight.to(dtype), None)
        self.positions = decoder.embed_positions.weight.to(dtype)
        self.logit_bias = model.final_logits_bias[0].float().clone()
        for words in getattr(model.generation_config, "bad_words_ids", None) or []:
            if len(words) == 1:  # the padding symbol is never an output
                self.logit_bias[words[0]] = -math.inf
        self.layers = [_Layer(layer, dtype) for layer in decoder.layers]

    def encode(self, source: Tensor, mask: Tensor) -> MarianMemory:
        """Run the encoder over padded source ids (sources, width), once; width is a multiple of 8."""
        low = has_16_bits(self.dtype) and self.model.lm_head.weight.dtype == torch.float32
        lower = self.dtype if low else torch.bfloat16
        with torch.autocast(self.device.type, dtype=lower, enabled=low, cache_enabled=False):  # threads share a cache
            states, bias = encode(self.model, source, pad=self.pad)
        states = states.to(self.dtype)
        keys, values = [], []
        for layer in self.layers:
            both = F.linear(states, *layer.memory).view(*states.shape[:2], 2, self.heads, -1)
            keys.append(both[:, :, 0].transpose(1, 2).contiguous())
            values.append(both[:, :, 1].transpose(1, 2).contiguous())
        return MarianMemory(keys, values, bias.to(self.dtype))

    def start(self, memory: MarianMemory, width: int, most: int | None = None) -> MarianState:
        """The state of `width` rows per source of `memory`, before the first step; later, of `most` at most."""
        return MarianState(self, memory, width, most or width)


class _Layer:
    """The weights of one decoder layer; matrices that multiply the same input are joined into one."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        own, cross = layer.self_attn, layer.encoder_attn

        def join(*parts: Any) -> Weights:
            return torch.cat([p.weight for p in parts]).to(dtype), torch.cat([p.bias for p in parts]).to(dtype)

        self.own, self.own_out = join(own.q_proj, own.k_proj, own.v_proj), join(own.out_proj)
        self.query, self.memory, self.cross_out = (
            join(cross.q_proj),
            join(cross.k_proj, cross.v_proj),
            join(cross.out_proj),
        )
        self.first, self.second, self.activation = join(layer.fc1), join(layer.fc2), layer.activation_fn
        self.norms = [
            (norm.weight.to(dtype), norm.bias.to(dtype), norm.eps)
            for norm in (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)
        ]


class MarianMemory:
    """What the decoder attends to: each layer's keys and values (sources, heads, width, d), and the padding bias."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], bias: Tensor) -> None:
        self.keys, self.values, self.bias = keys, values, bias

    def __len__(self) -> int:
        return len(self.bias)

    def select(self, sources: Tensor) -> MarianMemory:
        """The memory of some of the sources."""
        return MarianMemory([k[sources] for k in self.keys], [v[sources] for v in self.values], self.bias[sources])

    def part(self, begin: int, end: int, width: int) -> MarianMemory:
        """The memory of sources `begin` to `end`, none of which is longer than `width`; it may share tensors with this
        one, which must then live as long."""
        keys, values = ([x[begin:end, :, :width].contiguous() for x in of] for of in (self.keys, self.values))
        return MarianMemory(keys, values, self.bias[begin:end, :, :, :width].contiguous())

    @staticmethod
    def join(memories: list[MarianMemory]) -> MarianMemory:
        """One memory of all sources, padded to the widest."""
        width = max(memory.bias.shape[-1] for memory in memories)

        def pad(x: Tensor, dim: int, value: float = 0.0) -> Tensor:
            missing = width - x.shape[dim]
            return F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing), value=value) if missing else x

        layers = range(len(memories[0].keys))
        return MarianMemory(
            [torch.cat([pad(memory.keys[layer], -2) for memory in memories]) for layer in layers],
            [torch.cat([pad(memory.values[layer], -2) for memory in memories]) for layer in layers],
            torch.cat([pad(memory.bias, -1, -math.inf) for memory in memories]),
        )


class MarianState:
    """The rows of a batch between steps."""

    def __init__(self, decoder: MarianDecoder, memory: MarianMemory, width: int, most: int) -> None:
        self.decoder, self.memory = decoder, memory
        self.offsets = torch.arange(len(memory) + 1, device=decoder.device) * width
        self._most = most  # rows of a source
        shape = decoder.heads, decoder.embedding.shape[1] // decoder.heads
        layers = len(decoder.layers)
        self.past = past_for(decoder.device, decoder.dtype, layers, shape, shared=most > width)
        fits = can_skip_rows(decoder.dtype, decoder.embedding.shape[1])
        self._kernels = kernels_for(decoder.device) if fits else None
        self.skips = self._kernels is not None and most == width  # most rows of a beam are in use

    @property
    def recordable(self) -> bool:
        """Whether a step changes tensors only in place."""
        return self.past.recordable

    @property
    def used(self) -> Tensor | None:
        """How many rows are in use, (1,), if the others take less time."""
        return None if self._kernels is None else self.offsets[-1:]

    def moves(self, time: int) -> bool:
        """Whether there is no room yet for the step at `time`."""
        return self.past.moves(time)

    def begin(self, time: int, rows: int) -> bool:
        """Make room for the step at `time`; True if memory has moved."""
        return self.past.begin(time, rows)

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Feed the last id of each row, (rows,); logits (rows, vocabulary) and a bias."""
        decoder, rows = self.decoder, len(ids)
        used = self.used
        cells, width = self._cells(rows) if used is None else (None, self._most)
        x = F.embedding(ids, decoder.embedding) * decoder.scale + decoder.positions[self.past.now]
        for number, layer in enumerate(decoder.layers):
            y = self.past.attend(number, self._linear(x, layer.own).view(rows, 3, decoder.heads, -1), used)
            x = add_norm(x, self._linear(y, layer.own_out), *layer.norms[0], used)
            y = self._attend_to_memory(number, self._linear(x, layer.query), cells, width)
            x = add_norm(x, self._linear(y, layer.cross_out), *layer.norms[1], used)
            y = self._linear(self._linear(x, layer.first, layer.activation), layer.second)
            x = add_norm(x, y, *layer.norms[2], used)
        self.past.advance()
        return self._linear(x, decoder.head), decoder.logit_bias

    def _linear(self, x: Tensor, weights: Weights, activation: Any = None) -> Tensor:
        """activation(weight x + bias), of the rows in use at least.

        Torch's matrix products are a third faster than ours, which skip rows: better where most rows are in use.
        """
        if self._kernels is not None and self.skips and len(x) > self._kernels.FEW_ROWS:
            y: Tensor = self._kernels.linear(x, *weights, self.used, activation)
            return y
        y = F.linear(x, *weights)
        return y if activation is None else activation(y)

    def _attend_to_memory(self, number: int, query: Tensor, cells: Tensor | None, width: int) -> Tensor:
        """What the rows, by their queries, see of their sources in one layer: (rows, heads x size), as queries are.

        Without kernels by a grid of `width` rows for every source: `cells` is where each row is in it.
        """
        memory, heads = self.memory, self.decoder.heads
        keys, values = memory.keys[number], memory.values[number]
        if self._kernels is not None:
            y: Tensor = self._kernels.attend_to_memory(query, keys, values, memory.bias, self.offsets, self._most)
            return y
        grid = query
        if cells is not None:  # one more, for rows that are not in use
            grid = query.new_zeros(len(memory) * width + 1, query.shape[1]).index_copy_(0, cells, query)[:-1]
        grid = grid.view(len(memory), width, heads, -1).transpose(1, 2)
        bias = memory.bias.expand(-1, heads, width, -1)
        seen = F.scaled_dot_product_attention(grid, keys, values, attn_mask=bias).transpose(1, 2).flatten(0, 1)
        return seen.flatten(1) if cells is None else seen.flatten(1)[cells.clamp(max=len(seen) - 1)]

    def _cells(self, rows: int) -> tuple[Tensor | None, int]:
        """Where each row is in a grid of as many columns for every source, and how many those are.

        None, if every source has as many rows. Rows that are not in use are in one cell beyond the last.
        """
        sources, device = len(self.memory), self.offsets.device
        all_used = device.type == "cpu" and not self.recordable and int(self.offsets[-1]) == rows
        width = int(self.offsets.diff().max()) if all_used else self._most
        if all_used and rows == sources * width:
            return None, width
        number = torch.arange(rows, device=device)
        source = torch.searchsorted(self.offsets[1:], number, right=True)
        column = number - self.offsets[source]
        return torch.where(source < sources, source * width + column, sources * width), width

    def select(self, rows: Tensor, offsets: Tensor, *, sources: Tensor | None = None) -> None:
        """Go on with `rows` (indices, with repeats), whose offsets these are, of `sources` only (default: all)."""
        if sources is not None:
            self.memory = self.memory.select(sources)
            self.skips = self._kernels is not None  # those that are left end one after another
        if len(offsets) == len(self.offsets):
            self.offsets.copy_(offsets)
        else:
            self.offsets = offsets.clone()
        self.past.select(rows)
