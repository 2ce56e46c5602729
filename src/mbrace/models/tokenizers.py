"""Text to ids and back.

Marian's SentencePiece is called directly: its tokenizer takes a millisecond per text. Our own models have one
SentencePiece model for both languages, stored as source.spm, target.spm and vocab.json. Marian's ids: `</s>` is 0,
`<unk>` 1, then the pieces, and `<pad>` last; `<pad>` also starts the decoder.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Pieces
from mbrace.errors import UserError, require
from mbrace.neural import pretrained
from mbrace.utility import helper_threads

EOS, UNKNOWN = 0, 1


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
    """What `codec.decode` writes, from its pieces (None writes nothing); None if the two differ for any single piece,
    as they do for a SentencePiece model with denormalisation rules."""
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
    """For Marian models such as OPUS-MT's, whose vocab.json numbers the pieces of source.spm and target.spm in its own
    way. `prefix` goes before every source, such as ">>est<< " for a model of several languages."""

    def __init__(
        self,
        spm: Sequence[Any],
        ids: Mapping[str, int],
        target_ids: Mapping[str, int] | None = None,
        *,
        special: Sequence[str] = ("<unk>", "</s>", "<pad>"),
        prefix: str = "",
    ) -> None:
        self._source, self._target, self._ids, self._prefix = *spm, ids, prefix
        self._unknown, self._eos = (ids[name] for name in special[:2])
        numbers = {ids[name] for name in special if name in ids}
        known = ids if target_ids is None else target_ids
        self._pieces = {number: piece for piece, number in known.items() if number not in numbers}
        self.pieces = self._find_pieces()

    @classmethod
    def of(cls, tokenizer: Any) -> MarianCodec:
        """What a MarianTokenizer of transformers does."""
        targets = tokenizer.target_encoder if tokenizer.separate_vocabs else None
        special = (tokenizer.unk_token, tokenizer.eos_token, tokenizer.pad_token)
        return cls((tokenizer.spm_source, tokenizer.spm_target), tokenizer.encoder, targets, special=special)

    @classmethod
    def read(cls, folder: Path, prefix: str = "") -> MarianCodec:
        """From the files of a MarianTokenizer."""
        sentencepiece = require("sentencepiece", extra="models")
        settings = pretrained.read_json(folder / "tokenizer_config.json", dict) or {}
        ids, separate = pretrained.read_json(folder / "vocab.json", dict), settings.get("separate_vocabs", False)
        special = []
        for kind, default in (("unk_token", "<unk>"), ("eos_token", "</s>"), ("pad_token", "<pad>")):
            name = settings.get(kind) or default
            special.append(str(name["content"] if isinstance(name, dict) else name))
        for name in special[:2]:
            if name not in ids:
                raise UserError(f"{folder / 'vocab.json'}: has no {name}; download the model again")
        targets = pretrained.read_json(folder / "target_vocab.json", dict) if separate else None
        spm = []
        for name in ("source.spm", "target.spm"):
            with pretrained.reading(folder / name, "a SentencePiece model"):
                spm.append(sentencepiece.SentencePieceProcessor(model_proto=(folder / name).read_bytes()))
        return cls(spm, ids, targets, special=special, prefix=prefix)

    def _find_pieces(self) -> Pieces | None:
        spm = self._target
        known = [spm.piece_to_id(piece) for piece in self._pieces.values()]
        # a "▁" that is written as three bytes is a space too here, and a control piece ends a run of bytes
        if any(spm.is_byte(number) or spm.is_control(number) for number in known):
            return None
        return _pieces(self, pieces := [self._pieces.get(i) for i in range(max(self._pieces) + 1)], [-1] * len(pieces))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        rows = []
        for text in texts:
            text, code = self._prefix + text, []
            if text.startswith(">>") and (end := text.find("<<")) != -1:
                code, text = [text[: end + 2]], text[end + 2 :]
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


class Vocabulary:
    """Text to and from the ids of a Marian model whose two sides share one SentencePiece model."""

    def __init__(self, model: bytes) -> None:
        sentencepiece = require("sentencepiece", extra="models")
        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # `train` gives SentencePiece Marian's ids (</s> 0, <unk> 1, no <s>, no <pad>); only <pad> is added here.
        self.pad = int(self.processor.get_piece_size())

    def __len__(self) -> int:
        return self.pad + 1

    @staticmethod
    def train(
        lines: Iterable[str], size: int, *, seed: int = 0, limit: int = 1_000_000, threads: int = 16
    ) -> Vocabulary:
        """Learn `size` unigram pieces from at most `limit` random lines, with byte fallback: no text is unknown."""
        sentencepiece = require("sentencepiece", extra="models")
        chosen = [line for line in lines if line.strip()]
        if len(chosen) > limit:
            chosen = random.Random(seed).sample(chosen, limit)
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(chosen),
                model_writer=model,
                vocab_size=size - 1,
                character_coverage=0.9995,
                byte_fallback=True,
                eos_id=EOS,
                unk_id=UNKNOWN,
                bos_id=-1,
                pad_id=-1,
                num_threads=threads,
                hard_vocab_limit=False,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise UserError(
                f"SentencePiece could not learn {size} pieces from {len(chosen)} lines: {error}; "
                "ask for fewer pieces, or give more text"
            ) from error
        return Vocabulary(model.getvalue())

    def encode(
        self, lines: Sequence[str], *, threads: int = 16, sampling: float | None = None
    ) -> list[NDArray[np.uint16]]:
        """The ids of each line, `</s>` last; with `sampling` (alpha), those of a random segmentation (Kudo, 2018)."""
        options: dict[str, Any] = {"out_type": int, "num_threads": threads, "add_eos": True}
        if sampling is not None:
            options |= {"enable_sampling": True, "nbest_size": -1, "alpha": sampling}
        ids: list[list[int]] = self.processor.encode(list(lines), **options)
        return [np.asarray(row, dtype=np.uint16) for row in ids]

    def save(self, folder: Path) -> None:
        """Write the files of transformers' MarianTokenizer."""
        pieces = [self.processor.id_to_piece(number) for number in range(self.pad)]
        vocabulary = {piece: number for number, piece in enumerate([*pieces, "<pad>"])}
        (folder / "source.spm").write_bytes(self.model)
        (folder / "target.spm").write_bytes(self.model)
        (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        settings: dict[str, Any] = {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": None,
            "target_lang": None,
            "separate_vocabs": False,
            "unk_token": "<unk>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "model_max_length": 512,
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
