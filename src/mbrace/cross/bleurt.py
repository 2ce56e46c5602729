"""BLEURT as a utility: `BLEURT("lucadiliello/BLEURT-20")`, or any folder that `bleurt-pytorch` saved.

A pair is `[CLS] reference [SEP] hypothesis [SEP]`, one forward pass. The package itself is not needed, and no code of a
checkpoint runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.cross.batches import Batch, BatchStream, InputRows
from mbrace.cross.bleurt_network import BleurtNetwork, BleurtShape
from mbrace.cross.bleurt_tokens import read_tokens
from mbrace.cross.pieces import Pieces
from mbrace.cross.scorer import CrossEncoder, Session, chunks
from mbrace.errors import UserError, check_whole, require
from mbrace.neural import pretrained
from mbrace.neural.checkpoint import check_finite, check_keys, check_shapes
from mbrace.neural.device import choose_device_and_dtype, dtype_name
from mbrace.neural.head import to_device
from mbrace.neural.pretrained import read_weights

_AROUND = 3  # tokens of a row around its texts: [CLS] and two [SEP]

# The defaults of `bleurt-pytorch` for what config.json does not state.
_SIZES = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


class BLEURT(CrossEncoder):
    """BLEURT's score of a hypothesis given a reference: about 0 for unrelated texts to about 1 for equal ones.

    `model` is a folder or a hub name of a checkpoint of `bleurt-pytorch` (`lucadiliello/BLEURT-20`, `-D12`, ...).
    `device` is by default a GPU if there is one; `dtype` is by default bfloat16 on a GPU and float32 elsewhere;
    `batch_tokens` limits a batch. A pair that is too long for the model is cut as BLEURT does it, the longer side
    first.
    """

    needs_source = False

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if batch_tokens is not None:
            check_whole("batch_tokens", batch_tokens, least=1)
        chosen_device, chosen_dtype = choose_device_and_dtype(device, dtype)
        folder = pretrained.find(str(model))
        settings = pretrained.read_config(folder)
        shape = _shape(settings, folder / "config.json")
        self.tokens = read_tokens(folder, shape.vocab_size)
        activation = _activation(settings, folder / "config.json")
        epsilon = float(settings.get("layer_norm_eps", 1e-12))
        weights = _read_weights(folder, shape)
        self.network = BleurtNetwork(shape, weights, activation, epsilon, device=chosen_device, dtype=chosen_dtype)
        limit = min(shape.max_position_embeddings, self.tokens.limit)
        self.stream = BatchStream(pad=0, limit=limit, device=chosen_device, batch_tokens=batch_tokens)
        self.name = f"bleurt|{pretrained.label(model)}|encoder:{dtype_name(chosen_dtype)}"

    def session(self) -> BleurtSession:
        """An empty session, for one window."""
        return BleurtSession(self)


class BleurtSession(Session):
    """The strings of a window."""

    def __init__(self, utility: BLEURT) -> None:
        self.utility = utility
        self.pieces = Pieces(lambda entries: utility.tokens([text for _, text in entries]))
        self._start = self.pieces.fixed([utility.tokens.start])
        self._end = self.pieces.fixed([utility.tokens.end])
        self._shortened: dict[tuple[int, int], int] = {}  # (piece, tokens kept): the piece of those tokens

    def scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of distinct pairs."""
        return self.utility.stream.scores(self.pieces, self._rows(hypotheses, references), self._forward)

    def _rows(self, hypotheses: NDArray[np.int64], references: NDArray[np.int64]) -> Iterator[InputRows]:
        """The pairs as rows of pieces; the texts of a pair over the limit are shortened."""
        stream = self.utility.stream
        for chunk in chunks([self._start, references, self._end, hypotheses, self._end]):
            self.pieces.ensure(chunk.pieces)
            lengths = self.pieces.lengths[chunk.pieces]
            for row in np.flatnonzero(lengths.sum(axis=1) > stream.limit).tolist():
                kept = _cut(int(lengths[row, 1]), int(lengths[row, 3]), stream.limit - _AROUND)
                for column, length in zip((1, 3), kept, strict=True):
                    chunk.pieces[row, column] = self._first_tokens(int(chunk.pieces[row, column]), length)
                stream.truncated += 1
            yield chunk

    def _first_tokens(self, number: int, length: int) -> int:
        """The number of the piece that holds the first tokens of another piece."""
        if (number, length) not in self._shortened:
            self._shortened[number, length] = self.pieces.fixed(self.pieces.ids(number)[:length])
        return self._shortened[number, length]

    def _forward(self, batch: Batch) -> tuple[Tensor, ...]:
        tokens = torch.arange(batch.ids.shape[1], device=batch.ids.device)[None]
        attended = None if batch.even else tokens < batch.lengths[:, None]
        first = to_device(self.pieces.lengths[batch.rows.pieces[:, 1]] + 2, batch.ids.device)  # first segment
        return (self.utility.network(batch.ids, (tokens >= first[:, None]).long(), attended),)


def _cut(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths that fit into `room` tokens: the longer text loses tokens first, or the second if both are equal."""
    over = first + second - room
    difference = abs(first - second)
    longer = min(over, difference)
    first, second = (first - longer, second) if first > second else (first, second - longer)
    left = over - longer
    return first - left // 2, second - (left - left // 2)


def _shape(settings: dict[str, Any], file: Path) -> BleurtShape:
    """The sizes in config.json, checked."""
    kind = settings.get("model_type")
    if kind != "bleurt":
        message = f"{file}: model_type {kind!r} is not supported as BLEURT; give a checkpoint of bleurt-pytorch"
        raise UserError(message)
    sizes = {name: settings.get(name, default) for name, default in _SIZES.items()}
    sizes["embedding_size"] = settings.get("embedding_size")
    for name, value in sizes.items():
        may_be_null = name == "embedding_size"
        if not (may_be_null and value is None) and not (isinstance(value, int) and value > 0):
            raise UserError(f"{file}: {name} {value!r}: must be a number above 0")
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
        raise UserError(f"{file}: num_attention_heads {heads}: must divide hidden_size {width}")
    return BleurtShape(**sizes)


def _activation(settings: dict[str, Any], file: Path) -> Any:
    """The activation by transformers' name for it."""
    pretrained.quiet()
    known = require("transformers.activations", extra="neural").ACT2FN
    name = settings.get("hidden_act", "gelu")
    if not isinstance(name, str) or name not in known:
        raise UserError(f"{file}: hidden_act {name!r}: transformers has no activation of that name")
    return known[name]


def _read_weights(folder: Path, shape: BleurtShape) -> dict[str, Tensor]:
    """The weights in a folder by name; missing, unexpected and misshapen ones are refused."""
    path, state = read_weights(folder)
    # Older files hold position numbers, which are not weights.
    state = {name: value for name, value in state.items() if name != "bleurt.embeddings.position_ids"}
    wanted = shape.weights()
    check_keys(set(state), set(wanted), "", path)
    check_shapes(state, wanted, "", path)
    check_finite(state, "", path)
    return {name: value.float() for name, value in state.items()}
