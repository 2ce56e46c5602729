"""SentencePiece vocabularies as Marian stores them: one joint model, written as source.spm, target.spm and vocab.json.

Marian's ids: `</s>` is 0, `<unk>` 1, then the pieces, and `<pad>` last; `<pad>` also starts the decoder.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, require

EOS, UNKNOWN = 0, 1


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

    def encode(self, lines: Sequence[str], *, threads: int = 16) -> list[NDArray[np.uint16]]:
        """The ids of each line, `</s>` last."""
        ids: list[list[int]] = self.processor.encode(list(lines), out_type=int, num_threads=threads, add_eos=True)
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
