"""Text to ids and back. Marian's SentencePiece is called directly: its tokenizer takes a millisecond per text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Pieces
from mbrace.cores import helper_threads
from mbrace.models.vocabulary import Vocabulary


class Codec(Protocol):
    """Source texts to ids (with the end symbol), and target ids (with special ones) to texts.

    `pieces` writes the texts that `decode` does, without a Python object per id; None where only `decode` can.
    """

    @property
    def pieces(self) -> Pieces | None: ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]: ...


def texts_of(codec: Codec, ids: NDArray[np.int32]) -> list[str]:
    """The text of each row of ids, which are filled up with -1; equal rows are decoded once."""
    if codec.pieces is not None:
        return codec.pieces.texts(np.ascontiguousarray(ids, dtype=np.int32), threads=min(8, helper_threads()))
    lengths = (ids >= 0).sum(axis=1).tolist()
    keys = [row[:length].tobytes() for row, length in zip(ids, lengths, strict=True)]
    row_of = {key: row for row, key in enumerate(keys)}
    decoded = codec.decode([ids[row, : lengths[row]].tolist() for row in row_of.values()])
    distinct = dict(zip(row_of, decoded, strict=True))
    return [distinct[key] for key in keys]


def _pieces(codec: Codec, pieces: Sequence[str | None], bytes_of: Sequence[int]) -> Pieces | None:
    """What `codec.decode` writes, from its pieces (None writes nothing); None if the two differ for any piece alone, as
    they do where SentencePiece was told to change texts that it writes."""
    texts = ["" if piece is None else piece.replace("▁", " ") for piece in pieces]
    fast = Pieces(texts, bytes_of)
    alone = np.arange(len(pieces), dtype=np.int32)[:, None]
    return fast if fast.texts(alone) == codec.decode(alone.tolist()) else None


class VocabularyCodec:
    """For our own models, whose ids are SentencePiece's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.pieces = self._find_pieces()

    def _find_pieces(self) -> Pieces | None:
        spm, size = self._vocabulary.processor, self._vocabulary.pad
        numbers = range(1, size)
        if any(spm.is_control(number) for number in numbers):  # writes nothing, and yet ends a run of bytes
            return None
        surface = {number: spm.decode([number]) for number in numbers if spm.is_unknown(number)}
        pieces = [None, *(surface.get(number) or spm.id_to_piece(number) for number in numbers)]
        return _pieces(self, pieces, [-1, *map(_byte, pieces[1:], map(spm.is_byte, numbers))])

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
        self.pieces = self._find_pieces()

    def _find_pieces(self) -> Pieces | None:
        spm = self._target
        known = [spm.piece_to_id(piece) for piece in self._pieces.values()]
        # a "▁" that is written as three bytes is a space too here, and a control piece ends a run of bytes
        if any(spm.is_byte(number) or spm.is_control(number) for number in known):
            return None
        return _pieces(self, pieces := [self._pieces.get(i) for i in range(max(self._pieces) + 1)], [-1] * len(pieces))

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

    pieces = None

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


def _byte(piece: str | None, is_byte: bool) -> int:
    """The byte that a piece such as <0x0A> stands for; -1 for other pieces."""
    return int(piece[3:5], 16) if is_byte and piece is not None else -1
