"""The bundled translator, of the package mbrace-de-en: a Marian model stored as int8 with a scale per row, loaded as
float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.errors import UserError, require
from mbrace.io.atomic import give_usual_mode
from mbrace.models.marian_network import MarianNetwork, read_network
from mbrace.models.tokenizers import Vocabulary


def quantise(folder: str | Path, out: str | Path) -> int:
    """Write a trained Marian folder as int8 matrices and float16 vectors; returns the bytes on disk.

    Each row of a matrix is stored as round(w / scale) with scale = max |w| / 127. Position embeddings are not stored,
    since they can be computed; the three token embeddings are one matrix, stored once.
    """
    safetensors = require("safetensors.numpy", extra="models")
    model = read_network(Path(folder))
    tensors: dict[str, Any] = {}
    for name, tensor in model.stored().items():
        if name == "final_logits_bias":  # zeros
            continue
        weights = tensor.numpy()
        if weights.ndim == 2:
            scale = np.maximum(np.abs(weights).max(axis=1, keepdims=True), 1e-12).astype(np.float32) / 127
            tensors[name] = np.round(weights / scale).astype(np.int8)
            tensors[name + ".scale"] = scale[:, 0].astype(np.float32)
        else:
            tensors[name] = weights.astype(np.float16)
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    safetensors.save_file(tensors, target / "weights.safetensors")
    give_usual_mode(target / "weights.safetensors")
    (target / "config.json").write_text(json.dumps(vars(model.config), indent=1), encoding="utf-8")
    shutil.copyfile(Path(folder) / "source.spm", target / "joint.spm")
    return sum(path.stat().st_size for path in target.iterdir())


def load_bundled(folder: str | Path | None = None) -> tuple[MarianNetwork, Vocabulary]:
    """The network, in float32, and its vocabulary; by default that of mbrace-de-en."""
    source = Path(require("mbrace_de_en", extra="models").FOLDER if folder is None else folder)
    if not (source / "weights.safetensors").exists():
        raise UserError(f"{source.name}: this installation has no bundled translator; give a model")
    torch = require("torch", extra="models")
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
