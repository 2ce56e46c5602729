"""Text to ids and back. Marian's SentencePiece is called directly: its tokenizer takes a millisecond per text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mbrace.models.vocabulary import Vocabulary


class Codec(Protocol):
    """Source texts to ids (with the end symbol), and target ids (with special ones) to texts."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]: ...


class VocabularyCodec:
    """For our own models, whose ids are SentencePiece's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [row.tolist() for row in self._vocabulary.encode(texts, threads=4)]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        pad = self._vocabulary.pad
        kept = [[number for number in row if 0 < number < pad] for row in rows]
        return list(map(str.strip, self._vocabulary.processor.decode(kept, num_threads=4))) if kept else []


class MarianCodec:
    """For OPUS-MT models, whose vocab.json numbers the pieces of source.spm and target.spm in its own way."""

    def __init__(self, tokenizer: Any) -> None:
        self._source, self._target, self._tokenizer = tokenizer.spm_source, tokenizer.spm_target, tokenizer
        self._ids: dict[str, int] = tokenizer.encoder
        self._unknown, self._eos = tokenizer.unk_token_id, tokenizer.eos_token_id
        special = {tokenizer.unk_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
        self._pieces = {number: piece for piece, number in self._target_ids().items() if number not in special}

    def _target_ids(self) -> dict[str, int]:
        return self._tokenizer.target_encoder if self._tokenizer.separate_vocabs else self._ids

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        rows = []
        for text in texts:
            code, text = self._tokenizer.remove_language_code(text)  # multilingual models: ">>est<< ..."
            pieces = [*code, *self._source.encode(text, out_type=str)]
            rows.append([*(self._ids.get(piece, self._unknown) for piece in pieces), self._eos])
        return rows

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        pieces = [[self._pieces[number] for number in row if number in self._pieces] for row in rows]
        return [self._target.decode_pieces(row).replace("▁", " ").strip() for row in pieces]


class TokenizerCodec:
    """For any other tokenizer of transformers; `prefix` goes before every source."""

    def __init__(self, tokenizer: Any, prefix: str = "") -> None:
        self._tokenizer, self._prefix = tokenizer, prefix

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return [list(row) for row in self._tokenizer([self._prefix + text for text in texts])["input_ids"]]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        kept = [[number for number in row if number >= 0] for row in rows]
        texts = self._tokenizer.batch_decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [text.strip() for text in texts]
