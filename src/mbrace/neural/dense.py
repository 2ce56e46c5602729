"""sentence-transformers' Dense module: a linear layer and an activation over sentence vectors, as LaBSE has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from mbrace.errors import UserError
from mbrace.neural import pretrained
from mbrace.neural.checkpoint import check_finite, check_keys, check_shapes
from mbrace.neural.head import activation_named, linear
from mbrace.neural.weights import read_weights

_TRUSTED = "torch.nn.modules."  # activations may come from here; a file cannot make us import anything else


class Dense:
    """`activation(vectors @ weight.T + bias)`, in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor]) -> None:
        self._weight, self._bias, self._activation = weight, bias, activation

    def __call__(self, vectors: Tensor) -> Tensor:
        """(strings, in_features) to (strings, out_features)."""
        out = linear(vectors, self._weight)
        return self._activation(out if self._bias is None else out + self._bias)


def read_dense(folder: Path, device: torch.device) -> Dense:
    """The module in a folder such as `2_Dense`; settings that are not supported are refused."""
    file = folder / "config.json"
    settings = pretrained.read_json(file, dict)
    if settings is None:
        raise UserError(f"{file}: missing; copy or download the model again")
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
    check_keys(set(state), set(shapes), "", path)
    check_shapes(state, shapes, "", path)
    check_finite(state, "", path)
    moved = {name: value.float().to(device) for name, value in state.items()}
    return Dense(moved["linear.weight"], moved.get("linear.bias"), activation)
