"""Tiny encoders for BERTScore, with a tokenizer of each kind that it treats in its own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny

KINDS = ("bert", "xlmr", "roberta")
LAYER = 2
# Nothing over the length limit, where the original fails; spaces around and a literal special token in a text.
HYPOTHESES = ["A man rides a horse.", " the cat is on the mat ", "", "word word word", "a [SEP] horse </s> rides", "x"]
REFERENCES = ["A person rides the horse.", "the cat sat on a mat", "the cat", "word", "the horse rides", "Something"]
TEXTS = ["the cat", "a horse", "word word", "A man", "the mat"]  # for idf
BASELINES = "LAYER,P,R,F\n0,0.1,0.2,0.3\n1,0.2,0.3,0.4\n2,0.35,0.45,0.55\n3,0.5,0.6,0.7\n"


def make(folder: Path, kind: str) -> Path:
    """Write an encoder with its tokenizer and weights under `folder`; returns its folder."""
    made = tiny.make_pretrained(folder / kind, "BERT" if kind == "bert" else "XLM-RoBERTa")
    file = made / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"model_max_length": 38}  # the original needs one
    file.write_text(json.dumps(settings), encoding="utf-8")
    if kind != "roberta":
        return made
    (made / "tokenizer.json").unlink()
    config = json.loads((made / "config.json").read_text()) | {
        "model_type": "roberta",
        "architectures": ["RobertaModel"],
    }
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    # Byte-level word pieces: "Ġ" is a space, which the first word of a text has only if it is put there.
    letters = [chr(code) for code in range(33, 127)] + ["Ġ"]
    merges = ["t h", "th e", "Ġ the", "Ġ a", "w o", "wo r", "wor d", "Ġ word", "h o"]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(merge.replace(" ", "") for merge in merges), "<mask>"]
    (made / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}))
    (made / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    file.write_text(json.dumps(settings | {"tokenizer_class": "RobertaTokenizer"}), encoding="utf-8")
    return made


# sentence-transformers folders: the pooling's settings, the Dense modules' activations, whether vectors are normalised
# before the first of them.
SENTENCE_ENCODERS: dict[str, tuple[dict[str, Any], list[str | None], bool]] = {
    "labse": ({"pooling_mode_cls_token": True}, ["torch.nn.modules.activation.Tanh"], False),
    "last-token": ({"pooling_mode": "lasttoken"}, [], False),
    "two-dense": (
        {"pooling_mode": "mean"},
        ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.GELU"],
        True,
    ),
}


def make_sentence_encoder(folder: Path, name: str) -> Path:
    """Write a sentence-transformers folder under `folder`; returns it."""
    from safetensors.torch import save_file

    pooling, activations, normalised = SENTENCE_ENCODERS[name]
    made = tiny.make_pretrained(folder / name)
    random = np.random.Generator(np.random.Philox(7))
    settings: list[tuple[str, dict[str, Any] | None]] = [("Transformer", None)]
    settings += [("Pooling", {"word_embedding_dimension": tiny.UNITS, **pooling})]
    settings += [("Normalize", {})] if normalised else []
    width = tiny.UNITS
    for position, activation in enumerate(activations):
        bias = position == 0
        settings += [
            ("Dense", {"in_features": width, "out_features": 16, "bias": bias, "activation_function": activation})
        ]
        state = {"linear.weight": tiny._normal(random, (16, width), 0.3)}
        state |= {"linear.bias": tiny._normal(random, (16,), 0.3)} if bias else {}
        (made / f"{len(settings) - 1}_Dense").mkdir()
        save_file(state, str(made / f"{len(settings) - 1}_Dense" / "model.safetensors"))
        width = 16
    settings += [("Normalize", {})]
    modules = []
    for index, (kind, values) in enumerate(settings):
        path = "" if values is None else f"{index}_{kind}"
        modules.append({"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"})
        if values is not None:
            (made / path).mkdir(exist_ok=True)
            (made / path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    (made / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (made / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
    return made
