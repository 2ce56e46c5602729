"""Our engine for Marian models: it decodes rows, some for each source, step by step.

All rows of a source attend to one copy of its keys and values, so the encoder's states are not repeated.
"""

from __future__ import annotations

import math
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.models import gpu
from mbrace.models.kv_cache import cache_for
from mbrace.models.marian_network import encode
from mbrace.models.search import DecoderState, Memory
from mbrace.neural.device import has_16_bits
from mbrace.neural.packed import add_norm

ROWS = 16  # rows are padded to a multiple: oneDNN takes a millisecond to prepare for a new number of rows


class Weights:
    """A matrix (units, inputs) and a bias.

    On AMD processors float32 products use oneDNN, which takes half the time of torch's default, Intel's MKL.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self._onednn: tuple[Tensor, Tensor | None] | None = None
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and prefers_onednn():
            self._onednn = weight.contiguous().to_mkldnn(), None if bias is None else bias.to_mkldnn()

    def product(self, x: Tensor) -> Tensor:
        """weight x + bias of each row of x (..., inputs): (..., units)."""
        if self._onednn is None or x.numel() == 0 or x.dtype != self.weight.dtype:  # as within torch.autocast
            return F.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, x.shape[-1])
        padded = F.pad(rows, (0, 0, 0, -len(rows) % ROWS))
        y = F.linear(padded.to_mkldnn(), *self._onednn).to_dense()
        return y[: len(rows)].view(*x.shape[:-1], -1)


@cache
def prefers_onednn() -> bool:
    """Whether oneDNN is there and the processor is one of AMD's."""
    known = Path("/proc/cpuinfo")
    processor = known.read_text(encoding="utf-8") if known.exists() else platform.processor()
    return "AuthenticAMD" in processor and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def can_skip_rows(dtype: torch.dtype, units: int) -> bool:
    """Whether the kernels that skip rows can multiply such numbers: of 16 bits, and 64 units at a time."""
    return has_16_bits(dtype) and units % 64 == 0


class MarianDecoder:
    """Decodes with a MarianNetwork or a MarianMTModel. It holds the weights; `start` gives the state of a batch."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        config, decoder = model.config, model.model.decoder
        self.model, self.dtype, self.heads = model, dtype, config.decoder_attention_heads
        self.pad, self.device = int(config.pad_token_id), model.lm_head.weight.device
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embedding = decoder.embed_tokens.weight.to(dtype)
        self.head = Weights(model.lm_head.weight.to(dtype))
        self.positions = decoder.embed_positions.weight.to(dtype)
        self.logit_bias = model.final_logits_bias[0].float().clone()
        for words in getattr(model.generation_config, "bad_words_ids", None) or []:
            if len(words) == 1:  # the padding symbol is never an output
                self.logit_bias[words[0]] = -math.inf
        self.layers = [_Layer(layer, dtype) for layer in decoder.layers]

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Run the encoder over padded source ids (sources, width), once; width is a multiple of 8."""
        low = has_16_bits(self.dtype) and self.model.lm_head.weight.dtype == torch.float32
        lower = self.dtype if low else torch.bfloat16
        with torch.autocast(self.device.type, dtype=lower, enabled=low, cache_enabled=False):  # threads share a cache
            states, _ = encode(self.model, source, pad=self.pad)
        states = states.to(self.dtype)
        tensors = []  # keys and values of each layer, (sources, heads, width, d)
        for layer in self.layers:
            both = layer.memory.product(states).view(*states.shape[:2], 2, self.heads, -1)
            tensors += [both[:, :, n].transpose(1, 2).contiguous() for n in (0, 1)]
        return Memory(tensors, source != self.pad, dim=-2)

    def start(self, memory: Memory, width: int, most: int | None = None) -> MarianState:
        """The state of `width` rows per source of `memory`, before the first step; later, of `most` at most."""
        return MarianState(self, memory, width, most or width)


class _Layer:
    """The weights of one decoder layer; matrices that multiply the same input are joined into one."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        own, cross = layer.self_attn, layer.encoder_attn

        def join(*parts: Any) -> Weights:
            return Weights(torch.cat([p.weight for p in parts]).to(dtype), torch.cat([p.bias for p in parts]).to(dtype))

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


class MarianState(DecoderState):
    def __init__(self, decoder: MarianDecoder, memory: Memory, width: int, most: int) -> None:
        self.decoder = decoder
        self._attend_to(memory)
        self.offsets = torch.arange(len(memory) + 1, device=decoder.device) * width
        self._most = most  # rows of a source
        shape = decoder.heads, decoder.embedding.shape[1] // decoder.heads
        layers = len(decoder.layers)
        self.cache = cache_for(decoder.device, decoder.dtype, layers, shape, shared=most > width)
        self.recordable = self.cache.recordable
        fits = can_skip_rows(decoder.dtype, decoder.embedding.shape[1])
        self._kernels = gpu.kernels_for(decoder.device) if fits else None
        self.skips = self._kernels is not None and most == width  # most rows of a beam are in use

    def _attend_to(self, memory: Memory) -> None:
        self.memory = memory
        bias = torch.zeros(memory.mask.shape, device=memory.mask.device).masked_fill_(~memory.mask, -math.inf)
        self.bias = bias[:, None, None].to(self.decoder.dtype)  # hides padding

    @property
    def used(self) -> Tensor | None:
        return None if self._kernels is None else self.offsets[-1:]

    def must_grow(self, time: int) -> bool:
        return self.cache.must_grow(time)

    def make_room(self, time: int, rows: int) -> bool:
        return self.cache.make_room(time, rows)

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        decoder, rows = self.decoder, len(ids)
        used = self.used
        cells, width = self._cells(rows) if used is None else (None, self._most)
        x = F.embedding(ids, decoder.embedding) * decoder.scale + decoder.positions[self.cache.now]
        for number, layer in enumerate(decoder.layers):
            y = self.cache.attend(number, self._linear(x, layer.own).view(rows, 3, decoder.heads, -1), used)
            x = add_norm(x, self._linear(y, layer.own_out), *layer.norms[0], used)
            y = self._attend_to_memory(number, self._linear(x, layer.query), cells, width)
            x = add_norm(x, self._linear(y, layer.cross_out), *layer.norms[1], used)
            y = self._linear(layer.activation(self._linear(x, layer.first)), layer.second)
            x = add_norm(x, y, *layer.norms[2], used)
        self.cache.advance()
        return self._linear(x, decoder.head), decoder.logit_bias

    def _linear(self, x: Tensor, weights: Weights) -> Tensor:
        """weight x + bias, of the rows in use at least.

        Torch's matrix products are a third faster than ours, which skip rows: better where most rows are in use.
        """
        if self._kernels is not None and self.skips and len(x) > self._kernels.FEW_ROWS:
            y: Tensor = self._kernels.linear(x, weights.weight, weights.bias, self.used)
            return y
        return weights.product(x)

    def _attend_to_memory(self, number: int, query: Tensor, cells: Tensor | None, width: int) -> Tensor:
        """What the rows, by their queries, see of their sources in one layer: (rows, heads x size), as queries are.

        Without kernels by a grid of `width` rows for every source: `cells` is where each row is in it.
        """
        memory, heads = self.memory, self.decoder.heads
        keys, values = memory.tensors[2 * number : 2 * number + 2]
        if self._kernels is not None:
            y: Tensor = self._kernels.attend_to_memory(query, keys, values, self.bias, self.offsets, self._most)
            return y
        grid = query
        if cells is not None:  # one more, for rows that are not in use
            grid = query.new_zeros(len(memory) * width + 1, query.shape[1]).index_copy_(0, cells, query)[:-1]
        grid = grid.view(len(memory), width, heads, -1).transpose(1, 2)
        bias = self.bias.expand(-1, heads, width, -1)
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
        if sources is not None:
            self._attend_to(self.memory.select(sources))
            self.skips = self._kernels is not None  # those that are left end one after another
        if len(offsets) == len(self.offsets):
            self.offsets.copy_(offsets)
        else:
            self.offsets = offsets.clone()
        self.cache.select(rows)
