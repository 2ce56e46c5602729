"""Weights in a model's folder by name: as safetensors or as a pickle of weights only, in one file or in parts."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mbrace.errors import UserError, require
from mbrace.neural import pretrained

_FILES = (*pretrained.SAFETENSORS[:2], *pretrained.PICKLES[:2])  # one file or an index of parts, of each kind


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file that holds the weights or lists their files, and the weights."""
    for file in (folder / name for name in _FILES):
        if file.is_file():
            return file, _read_parts(file) if file.suffix == ".json" else _read_file(file)
    raise UserError(f"{folder}: has no weights ({_FILES[0]}, {_FILES[2]}); copy or download the model again")


def _read_parts(index: Path) -> dict[str, Tensor]:
    parts = (pretrained.read_json(index, dict) or {}).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(part, str) and "/" not in part for part in parts.values()):
        raise UserError(f"{index}: weight_map must name a file of this folder for each weight; download it again")
    state: dict[str, Tensor] = {}
    for part in sorted(set(parts.values())):
        if not (index.parent / part).is_file():
            raise UserError(
                f"{index.parent / part}: missing, though the index names it; copy or download the model again"
            )
        state |= _read_file(index.parent / part)
    return state


def _read_file(file: Path) -> dict[str, Tensor]:
    with pretrained.reading(file, "weights by name and plain values only"):
        if file.suffix == ".safetensors":
            return require("safetensors.torch", extra="neural").load_file(str(file))  # type: ignore[no-any-return]
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=pretrained.is_archive(file))
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UserError(f"{file}: must hold weights by name; it is damaged, or of another kind")
    return state
