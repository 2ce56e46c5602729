"""Tiny random checkpoints in the layout of `bleurt-pytorch`, the same bytes on every machine.

Used by the tests with mbrace's loader and by `oracle_encoders.py` with the original package.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch

# name: settings of config.json, the tokenizer's kind, the file of weights
VARIANTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "bleurt-20": ({"embedding_size": 12}, "sentencepiece", "pytorch_model.bin"),
    "bleurt-20-tanh-gelu": ({"embedding_size": 12, "hidden_act": "gelu_new"}, "sentencepiece", "model.safetensors"),
    "bleurt-base": ({"embedding_size": None}, "word-pieces", "pytorch_model.bin"),
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# As tiny's, but a pair of BLEURT's has no cutting in the original: nothing over the length limit.
HYPOTHESES = [*tiny.HYPOTHESES[:-1], "she said [SEP] and 5 [MASK] more", "  two  spaces\tand a tab "]
REFERENCES = [*tiny.REFERENCES[:-1], "[CLS] is a token", "日本語 and 中 文"]
POSITIONS = 128


def make(folder: Path, name: str) -> Path:
    """Write variant `name` under `folder`; returns its folder."""
    changes, tokens, file = VARIANTS[name]
    made = folder / name
    made.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bleurt",
        "architectures": ["BleurtForSequenceClassification"],
        "vocab_size": tiny.VOCABULARY,
        "hidden_size": tiny.UNITS,
        "intermediate_size": 2 * tiny.UNITS,
        "num_hidden_layers": tiny.LAYERS,
        "num_attention_heads": 3,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        **changes,
    }
    (made / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if tokens == "sentencepiece":
        (made / "spm.model").write_bytes(sentencepiece_model())
        settings = {"do_lower_case": False, "tokenizer_class": "BleurtSPTokenizer"}
        (made / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    else:
        tiny._bert_tokenizer(made)
    state = weights(config["embedding_size"], sum(name.encode()))
    if file.endswith(".safetensors"):
        from safetensors.torch import save_file

        save_file(state, str(made / file), metadata={"format": "pt"})
    else:
        positions = {"bleurt.embeddings.position_ids": torch.arange(POSITIONS)[None]}
        torch.save(state | positions, made / file)
    return made


def weights(embedding_size: int | None, seed: int) -> dict[str, torch.Tensor]:
    """Weights under the original's names, large enough that every layer matters."""
    random = np.random.Generator(np.random.Philox(seed))
    narrow = embedding_size or tiny.UNITS
    bert = tiny._encoder_state({"encoder_model": "BERT"}, random)
    state = {f"bleurt.{name}": value for name, value in bert.items()}
    for part, rows in (("word", tiny.VOCABULARY), ("position", POSITIONS), ("token_type", 2)):
        state[f"bleurt.embeddings.{part}_embeddings.weight"] = tiny._normal(random, (rows, narrow), 0.7)
    state["bleurt.embeddings.LayerNorm.weight"] = 1 + tiny._normal(random, (narrow,), 0.1)
    state["bleurt.embeddings.LayerNorm.bias"] = tiny._normal(random, (narrow,), 0.1)
    linears = {"bleurt.pooler.dense": (tiny.UNITS, tiny.UNITS), "classifier": (1, tiny.UNITS)}
    if embedding_size is not None:
        linears["bleurt.encoder.embedding_projection"] = (tiny.UNITS, narrow)
    for name, shape in linears.items():
        state[f"{name}.weight"] = tiny._normal(random, shape, 1.0 / shape[1] ** 0.5)
        state[f"{name}.bias"] = tiny._normal(random, shape[:1], 0.1)
    return state


def sentencepiece_model() -> bytes:
    """A unigram model over characters and a few pieces, with RemBERT's special tokens, as sentencepiece saves it."""
    control, unknown, normal = 3, 2, 1
    pieces = [(name, 0.0, unknown if name == "[UNK]" else control) for name in SPECIAL[:4]]  # no [MASK], as RemBERT
    words = ["▁the", "▁a", "▁word", "ing", "ch", "er", "▁horse", "▁"]
    words += [chr(code) for code in range(33, 127)] + list("äöüßışğç")
    pieces += [(word, -2.0 - len(word) * 0.01 * (index % 7), normal) for index, word in enumerate(words)]
    out = b""
    for piece, score, kind in pieces:
        text = piece.encode()
        fields = b"\x0a" + _varint(len(text)) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + _varint(kind)
        out += b"\x0a" + _varint(len(fields)) + fields
    # TrainerSpec: model_type unigram (3), unk_id (40), bos_id (41), eos_id (42), pad_id (43)
    trainer = b"\x18\x01"
    for field, number in ((40, 1), (41, 2), (42, 3), (43, 0)):
        trainer += _varint(field << 3) + _varint(number)
    trainer += _varint(45 << 3 | 2) + _varint(5) + b"[UNK]"  # unk_piece, and those of the others
    for field, name in ((46, "[CLS]"), (47, "[SEP]"), (48, "[PAD]")):
        trainer += _varint(field << 3 | 2) + _varint(len(name)) + name.encode()
    normaliser = b"\x0a\x08identity\x18\x01\x20\x01\x28\x01"  # a space in front, no double ones, spaces as ▁
    return out + b"\x12" + _varint(len(trainer)) + trainer + b"\x1a" + _varint(len(normaliser)) + normaliser


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])
