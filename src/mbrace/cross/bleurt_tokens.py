"""BLEURT's two kinds of tokenizers: sentencepiece in BLEURT-20 and its distilled sizes, word pieces in older ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mbrace.errors import UserError, require
from mbrace.neural import pretrained
from mbrace.neural.tokens import valid_unicode

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
