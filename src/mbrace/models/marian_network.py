"""Marian's network, read and written without transformers: its modules have the names of transformers' MarianMTModel.

`forward` is the pass of training; unlike transformers' own, it never makes the GPU wait for the host. Both `forward`
and `encode` also take a MarianMTModel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.errors import UserError, require
from mbrace.io.atomic import give_usual_mode
from mbrace.models.tokenizers import Vocabulary
from mbrace.neural import pretrained
from mbrace.neural.device import dtype_name, without_cudnn_attention

ACTIVATIONS = {"swish": torch.nn.SiLU, "silu": torch.nn.SiLU, "relu": torch.nn.ReLU, "gelu": torch.nn.GELU}
SIDES = ("encoder", "decoder")
# Settings of config.json, and what transformers' MarianConfig takes where they are missing.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 58101,
    "decoder_vocab_size": None,
    "max_position_embeddings": 1024,
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "init_std": 0.02,
    "scale_embedding": False,
    "decoder_start_token_id": 58100,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
GENERATION = ("bad_words_ids", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")


class MarianNetwork(torch.nn.Module):
    """An encoder-decoder after Vaswani et al. (2017), with layer normalisation after each sum.

    Its weights are uninitialised: `of` and `random` set them.

    `config` has some of the settings in DEFAULTS, `generation` those of GENERATION that differ from it.
    """

    def __init__(self, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        known = DEFAULTS | {name: config[name] for name in DEFAULTS if name in config}
        self.config = SimpleNamespace(model_type="marian", **known)
        self.config.decoder_vocab_size = self.config.decoder_vocab_size or self.config.vocab_size
        settings = {**known, "bad_words_ids": None, **(generation or {})}
        self.generation_config = SimpleNamespace(**{name: settings[name] for name in GENERATION})
        self.model = torch.nn.Module()
        for name, words in zip(SIDES, (self.config.vocab_size, self.config.decoder_vocab_size), strict=True):
            self.model.add_module(name, _Side(self.config, name, words))
        self.lm_head = _Linear(self.config.d_model, self.config.decoder_vocab_size, bias=False)
        self.register_buffer("final_logits_bias", torch.zeros(1, self.config.decoder_vocab_size))
        self.tie()

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.lm_head.weight.device

    def tie(self) -> None:
        """Embeddings of both sides, and the output matrix, are the same tensor where the config says so."""
        encoder, decoder = (getattr(self.model, name) for name in SIDES)
        if self.config.share_encoder_decoder_embeddings:
            decoder.embed_tokens = encoder.embed_tokens
        if self.config.tie_word_embeddings:
            self.lm_head.weight = decoder.embed_tokens.weight

    @classmethod
    def random(cls, config: Mapping[str, Any], generation: Mapping[str, Any]) -> MarianNetwork:
        """A network to train."""
        self = cls(config, generation)
        for module in self.modules():
            if isinstance(module, _Linear | _Embedding):
                torch.nn.init.normal_(module.weight, std=self.config.init_std)
            if isinstance(module, _Linear) and module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        for side in SIDES:
            positions = getattr(self.model, side).embed_positions.weight.requires_grad_(False)
            positions.copy_(sinusoids(*positions.shape))
        return self

    @classmethod
    def of(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any], weights: Mapping[str, Tensor], name: str
    ) -> MarianNetwork:
        """A network with these weights, in float32, for decoding; `name` is for messages."""
        self = cls(config, generation)
        given = {key: value.float() for key, value in weights.items()}
        shared = next((given[key] for key in _EMBEDDINGS if key in given), None)
        positions = sinusoids(self.config.max_position_embeddings, self.config.d_model)
        known = {
            "final_logits_bias": torch.zeros(1, self.config.decoder_vocab_size),
            **{f"model.{side}.embed_positions.weight": positions for side in SIDES},
            **dict.fromkeys(_EMBEDDINGS, shared),
            "lm_head.weight": given.get("model.decoder.embed_tokens.weight", shared),
            **given,
        }
        wanted = self.state_dict()
        state = {key: value for key in wanted if (value := known.get(key)) is not None}
        pretrained.check_weights(
            state, {key: tuple(weight.shape) for key, weight in wanted.items()}, "", Path(name), finite=False
        )
        self.load_state_dict(state, assign=True)
        self.tie()
        return self.eval().requires_grad_(False)

    def load_like(self, other: MarianNetwork, name: str) -> None:
        """Take the weights of another network, called `name` in messages."""
        mine, theirs = self.state_dict(), other.state_dict()
        odd = [key for key in {**mine, **theirs} if key not in mine or key not in theirs]
        odd += [key for key in mine if key in theirs and mine[key].shape != theirs[key].shape]
        if odd:
            raise UserError(f"{name}: is of another size or vocabulary ({', '.join(odd[:3])}); give one of the same")
        self.load_state_dict(theirs)

    def save(self, folder: Path, *, half: bool = False) -> None:
        """Write the files that `AutoModelForSeq2SeqLM.from_pretrained` reads, and `read_network` as well; with `half`,
        weights in float16."""
        dtype = torch.float16 if half else torch.float32
        about = {"architectures": ["MarianMTModel"], "is_encoder_decoder": True, "dtype": dtype_name(dtype)}
        about |= vars(self.config) | {"bos_token_id": None}
        (folder / "config.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        generation = vars(self.generation_config) | {"max_length": self.config.max_position_embeddings}
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=1), encoding="utf-8")
        tensors = {key: weight.to(dtype).contiguous().numpy() for key, weight in self.stored().items()}
        safetensors = require("safetensors.numpy", extra="models")
        safetensors.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        give_usual_mode(folder / "model.safetensors")

    def stored(self) -> dict[str, Tensor]:
        """The weights in float32, without those that can be computed; what several modules share is there once."""
        tensors = {}
        for key, weight in self.state_dict().items():
            if self.config.share_encoder_decoder_embeddings and key.endswith("embed_tokens.weight"):
                key = "model.shared.weight"
            tied = key == "lm_head.weight" and self.config.tie_word_embeddings
            if not tied and not key.endswith("embed_positions.weight"):
                tensors[key] = weight.detach().float().cpu()
        return tensors


_EMBEDDINGS = ("model.shared.weight", *(f"model.{side}.embed_tokens.weight" for side in SIDES), "lm_head.weight")


class _Linear(torch.nn.Linear):
    def reset_parameters(self) -> None:
        """Torch's way takes longer than reading weights from a file."""


class _Embedding(torch.nn.Embedding):
    def reset_parameters(self) -> None:
        """As in _Linear."""


class _Side(torch.nn.Module):
    """The encoder or the decoder."""

    def __init__(self, config: Any, name: str, words: int) -> None:
        super().__init__()
        self.embed_tokens = _Embedding(words, config.d_model)
        self.embed_positions = _Embedding(config.max_position_embeddings, config.d_model)
        layers = range(getattr(config, f"{name}_layers"))
        self.layers = torch.nn.ModuleList([_Layer(config, name) for _ in layers])


class _Layer(torch.nn.Module):
    def __init__(self, config: Any, side: str) -> None:
        super().__init__()
        width, heads, units = config.d_model, *(getattr(config, f"{side}_{n}") for n in ("attention_heads", "ffn_dim"))
        self.self_attn = _Attention(width, heads)
        self.self_attn_layer_norm = torch.nn.LayerNorm(width)
        if side == "decoder":
            self.encoder_attn = _Attention(width, heads)
            self.encoder_attn_layer_norm = torch.nn.LayerNorm(width)
        self.fc1 = _Linear(width, units)
        self.fc2 = _Linear(units, width)
        self.final_layer_norm = torch.nn.LayerNorm(width)
        self.activation_fn = ACTIVATIONS[config.activation_function]()


class _Attention(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, _Linear(width, width))


def sinusoids(length: int, width: int) -> Tensor:
    """Marian's position embeddings (length, width): all sines, then all cosines."""
    rates = np.array([np.power(10000, 2 * (unit // 2) / width) for unit in range(width)])
    angles = np.arange(length)[:, None] / rates
    return torch.from_numpy(np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=1)).float()


def is_marian(folder: Path) -> bool:
    """Whether a folder holds a Marian model that `read_network` and `read_tokenizer` (tokenizers.py) can read."""
    if not all((folder / name).is_file() for name in ("config.json", "source.spm", "target.spm", "vocab.json")):
        return False
    config = pretrained.read_config(folder)
    forced = _generation(folder, config).get("forced_bos_token_id")
    known = config.get("activation_function", "gelu") in ACTIVATIONS and forced is None
    return (
        config.get("model_type") == "marian" and known and any((folder / name).is_file() for name in pretrained.WEIGHTS)
    )


def read_network(folder: Path) -> MarianNetwork:
    """The network in a folder, in float32, for decoding."""
    config, (_, weights) = pretrained.read_config(folder), pretrained.read_weights(folder)
    return MarianNetwork.of(config, _generation(folder, config), weights, str(folder))


def _generation(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of generating: those of older models are in config.json."""
    found: dict[str, Any] | None = pretrained.read_json(folder / "generation_config.json", dict)
    names = (*GENERATION, "forced_bos_token_id")
    settings = config if found is None else found
    return {name: settings[name] for name in names if settings.get(name) is not None}


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


def load_bundled(folder: str | Path | None = None) -> tuple[MarianNetwork, Vocabulary]:
    """The network, in float32, and its vocabulary; by default that of mbrace-de-en.

    Each row of a matrix is stored as int8 with a scale, other weights in float16 (`experiments/evaluate.py` does that).
    """
    source = Path(require("mbrace_de_en", extra="models").FOLDER if folder is None else folder)
    if not (source / "weights.safetensors").exists():
        raise UserError(f"{source.name}: this installation has no bundled translator; give a model")
    safetensors = require("safetensors.numpy", extra="models")
    vocabulary = Vocabulary((source / "joint.spm").read_bytes())
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = safetensors.load_file(source / "weights.safetensors")
    state = {}
    for name, weights in tensors.items():
        if name.endswith(".scale"):
            continue
        scale = tensors.get(name + ".scale")
        state[name] = torch.from_numpy(weights.astype(np.float32) * (1.0 if scale is None else scale[:, None]))
    network = MarianNetwork.of(config, {"bad_words_ids": [[vocabulary.pad]]}, state, source.name)
    return network, vocabulary
