"""BLEURT as a utility: `BLEURT("lucadiliello/BLEURT-20")`, or any folder that `bleurt-pytorch` saved.

A pair is `[CLS] reference [SEP] hypothesis [SEP]`, one forward pass. The package itself is not needed, and no code of a
checkpoint runs. The network is BERT with word vectors that may be narrower than its layers and one linear output; it
works on a dictionary of weights with the names of `bleurt-pytorch`, so that they are checked before anything is
computed. There are two kinds of tokenizers: sentencepiece in BLEURT-20 and its distilled sizes, word pieces in older
ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mbrace.cross.batches import Batch, BatchStream, InputRows, Pieces
from mbrace.cross.scorer import CrossEncoder, Session, chunks
from mbrace.errors import UserError, require
from mbrace.neural import pretrained
from mbrace.neural.device import dtype_name, place
from mbrace.neural.head import linear, to_device
from mbrace.neural.pretrained import check_weights, read_weights
from mbrace.neural.tokens import valid_unicode
from mbrace.settings import NetworkOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class BleurtShape:
    """The sizes in config.json. `embedding_size` is None if word vectors are as wide as the layers."""

    vocab_size: int
    embedding_size: int | None
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Every weight's name and shape."""
        width, inner = self.hidden_size, self.intermediate_size
        narrow = self.embedding_size or width
        shapes: dict[str, tuple[int, ...]] = {
            "bleurt.embeddings.word_embeddings.weight": (self.vocab_size, narrow),
            "bleurt.embeddings.position_embeddings.weight": (self.max_position_embeddings, narrow),
            "bleurt.embeddings.token_type_embeddings.weight": (self.type_vocab_size, narrow),
        }
        linears = {"bleurt.pooler.dense": (width, width), "classifier": (1, width)}
        norms = {"bleurt.embeddings.LayerNorm": narrow}
        if self.embedding_size is not None:
            linears["bleurt.encoder.embedding_projection"] = (width, narrow)
        for number in range(self.num_hidden_layers):
            base = f"bleurt.encoder.layer.{number}."
            linears |= {f"{base}attention.self.{part}": (width, width) for part in ("query", "key", "value")}
            linears |= {f"{base}attention.output.dense": (width, width)}
            linears |= {f"{base}intermediate.dense": (inner, width), f"{base}output.dense": (width, inner)}
            norms |= {f"{base}attention.output.LayerNorm": width, f"{base}output.LayerNorm": width}
        for name, shape in linears.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        for name, size in norms.items():
            shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
        return shapes


class BleurtNetwork:
    """Token ids of pairs to scores. Layers run in `dtype`, the pooler and the output in float32."""

    def __init__(
        self,
        shape: BleurtShape,
        weights: dict[str, Tensor],
        activation: Callable[[Tensor], Tensor],
        layer_norm_eps: float,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._shape, self._activation, self._epsilon = shape, activation, layer_norm_eps
        last = ("bleurt.pooler.", "classifier.")
        self._weights = {
            name: value.to(device=device, dtype=value.dtype if name.startswith(last) else dtype)
            for name, value in weights.items()
        }

    def __call__(self, ids: Tensor, types: Tensor, attended: Tensor | None) -> Tensor:
        """Scores (pairs,) in float32 of token ids and segment numbers (pairs, tokens).

        `attended` (pairs, tokens) is False for padding; None if there is none.
        """
        embeddings, weights = "bleurt.embeddings.", self._weights
        hidden = weights[f"{embeddings}word_embeddings.weight"][ids]
        hidden = hidden + weights[f"{embeddings}token_type_embeddings.weight"][types]
        hidden = hidden + weights[f"{embeddings}position_embeddings.weight"][: ids.shape[1]]
        hidden = self._normalised(hidden, f"{embeddings}LayerNorm")
        if self._shape.embedding_size is not None:
            hidden = self._linear(hidden, "bleurt.encoder.embedding_projection")
        mask = None if attended is None else attended[:, None, None, :]
        for number in range(self._shape.num_hidden_layers):
            hidden = self._layer(hidden, mask, f"bleurt.encoder.layer.{number}.")
        # With `linear`, a pair's score has the same bits on a CPU whatever the number of pairs.
        pooler = "bleurt.pooler.dense."
        pooled = linear(hidden[:, 0].float(), weights[f"{pooler}weight"]) + weights[f"{pooler}bias"]
        score: Tensor = linear(pooled.tanh(), weights["classifier.weight"]) + weights["classifier.bias"]
        return score[:, 0]

    def _layer(self, hidden: Tensor, mask: Tensor | None, base: str) -> Tensor:
        pairs, tokens, width = hidden.shape
        heads = self._shape.num_attention_heads
        query, key, value = (
            self._linear(hidden, f"{base}attention.self.{part}").view(pairs, tokens, heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        seen = self._linear(seen.transpose(1, 2).reshape(pairs, tokens, width), f"{base}attention.output.dense")
        hidden = self._normalised(seen + hidden, f"{base}attention.output.LayerNorm")
        inner = self._activation(self._linear(hidden, f"{base}intermediate.dense"))
        return self._normalised(self._linear(inner, f"{base}output.dense") + hidden, f"{base}output.LayerNorm")

    def _linear(self, hidden: Tensor, name: str) -> Tensor:
        return functional.linear(hidden, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _normalised(self, hidden: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.layer_norm(hidden, weight.shape, weight, bias, self._epsilon)


_SENTENCEPIECE = ("spm.model", "sent_piece.model")
_WORD_PIECES = ("tokenizer.json", "vocab.txt")
_SPECIAL = ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]")


class BleurtTokens:
    """Token ids of single texts, without special tokens; `start` and `end` are the ids of [CLS] and [SEP]."""

    start: int
    end: int
    limit: int  # tokens in a pair, special ones included, as stated in the tokenizer's files

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        raise NotImplementedError


class WordPieces(BleurtTokens):
    """BERT's tokenizer, from tokenizer.json or vocab.txt."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        made = pretrained.tokenizer(folder, "BertTokenizerFast", vocabulary)
        self.start, self.end, self.limit = made.cls_token_id, made.sep_token_id, made.model_max_length
        self._tokenizer = made.backend_tokenizer

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        return [each.ids for each in self._tokenizer.encode_batch(valid_unicode(texts), add_special_tokens=False)]


class SentencePieces(BleurtTokens):
    """A sentencepiece model, used as in `bleurt-pytorch`: a special token written out in a text becomes that token."""

    def __init__(self, folder: Path, file: Path, vocabulary: int) -> None:
        sentencepiece = require("sentencepiece", extra="neural")
        settings = pretrained.read_json(folder / "tokenizer_config.json", dict) or {}
        for option in ("split_by_punct", "do_lower_case"):
            if settings.get(option):
                raise UserError(f"{folder / 'tokenizer_config.json'}: {option} is not supported with sentencepiece")
        with pretrained.reading(file, "a sentencepiece model"):
            self._model: Any = sentencepiece.SentencePieceProcessor(model_file=str(file))
        size = self._model.get_piece_size()
        own = {name: int(self._model.piece_to_id(name)) for name in _SPECIAL}
        own = {name: number for name, number in own.items() if self._model.id_to_piece(number) == name}
        missing = [name for name in ("[CLS]", "[SEP]") if name not in own]
        if missing:
            raise UserError(f"{file}: has no {' and no '.join(missing)}; it is not the tokenizer of a BLEURT model")
        # The original numbers the other ones after the last token, if the network has spare rows for them.
        spare = enumerate((name for name in _SPECIAL if name not in own), size)
        self._special = own | {name: number for number, name in spare if number < vocabulary}
        if not vocabulary / 2 <= size <= vocabulary:
            found = f"{size} tokens, and vocab_size in config.json is {vocabulary}"
            raise UserError(f"{file}: has {found}; give the tokenizer of this model")
        self.start, self.end = own["[CLS]"], own["[SEP]"]
        limit = settings.get("model_max_length")
        self.limit = int(limit) if isinstance(limit, int | float) and limit > 0 else sys.maxsize
        self._split = re.compile("(" + "|".join(map(re.escape, self._special)) + ")")

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        return [self._ids(text) if "[" in text else self._model.encode(text) for text in valid_unicode(texts)]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._split.split(text):
            special = self._special.get(part)
            ids += self._model.encode(part) if special is None else [special]
        return ids


def read_tokens(folder: Path, vocabulary: int) -> BleurtTokens:
    """The tokenizer in a BLEURT folder; word pieces come first, as in `bleurt-pytorch`."""
    if any((folder / name).is_file() for name in _WORD_PIECES):
        return WordPieces(folder, vocabulary)
    for name in _SENTENCEPIECE:
        if (folder / name).is_file():
            return SentencePieces(folder, folder / name, vocabulary)
    names = ", ".join([*_WORD_PIECES, *_SENTENCEPIECE])
    raise UserError(f"{folder}: has no tokenizer ({names}); copy or download its files again")


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
    Other parameters are those of `settings.Network`. A pair that is too long is cut as BLEURT does it, the longer side
    first.
    """

    needs_source = False

    def __init__(self, model: str | Path, **network: Unpack[NetworkOptions]) -> None:
        device, dtype, batch_tokens = place(network)
        folder = pretrained.find(str(model))
        settings = pretrained.read_config(folder)
        shape = _shape(settings, folder / "config.json")
        self.tokens = read_tokens(folder, shape.vocab_size)
        activation = _activation(settings, folder / "config.json")
        epsilon = float(settings.get("layer_norm_eps", 1e-12))
        weights = _read_weights(folder, shape)
        self.network = BleurtNetwork(shape, weights, activation, epsilon, device=device, dtype=dtype)
        limit = min(shape.max_position_embeddings, self.tokens.limit)
        self.stream = BatchStream(pad=0, limit=limit, device=device, batch_tokens=batch_tokens)
        self.name = f"bleurt|{pretrained.label(model)}|encoder:{dtype_name(dtype)}"

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
    check_weights(state, shape.weights(), "", path)
    return {name: value.float() for name, value in state.items()}
