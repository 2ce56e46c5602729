"""COMET checkpoints without the `unbabel-comet` package: its layout, its defaults, strict keys.

Layout: `X/hparams.yaml` and `X/checkpoints/model.ckpt`, or `X/model.ckpt`. The state has `encoder.model.*`,
`layerwise_attention.*` and `estimator.ff.{0,3,6,...}.*`. The original loader keeps random weights where a key is
missing; this one refuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from mbrace.errors import UserError, require
from mbrace.neural import pretrained
from mbrace.neural.encoder import Readout
from mbrace.neural.head import activation_named
from mbrace.neural.pretrained import check_weights, from_pretrained

# The original's defaults for settings that a checkpoint does not state.
DEFAULTS: dict[str, Any] = {
    "encoder_model": "XLM-RoBERTa",
    "pretrained_model": "xlm-roberta-large",
    "pool": "avg",
    "layer": "mix",
    "layer_transformation": "softmax",
    "layer_norm": True,
    "hidden_sizes": [3072, 1024],
    "activations": "Tanh",
    "final_activation": None,
    # Our own setting. `reference`: the weights of the pretrained encoder. `upper`: of its last layers those that the
    # checkpoint holds.
    "encoder_weights": "checkpoint",
}

# class_identifier: why it is refused where another class is wanted, and what reads it.
REFUSED = {
    "regression_metric": "it embeds each text on its own; give it to mbrace.Comet (--utility comet)",
    "unified_metric": "it reads source and reference together; give it to mbrace.XCOMET (--utility xcomet)",
    "xcomet_metric": "it reads source and reference together; give it to mbrace.XCOMET (--utility xcomet)",
    "ranking_metric": "it gives distances, not a utility; give a regression_metric",
    "referenceless_regression_metric": "it has no reference, so it is not a utility for MBR decoding; "
    "give it to mbrace.Referenceless (`mbrace rerank --qe`)",
}
CROSS_ENCODERS = ("unified_metric", "xcomet_metric")  # the classes that read the texts of a pair together
PARTS = ("encoder.model.", "layerwise_attention.", "estimator.")  # the prefixes of the weights of every class

# encoder_model: the transformers classes of its network, configuration and tokenizer.
ENCODERS = {
    "XLM-RoBERTa": ("XLMRobertaModel", "XLMRobertaConfig", "XLMRobertaTokenizerFast"),
    "XLM-RoBERTa-XL": ("XLMRobertaXLModel", "XLMRobertaXLConfig", "XLMRobertaTokenizerFast"),
    "BERT": ("BertModel", "BertConfig", "BertTokenizerFast"),
    "MiniLM": ("BertModel", "BertConfig", "XLMRobertaTokenizerFast"),  # its tokenizer is xlm-roberta-base's
    "RemBERT": ("RemBertModel", "RemBertConfig", "RemBertTokenizerFast"),
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read: its file, its settings with defaults filled in, its weights by the original's names."""

    path: Path
    settings: dict[str, Any]
    state: dict[str, Tensor]

    @property
    def near(self) -> tuple[Path, Path]:
        """The folders that may hold hparams.yaml and the encoder's folder."""
        return _near(self.path)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The weights under `prefix`, without it."""
        return {key[len(prefix) :]: value for key, value in self.state.items() if key.startswith(prefix)}


def read(
    model: str | Path,
    kinds: Mapping[str, Mapping[str, Any]] = MappingProxyType({"regression_metric": {}}),
    parts: Sequence[str] = PARTS,
) -> Checkpoint:
    """Read a folder, a `.ckpt` file or a hub name in COMET's layout, refusing what is not supported.

    `kinds` are the metric classes wanted, each with the defaults in which it differs from `DEFAULTS`; `parts` are the
    prefixes of their weights' names.
    """
    path = locate(str(model))
    yaml_file, stated = _stated(path)
    _refuse(stated.get("class_identifier"), yaml_file or path, kinds)  # before hundreds of megabytes are read
    raw = _load(path)
    state = raw.get("state_dict") if isinstance(raw, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UserError(f"{path}: has no `state_dict` of weights by name; it is not a COMET checkpoint")
    # The original takes the class from hparams.yaml and every other setting from the checkpoint.
    inside = raw.get("hyper_parameters") or {}
    if not isinstance(inside, dict):
        raise UserError(f"{path}: its hyper_parameters must be settings by name; it is not a COMET checkpoint")
    if not inside and not stated:
        raise UserError(f"{path}: has no hyper_parameters, and hparams.yaml is neither next to it nor one folder up")
    kind: Any = stated.get("class_identifier", inside.get("class_identifier"))
    _refuse(kind, path, kinds)
    settings = {**DEFAULTS, **kinds.get(kind, {}), **(inside or stated), "class_identifier": kind}
    if stated.get("layer_transformation") == "sparsemax_patch":  # and, since version 2.2.4, this one
        settings["layer_transformation"] = "softmax"
    _check(settings, path)
    others = {str(key): value for key, value in state.items() if not str(key).startswith(tuple(parts))}
    check_weights(others, {}, "", path)
    return Checkpoint(path, settings, dequantised(state, path))


def dequantised(state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights in float32. A matrix in 8 bits is multiplied by the scale of each row, which is under `KEY.scale`."""
    scales = {f"{key}.scale": value.shape[:1] for key, value in state.items() if value.dtype == torch.int8}
    check_weights({key: value for key, value in state.items() if key in scales}, scales, "", path)
    found = {key: value.float() for key, value in state.items() if key not in scales}
    for key in scales:
        found[key.removesuffix(".scale")].mul_(state[key].float()[:, None])
    return found


def class_of(model: str | Path) -> str | None:
    """The `class_identifier` of a folder, a `.ckpt` file or a hub name in COMET's layout; None where none is stated."""
    path = locate(str(model))
    _, settings = _stated(path)
    if "class_identifier" not in settings:
        raw = _load(path)
        inside = raw.get("hyper_parameters") if isinstance(raw, dict) else None
        settings = inside if isinstance(inside, dict) else {}
    kind = settings.get("class_identifier")
    return kind if isinstance(kind, str) else None


def _stated(path: Path) -> tuple[Path | None, dict[str, Any]]:
    """The hparams.yaml of a checkpoint and its settings; (None, {}) if there is no such file."""
    yaml_file = next(filter(Path.is_file, (folder / "hparams.yaml" for folder in _near(path))), None)
    return yaml_file, _read_yaml(yaml_file) if yaml_file else {}


def _load(path: Path) -> Any:
    with pretrained.reading(path, "a checkpoint of weights and plain values only"):
        # Memory-mapped, so that weights are copied only once. Files of old torch versions are not archives.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=pretrained.is_archive(path))


def _near(path: Path) -> tuple[Path, Path]:
    """The file's own folder (it may have been copied with its settings), then the one above, as in COMET's layout."""
    folder = path.absolute().parent
    return folder, folder.parent


def locate(model: str) -> Path:
    """The `.ckpt` file that a path, a folder or a hub name stands for."""
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        for file in (path / "checkpoints" / "model.ckpt", path / "model.ckpt"):
            if file.is_file():
                return file
        raise UserError(f"{model}: has no checkpoints/model.ckpt; give a folder in COMET's layout")
    return locate(str(pretrained.download(model)))


def _read_yaml(path: Path) -> dict[str, Any]:
    yaml = require("yaml", extra="neural")
    with pretrained.reading(path, "YAML"):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold settings by name")
    return values


def _refuse(kind: object, path: Path, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a metric class that is not one of `kinds`; None, where none is stated, may still be found elsewhere."""
    if kind is None or (isinstance(kind, str) and kind in kinds):
        return
    if isinstance(kind, str) and kind in REFUSED:
        raise UserError(f"{path}: metric class {kind} is not supported: {REFUSED[kind]}")
    raise UserError(f"{path}: metric class {kind} is not known; give a {' or '.join(kinds)}")


def _check(settings: dict[str, Any], path: Path) -> None:
    if settings["class_identifier"] is None:
        raise UserError(f"{path}: class_identifier is not given in the checkpoint or hparams.yaml")
    for field in ("encoder_model", "pretrained_model", "pool", "layer_transformation", "activations"):
        if not isinstance(settings[field], str) or not settings[field]:
            raise UserError(f"{path}: {field} {settings[field]!r}: must be a name")
    if settings["final_activation"] is not None and not isinstance(settings["final_activation"], str):
        raise UserError(f"{path}: final_activation {settings['final_activation']!r}: must be a name or null")
    sizes = settings["hidden_sizes"]
    if not isinstance(sizes, list | tuple) or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise UserError(f"{path}: hidden_sizes {sizes!r}: must be a list of numbers, such as [3072, 1024]")
    if settings["encoder_model"] not in ENCODERS:
        raise UserError(f"{path}: encoder_model {settings['encoder_model']}: not one of {', '.join(ENCODERS)}")
    if settings["pool"] not in ("avg", "max", "cls", "default"):
        raise UserError(f"{path}: pool {settings['pool']}: not one of avg, max, cls, default")
    if settings["encoder_weights"] not in ("checkpoint", "reference", "upper"):
        raise UserError(
            f"{path}: encoder_weights {settings['encoder_weights']}: not one of checkpoint, reference, upper"
        )


def build_transformer(checkpoint: Checkpoint) -> tuple[Any, Any]:
    """The transformer with the checkpoint's weights (or the pretrained ones, by reference, or some of both) and its
    tokenizer."""
    settings, near, state = checkpoint.settings, checkpoint.near, checkpoint.part("encoder.model.")
    name = settings["pretrained_model"]
    network, configuration, tokenizer = ENCODERS[settings["encoder_model"]]
    if settings["encoder_weights"] == "reference":
        if state:
            raise UserError(f"{checkpoint.path}: encoder_weights is reference, but it holds encoder weights too")
        return pretrained.load(name, network, tokenizer, near=near, add_pooling_layer=False)
    if settings["encoder_weights"] == "upper":
        model, made = pretrained.load(name, network, tokenizer, near=near, add_pooling_layer=False)
        replace_upper(model, state, checkpoint.path)
        return model, made
    transformers = pretrained.quiet()
    folder = pretrained.find(name, near=near, weights=False)
    tokenizer_folder = folder if settings["encoder_model"] != "MiniLM" else _minilm_tokenizer(folder, near)
    pretrained.read_config(folder)
    # On the device "meta" weights are only names and shapes; random weights of COMET-22's size would take ten seconds.
    with pretrained.reading(folder / "config.json", configuration), torch.device("meta"):
        config = from_pretrained(configuration, folder)
        wanted = getattr(transformers, network)(config, add_pooling_layer=False).state_dict()
    # Older files hold position numbers as a weight, and a pooler; we use neither.
    state = {k: v for k, v in state.items() if not k.startswith("pooler.") and k != "embeddings.position_ids"}
    shapes = {key: tuple(value.shape) for key, value in wanted.items()}
    check_weights(state, shapes, "encoder.model.", checkpoint.path, finite=False)
    model = from_pretrained(network, None, config=config, state_dict=state, add_pooling_layer=False)
    return model, pretrained.tokenizer(tokenizer_folder, tokenizer, config.vocab_size)


def replace_upper(model: Any, state: dict[str, Tensor], path: Path) -> None:
    """Give a network the weights of its last layers: all from the first layer that `state` has."""
    numbers = [re.match(r"encoder\.layer\.(\d+)\.", key) for key in state]
    first = min((int(found[1]) for found in numbers if found), default=0)
    wanted = {
        key: tuple(value.shape)
        for key, value in model.state_dict().items()
        if (found := re.match(r"encoder\.layer\.(\d+)\.", key)) and int(found[1]) >= first
    }
    check_weights(state, wanted, "encoder.model.", path)
    model.load_state_dict(state, strict=False)


def _minilm_tokenizer(folder: Path, near: Sequence[Path]) -> Path:
    """COMET's MiniLM encoder uses xlm-roberta-base's tokenizer, which a checkpoint may have in the encoder's folder."""
    has_one = any((folder / name).is_file() for name in ("tokenizer.json", "sentencepiece.bpe.model"))
    return folder if has_one else pretrained.find("xlm-roberta-base", near=near, weights=False)


def build_readout(checkpoint: Checkpoint, layers: int) -> Readout:
    """How the checkpoint makes a vector from `layers` hidden states (the first is the embedding layer's)."""
    settings, state = checkpoint.settings, checkpoint.part("layerwise_attention.")
    if settings["pool"] == "default":  # the last layer's first token; `layer` is ignored
        return Readout("cls")
    if settings["layer"] != "mix":
        check_weights(state, {}, "layerwise_attention.", checkpoint.path)
        layer = settings["layer"]
        if not isinstance(layer, int) or not 0 <= layer < layers:
            raise UserError(f"{checkpoint.path}: layer {layer}: give `mix` or a number from 0 to {layers - 1}")
        return Readout(settings["pool"], layer=layer)
    state = {key: value for key, value in state.items() if not key.startswith("dropout_")}  # used in training only
    names = [f"scalar_parameters.{layer}" for layer in range(layers)]
    check_weights(state, dict.fromkeys([*names, "gamma"], (1,)), "layerwise_attention.", checkpoint.path)
    scalars = torch.cat([state[name] for name in names])
    # As in the original: sparsemax only if the setting is exactly that ("sparsemax_patch" means softmax).
    weights = sparsemax(scalars) if settings["layer_transformation"] == "sparsemax" else scalars.softmax(0)
    mixed = (weights * state["gamma"]).tolist()
    return Readout(settings["pool"], tuple(mixed), layer_norm=bool(settings["layer_norm"]))


def build_feed_forward(
    checkpoint: Checkpoint, widths: Sequence[int], device: torch.device
) -> tuple[list[tuple[Tensor, Tensor]], Any, Any]:
    """The estimator's layers (weight, bias), its activation, and the one after its last layer (None if it has none).

    The names and shapes of its weights are checked. Its input must be one of `widths` wide; an error names the last.
    """
    settings, state, path = checkpoint.settings, checkpoint.part("estimator."), checkpoint.path
    sizes = [*settings["hidden_sizes"], 1]
    names = [f"ff.{3 * index}" for index in range(len(sizes))]  # linear, activation, dropout, linear, ...
    first = state.get("ff.0.weight")
    width = next((width for width in widths if first is not None and first.shape[1:] == (width,)), widths[-1])
    wanted: dict[str, tuple[int, ...]] = {}
    for name, size in zip(names, sizes, strict=True):
        wanted |= {f"{name}.weight": (size, width), f"{name}.bias": (size,)}
        width = size
    check_weights(state, wanted, "estimator.", path)
    layers = [(state[f"{name}.weight"].to(device), state[f"{name}.bias"].to(device)) for name in names]
    final = settings["final_activation"]
    return (
        layers,
        activation_named(settings["activations"], path),
        None if final is None else activation_named(final, path),
    )


def sparsemax(scalars: Tensor) -> Tensor:
    """The projection of `scalars` onto the probability simplex (Martins & Astudillo, 2016, algorithm 1)."""
    ordered = scalars.sort(descending=True).values
    sums = ordered.cumsum(0) - 1
    ranks = torch.arange(1, len(scalars) + 1)
    support = int((ranks * ordered > sums).sum())
    return (scalars - sums[support - 1] / support).clamp(min=0)
