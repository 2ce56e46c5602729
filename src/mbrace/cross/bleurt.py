"""BLEURT as a utility: `BLEURT("lucadiliello/BLEURT-20")`, or any folder that `bleurt-pytorch` saved.

A pair is `[CLS] reference [SEP] hypothesis [SEP]`, one forward pass. The package itself is not needed, and no code of a
checkpoint runs. The network is BERT with word vectors that may be narrower than its layers and one linear output. There
are two kinds of tokenizers: sentencepiece in BLEURT-20 and its distilled sizes, word pieces in older
ones.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.cross.scorer import CrossEncoder, Pieces, WindowScorer
from mbrace.errors import UserError, require
from mbrace.neural import pretrained
from mbrace.neural.batches import BatchStream
from mbrace.neural.device import dtype_name, place
from mbrace.neural.head import linear, to_device
from mbrace.neural.pretrained import check_weights, read_weights
from mbrace.neural.tokens import TokenBatch, Tokens, tokenised, valid_unicode
from mbrace.settings import NetworkOptions
from mbrace.utility import Sentence

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BleurtNetwork(torch.nn.Module):
    """Token ids of pairs to scores. Layers run in the encoder's precision, the pooler and the output in float32.

    Its weights have the names of `bleurt-pytorch`. Word vectors are `narrow` numbers wide, or None: as wide as layers.
    """

    def __init__(self, config: Any, narrow: int | None) -> None:
        super().__init__()
        bert, width = require("transformers.models.bert.modeling_bert", extra="neural"), config.hidden_size
        own = copy.copy(config)
        own.hidden_size = narrow or width
        self.bleurt: Any = torch.nn.Module()
        encoder: Any = bert.BertEncoder(config)
        if narrow is not None:
            encoder.embedding_projection = torch.nn.Linear(narrow, width)
        self.bleurt.embeddings, self.bleurt.encoder = bert.BertEmbeddings(own), encoder
        self.bleurt.pooler = torch.nn.ModuleDict({"dense": torch.nn.Linear(width, width)})
        self.classifier = torch.nn.Linear(width, 1)

    @classmethod
    def of(
        cls, config: Any, narrow: int | None, weights: dict[str, Tensor], device: torch.device, dtype: torch.dtype
    ) -> BleurtNetwork:
        """A network with these weights."""
        with torch.device("meta"):  # random weights would take seconds
            self = cls(config, narrow)
        self.to_empty(device=device).load_state_dict(weights)
        self.bleurt.embeddings.to(dtype), self.bleurt.encoder.to(dtype)
        return self.eval()

    def forward(self, ids: Tensor, types: Tensor, attended: Tensor | None) -> Tensor:
        """Scores (pairs,) in float32 of token ids and segment numbers (pairs, tokens).

        `attended` (pairs, tokens) is False for padding; None if there is none.
        """
        encoder, dense = self.bleurt.encoder, self.bleurt.pooler["dense"]
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        hidden = self.bleurt.embeddings(input_ids=ids, token_type_ids=types, position_ids=places)
        if hasattr(encoder, "embedding_projection"):
            hidden = encoder.embedding_projection(hidden)
        hidden = encoder(hidden, attention_mask=None if attended is None else attended[:, None, None, :])[0]
        # With `linear`, a pair's score has the same bits on a CPU whatever the number of pairs.
        pooled = linear(hidden[:, 0].float(), dense.weight) + dense.bias
        score: Tensor = linear(pooled.tanh(), self.classifier.weight) + self.classifier.bias
        return score[:, 0]


_SENTENCEPIECE = ("spm.model", "sent_piece.model")
_WORD_PIECES = ("tokenizer.json", "vocab.txt")
_SPECIAL = ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]")


class WordPieces:
    """BERT's tokenizer, from tokenizer.json or vocab.txt. `start` and `end` are the ids of [CLS] and [SEP], `limit` the
    most tokens of a pair, special ones included, as stated in the tokenizer's files."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        made = pretrained.tokenizer(folder, "BertTokenizerFast", vocabulary)
        self.start, self.end, self.limit = made.cls_token_id, made.sep_token_id, made.model_max_length
        self._tokenizer = made.backend_tokenizer

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Ids of texts, without special tokens."""
        return tokenised(self._tokenizer, texts, special=False)[0]


class SentencePieces:
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

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Ids of texts, without special tokens."""
        return Tokens.of([self._ids(text) for text in valid_unicode(texts)])

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._split.split(text):
            special = self._special.get(part)
            ids += self._model.encode(part) if special is None else [special]
        return ids


def read_tokens(folder: Path, vocabulary: int) -> WordPieces | SentencePieces:
    """The tokenizer in a BLEURT folder; word pieces come first, as in `bleurt-pytorch`."""
    if any((folder / name).is_file() for name in _WORD_PIECES):
        return WordPieces(folder, vocabulary)
    for name in _SENTENCEPIECE:
        if (folder / name).is_file():
            return SentencePieces(folder, folder / name, vocabulary)
    names = ", ".join([*_WORD_PIECES, *_SENTENCEPIECE])
    raise UserError(f"{folder}: has no tokenizer ({names}); copy or download its files again")


_AROUND = 3  # tokens of a row around its texts: [CLS] and two [SEP]


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
        config = _config(settings, folder / "config.json")
        self.tokens = read_tokens(folder, config.vocab_size)
        narrow = settings.get("embedding_size")
        self.network = BleurtNetwork.of(config, narrow, _read_weights(folder, config, narrow), device, dtype)
        limit = min(config.max_position_embeddings, self.tokens.limit)
        self.stream = BatchStream(pad=0, limit=limit, device=device, batch_tokens=batch_tokens)
        self.name = f"bleurt|{pretrained.label(model)}|encoder:{dtype_name(dtype)}"

    def scorer(self, sentences: Sequence[Sentence]) -> BleurtScorer:
        """The scorer of a window of these sentences."""
        return BleurtScorer(self, sentences)


_START, _END = 0, 1  # the numbers of the pieces [CLS] and [SEP]


class BleurtScorer(WindowScorer):
    """The inputs of BLEURT for a window."""

    utility: BLEURT
    number: Pieces

    def __init__(self, utility: BLEURT, sentences: Sequence[Sentence]) -> None:
        tokens = utility.tokens
        super().__init__(utility, sentences, Pieces(tokens, [[tokens.start], [tokens.end]]))

    def scores(
        self, hypotheses: NDArray[np.int64], references: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of distinct pairs; the texts of a pair over the limit are shortened."""
        stream, lengths = self.utility.stream, self.number.lengths
        whole = lengths[references], lengths[hypotheses]
        first, second = cut(*whole, stream.limit - _AROUND)
        stream.cut(int((first + second < sum(whole)).sum()))
        one, start, end = (np.full(len(hypotheses), value) for value in (1, _START, _END))
        rows = np.stack([start, references, end, hypotheses, end], axis=1)
        kept = np.stack([one, first, one, second, one], axis=1)

        def forward(batch: TokenBatch) -> Tensor:
            count, batch = len(batch), batch.enough()
            others = to_device(first[batch.indices] + 2, batch.flat.device)  # tokens of the first segment
            ids = batch.ids()
            types = torch.arange(ids.shape[1], device=ids.device)[None] >= others[:, None]
            return self.utility.network(ids, types.long(), batch.mask())[:count]  # type: ignore[no-any-return]

        return stream.scores(first + second, lambda some: self.number.join(rows[some], kept[some]), forward)


def cut(first: NDArray[np.int64], second: NDArray[np.int64], room: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths that fit into `room` tokens: the longer text loses tokens first, or the second if both are equal."""
    over = np.maximum(first + second - room, 0)
    longer = np.minimum(over, abs(first - second))
    left = over - longer
    return (
        first - np.where(first > second, longer, 0) - left // 2,
        second - np.where(first > second, 0, longer) - (left - left // 2),
    )


SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size"),
)


def _config(settings: dict[str, Any], file: Path) -> Any:
    """The settings in config.json as a BertConfig, whose defaults are those of `bleurt-pytorch`; checked."""
    kind = settings.get("model_type")
    if kind != "bleurt":
        message = f"{file}: model_type {kind!r} is not supported as BLEURT; give a checkpoint of bleurt-pytorch"
        raise UserError(message)
    pretrained.check_sizes(settings, (*SIZES, "embedding_size"), file.parent)
    transformers, name = pretrained.quiet(), settings.get("hidden_act", "gelu")
    if not isinstance(name, str) or name not in require("transformers.activations", extra="neural").ACT2FN:
        raise UserError(f"{file}: hidden_act {name!r}: transformers has no activation of that name")
    known = (*SIZES, "hidden_act", "layer_norm_eps")
    given = {name: settings[name] for name in known if settings.get(name) is not None}
    config = transformers.BertConfig(**given)
    config._attn_implementation = "sdpa"
    heads, width = config.num_attention_heads, config.hidden_size
    if width % heads:
        raise UserError(f"{file}: num_attention_heads {heads}: must divide hidden_size {width}")
    return config


def _read_weights(folder: Path, config: Any, narrow: int | None) -> dict[str, Tensor]:
    """The weights in a folder by name; missing, unexpected and misshapen ones are refused."""
    path, state = read_weights(folder)
    # Older files hold position numbers, which are not weights.
    state = {name: value for name, value in state.items() if name != "bleurt.embeddings.position_ids"}
    with torch.device("meta"):
        wanted = BleurtNetwork(config, narrow).state_dict()
    check_weights(state, {name: tuple(value.shape) for name, value in wanted.items()}, "", path)
    return {name: value.float() for name, value in state.items()}
