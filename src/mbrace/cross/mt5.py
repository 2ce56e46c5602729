"""mT5 as MetricX uses it: the encoder over an input, one step of the decoder, and one logit.

Written for that one step. A decoder that sees one token attends only to itself. Its attention to the encoder has one
query per head, so keys and values need not be computed for every token: W_k is applied to the query and W_v to the mean
of the states, which are a few vectors per input. Only one row of the output layer is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from mbrace.errors import UserError, require
from mbrace.neural import pretrained
from mbrace.neural.pretrained import check_weights, from_pretrained, read_weights
from mbrace.neural.tokens import TokenBatch, repeats_for_cpu

SCORED = 250089  # the token <extra_id_10>, whose logit is the score
FIRST = 0  # the token the decoder begins with


SIZES = (
    *("d_model", "d_kv", "d_ff", "num_heads", "num_layers", "num_decoder_layers", "vocab_size"),
    *("relative_attention_num_buckets", "relative_attention_max_distance"),
)


def read_mt5_config(folder: Path) -> Any:
    """The MT5Config in a folder; what is not mT5's is refused."""
    settings, path = pretrained.read_config(folder), folder / "config.json"
    if settings.get("model_type") != "mt5":
        raise UserError(f"{path}: model_type {settings.get('model_type')!r}: MetricX-23 and -24 are of type mt5")
    if settings.get("feed_forward_proj", "gated-gelu") != "gated-gelu":
        raise UserError(f"{path}: feed_forward_proj {settings['feed_forward_proj']!r}: mT5's is gated-gelu")
    pretrained.check_sizes(settings, SIZES, folder)
    with pretrained.reading(path, "MT5Config"):
        config = from_pretrained("MT5Config", folder)
    config.tie_word_embeddings = bool(settings.get("tie_word_embeddings", False))
    if config.vocab_size <= SCORED:
        message = f"vocab_size {config.vocab_size}: MetricX scores with token {SCORED}, so it has more"
        raise UserError(f"{path}: {message}")
    return config


def weight_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights by name; word vectors and, if they are tied, the output's are there once."""
    with torch.device("meta"):
        network = require("transformers", extra="neural").MT5ForConditionalGeneration(config)
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    copies = [*COPIES, *(["lm_head.weight"] if config.tie_word_embeddings else [])]
    return {name: shape for name, shape in shapes.items() if name not in copies}


COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # of shared.weight, in some files


def read_mt5_weights(folder: Path, config: Any) -> dict[str, Tensor]:
    """The weights in a folder, by name; missing and misshapen ones are refused."""
    path, state = read_weights(folder)
    copies = [state.pop(name, None) for name in COPIES]
    if "shared.weight" not in state and copies[0] is not None:
        state["shared.weight"] = copies[0]
    state.pop("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", None)  # old files; never read
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    check_weights(state, weight_shapes(config), "", path, finite=False)
    return state


class MT5Network:
    """From a batch of token ids to the logit of `SCORED`, (rows,) in float32."""

    def __init__(self, config: Any, state: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
        self.config = config

        def get(*names: str) -> Tensor:
            return torch.cat([state[f"{name}.weight"].to(device=device, dtype=dtype) for name in names])

        self._words = get("shared")
        self._bias_table = get("encoder.block.0.layer.0.SelfAttention.relative_attention_bias")
        self._encoder = [
            {
                "norm": get(f"{base}.0.layer_norm"),
                "qkv": get(*(f"{base}.0.SelfAttention.{name}" for name in "qkv")),
                "o": get(f"{base}.0.SelfAttention.o"),
                **_dense(get, f"{base}.1"),
            }
            for base in (f"encoder.block.{block}.layer" for block in range(config.num_layers))
        ]
        self._encoder_norm = get("encoder.final_layer_norm")
        self._decoder = [
            {
                "norm": get(f"{base}.0.layer_norm"),
                **{name: get(f"{base}.0.SelfAttention.{name}") for name in "vo"},
                "cross_norm": get(f"{base}.1.layer_norm"),
                **{f"cross_{name}": get(f"{base}.1.EncDecAttention.{name}") for name in "qkvo"},
                **_dense(get, f"{base}.2"),
            }
            for base in (f"decoder.block.{block}.layer" for block in range(config.num_decoder_layers))
        ]
        self._decoder_norm = get("decoder.final_layer_norm")
        output = state["shared.weight" if config.tie_word_embeddings else "lm_head.weight"][SCORED].to(device).float()
        self._output = output * config.d_model**-0.5 if config.tie_word_embeddings else output
        self._bias: Tensor | None = None  # of the last length: batches come sorted by length

    def __call__(self, batch: TokenBatch) -> Tensor:
        """The logits (rows,)."""
        rows, batch = len(batch), batch.enough()
        padding = None if batch.even else ~batch.attended()
        states = self._encode(batch.ids(), padding)
        if states.device.type == "cpu" and (times := repeats_for_cpu(len(states))) > 1:
            states = states.repeat(times, 1, 1)
            padding = padding if padding is None else padding.repeat(times, 1)
        return self._decode(states, padding)[:rows]

    def _encode(self, ids: Tensor, padding: Tensor | None) -> Tensor:
        """Hidden states (rows, tokens, d_model) of the encoder."""
        config, (rows, tokens) = self.config, ids.shape
        bias = self._position_bias(tokens)
        if padding is not None:
            bias = bias.expand(rows, -1, -1, -1).masked_fill(padding[:, None, None], float("-inf"))
        x = self._words[ids]
        for layer in self._encoder:
            h = self._norm(x, layer["norm"])
            h = functional.linear(h, layer["qkv"]).view(rows, tokens, 3, config.num_heads, config.d_kv)
            q, k, v = h.permute(2, 0, 3, 1, 4)
            h = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
            x = x + functional.linear(h.transpose(1, 2).reshape(rows, tokens, -1), layer["o"])
            x = x + self._feed_forward(x, layer)
        return self._norm(x, self._encoder_norm)

    def _decode(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """The logits (rows,) after one step of the decoder over the encoder's states."""
        config, rows = self.config, len(states)
        x = self._words[FIRST].expand(rows, -1)
        for layer in self._decoder:
            h = self._norm(x, layer["norm"])
            x = x + functional.linear(functional.linear(h, layer["v"]), layer["o"])
            h = functional.linear(self._norm(x, layer["cross_norm"]), layer["cross_q"])
            q = h.view(rows, config.num_heads, config.d_kv).transpose(0, 1)
            w_k, w_v = (layer[name].view(config.num_heads, config.d_kv, -1) for name in ("cross_k", "cross_v"))
            scores = torch.bmm(torch.bmm(q, w_k).transpose(0, 1), states.transpose(1, 2)).float()
            if padding is not None:
                scores = scores.masked_fill(padding[:, None], float("-inf"))
            means = torch.bmm(scores.softmax(dim=-1).to(states.dtype), states)  # (rows, heads, d_model)
            h = torch.bmm(means.transpose(0, 1), w_v.transpose(1, 2)).transpose(0, 1).reshape(rows, -1)
            x = x + functional.linear(h, layer["cross_o"])
            x = x + self._feed_forward(x, layer)
        return (self._norm(x, self._decoder_norm).float() * self._output).sum(dim=1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (self.config.d_model,), weight, self.config.layer_norm_epsilon)

    def _feed_forward(self, x: Tensor, layer: dict[str, Tensor]) -> Tensor:
        gate, values = functional.linear(self._norm(x, layer["dense_norm"]), layer["wi"]).chunk(2, dim=-1)
        return functional.linear(functional.gelu(gate, approximate="tanh") * values, layer["wo"])

    def _position_bias(self, tokens: int) -> Tensor:
        """What attention adds for relative positions, (1, heads, tokens, tokens): a learned number per bucket."""
        if self._bias is None or self._bias.shape[-1] != tokens:
            line = torch.arange(tokens, device=self._words.device)
            table = self._bias_table[self._buckets(line[None, :] - line[:, None])]
            self._bias = table.permute(2, 0, 1)[None].contiguous()
        return self._bias

    def _buckets(self, distance: Tensor) -> Tensor:
        """Buckets of distances from query to key: half of them for each direction. Half of those hold one distance
        each, the others growing ranges of distances."""
        half = self.config.relative_attention_num_buckets // 2
        exact = half // 2
        far = distance.abs()
        largest = math.log(self.config.relative_attention_max_distance / exact)
        growth = torch.log(far.clamp(min=1).float() / exact) / largest
        grown = (exact + (growth * (half - exact)).long()).clamp(max=half - 1)
        buckets: Tensor = torch.where(far < exact, far, grown) + (distance > 0).long() * half
        return buckets


def _dense(get: Any, base: str) -> dict[str, Tensor]:
    return {
        "dense_norm": get(f"{base}.layer_norm"),
        "wi": get(f"{base}.DenseReluDense.wi_0", f"{base}.DenseReluDense.wi_1"),
        "wo": get(f"{base}.DenseReluDense.wo"),
    }
