"""Tiny random checkpoints of cross-encoders: COMET's unified classes and MetricX, the same bytes on every machine.

As `tiny.py`, which has the texts and the encoders: used by the tests and by `oracle_cross.py` in its own environment.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from tiny import LAYERS, UNITS

POSITIONS = 90  # some inputs fit, some segments and some joined inputs are cut

UNIFIED = {"class_identifier": "unified_metric", "sent_layer": "mix", "layer_norm": False}
XCOMET = {"class_identifier": "xcomet_metric", "sent_layer": "mix", "word_layer": 2, "layer_norm": False}
REFERENCELESS = {"class_identifier": "referenceless_regression_metric"}
XL = {"encoder_model": "XLM-RoBERTa-XL", "pretrained_model": "tiny-xl"}
REMBERT = {"encoder_model": "RemBERT", "pretrained_model": "tiny-rembert"}
SOFTMAX, SPARSEMAX = {"layer_transformation": "softmax"}, {"layer_transformation": "sparsemax"}
PATCHED = {**SPARSEMAX, "stated": {"layer_transformation": "sparsemax_patch"}}  # runs as softmax

VARIANTS: dict[str, dict[str, Any]] = {
    "unite-xlmr-sparsemax": {**UNIFIED, **tiny.XLMR, **SPARSEMAX},
    "unite-xlmr-patched": {**UNIFIED, **tiny.XLMR, **PATCHED},
    "unite-xlmr-softmax-norm": {**UNIFIED, **tiny.XLMR, **SOFTMAX, "layer_norm": True},
    "unite-xlmr-layer-2-final": {**UNIFIED, **tiny.XLMR, "sent_layer": 2, "final_activation": "Sigmoid"},
    "unite-xlmr-last-layer": {**UNIFIED, **tiny.XLMR, "sent_layer": LAYERS, "hidden_sizes": [20]},
    "unite-xlmr-words": {**UNIFIED, **tiny.XLMR, **SPARSEMAX, "word_level_training": True, "word_layer": 1},
    "unite-mt-ref": {**UNIFIED, **tiny.XLMR, **SPARSEMAX, "input_segments": ["mt", "ref"]},
    "unite-bert-types": {**UNIFIED, **tiny.BERT, **SPARSEMAX},
    "unite-minilm": {**UNIFIED, **tiny.MINILM, **SPARSEMAX},
    "unite-rembert": {**UNIFIED, **REMBERT, **SOFTMAX},
    "unite-xl-norm": {**UNIFIED, **XL, **SPARSEMAX, "layer_norm": True},
    "kiwi-xlmr": {**UNIFIED, **tiny.XLMR, **SPARSEMAX, "input_segments": ["mt", "src"]},
    "kiwi-xl": {**UNIFIED, **XL, **PATCHED, "input_segments": ["mt", "src"]},
    "xcomet-xl": {**XCOMET, **XL, **SPARSEMAX},
    "xcomet-xlmr-softmax": {**XCOMET, **tiny.XLMR, **SOFTMAX, "word_layer": LAYERS},
    "referenceless-xlmr": {**REFERENCELESS, **tiny.XLMR, **SPARSEMAX},
    "referenceless-bert": {**REFERENCELESS, **tiny.BERT, **SOFTMAX, "pool": "cls"},
}
METRICX = {"metricx-24": "24", "metricx-23": "23", "metricx-23-qe": "23", "metricx-24-spaces": "24"}


def make(folder: Path, name: str) -> Path:
    """Write variant `name` in COMET's layout and the encoder it refers to under `folder`; returns its folder."""
    settings = dict(VARIANTS[name])
    stated = settings.pop("stated", {})
    random = np.random.Generator(np.random.Philox(sum(name.encode())))
    _make_encoder(folder / name / settings["pretrained_model"], settings["encoder_model"])
    state = {f"encoder.model.{key}": value for key, value in _encoder_state(settings["encoder_model"], random).items()}
    referenceless = settings["class_identifier"].startswith("referenceless")
    if settings.get("sent_layer", "mix") == "mix":
        for layer in range(LAYERS + 1):
            state[f"layerwise_attention.scalar_parameters.{layer}"] = tiny._normal(random, (1,), 0.4)
        state["layerwise_attention.gamma"] = torch.tensor([1.3])
    sizes = [(4 if referenceless else 1) * UNITS, *settings.get("hidden_sizes", [40, 16]), 1]
    for position, (width, size) in enumerate(itertools.pairwise(sizes)):
        state[f"estimator.ff.{3 * position}.weight"] = tiny._normal(random, (size, width), 1.5 / width**0.5)
        state[f"estimator.ff.{3 * position}.bias"] = tiny._normal(random, (size,), 0.1)
    classes = 0
    if settings["class_identifier"] == "xcomet_metric":
        classes = 4
        state["wordloss.weight"] = torch.tensor([0.08, 0.486, 0.505, 0.533])
    elif settings.get("word_level_training"):
        classes = 3
    if classes:  # one class or another wins, with a lead for "no error", so that spans begin and end
        state["hidden2tag.weight"] = tiny._normal(random, (classes, UNITS), 1.0)
        state["hidden2tag.bias"] = torch.tensor([1.0, 0.0, 0.0, 0.0])[:classes]
    settings = {"hidden_sizes": [40, 16], "activations": "Tanh", "dropout": 0.0, "validation_data": [], **settings}
    if referenceless:
        settings = {"pool": "avg", "layer": "mix", "layer_norm": False, **settings}
    tiny.write(folder / name, settings, state, stated)
    return folder / name


def _encoder_state(encoder_model: str, random: np.random.Generator) -> dict[str, torch.Tensor]:
    """The weights of an encoder; XL's and RemBERT's names differ from BERT's."""
    known = {"RemBERT": "BERT", "XLM-RoBERTa-XL": "XLM-RoBERTa"}.get(encoder_model, encoder_model)
    state = tiny._encoder_state({"encoder_model": known}, random)
    state["embeddings.position_embeddings.weight"] = tiny._normal(random, (POSITIONS, UNITS), 0.5)
    if encoder_model == "XLM-RoBERTa-XL":
        moved = {}
        for key, value in state.items():
            if key.startswith("embeddings.LayerNorm"):
                key = key.replace("embeddings.LayerNorm", "encoder.LayerNorm")
            key = key.replace("attention.output.LayerNorm", "attention.self_attn_layer_norm")
            key = key.replace(".output.LayerNorm", ".LayerNorm")
            moved[key] = value
        return moved
    if encoder_model == "RemBERT":
        for name in ("word", "position", "token_type"):
            key = f"embeddings.{name}_embeddings.weight"
            state[key] = state[key][:, :16].clone()
        for kind in ("weight", "bias"):
            state[f"embeddings.LayerNorm.{kind}"] = state[f"embeddings.LayerNorm.{kind}"][:16].clone()
        state["encoder.embedding_hidden_mapping_in.weight"] = tiny._normal(random, (UNITS, 16), 0.3)
        state["encoder.embedding_hidden_mapping_in.bias"] = tiny._normal(random, (UNITS,), 0.1)
        state["pooler.dense.weight"] = tiny._normal(random, (UNITS, UNITS), 0.2)  # there, and never read
        state["pooler.dense.bias"] = tiny._normal(random, (UNITS,), 0.2)
    return state


def _make_encoder(folder: Path, encoder_model: str) -> None:
    tiny._make_encoder(folder, encoder_model if encoder_model in ("BERT", "MiniLM") else "XLM-RoBERTa")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = POSITIONS
    if encoder_model == "XLM-RoBERTa-XL":
        config |= {"model_type": "xlm-roberta-xl", "architectures": ["XLMRobertaXLModel"]}
    elif encoder_model == "RemBERT":
        config |= {"model_type": "rembert", "architectures": ["RemBertModel"], "pad_token_id": 0, "type_vocab_size": 2}
        config |= {"input_embedding_size": 16, "output_embedding_size": 16, "layer_norm_eps": 1e-12}
        _rembert_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _rembert_tokenizer(folder: Path) -> None:
    """XLM-R's tiny tokenizer with RemBERT's special tokens instead."""
    made = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    names = {"<s>": "[CLS]", "<pad>": "<pad>", "</s>": "[SEP]", "<unk>": "<unk>", "<mask>": "[MASK]"}
    order = ["<pad>", "<s>", "</s>", "<unk>"]  # RemBERT pads with 0
    vocabulary = made["model"]["vocab"]
    rest = [entry for entry in vocabulary if entry[0] not in names]
    made["model"]["vocab"] = [[names[token], 0.0] for token in order] + rest + [["[MASK]", 0.0]]
    numbers = {entry[0]: number for number, entry in enumerate(made["model"]["vocab"])}
    for token in made["added_tokens"]:
        token["content"] = names[token["content"]]
        token["id"] = numbers[token["content"]]
    made["added_tokens"].sort(key=lambda token: token["id"])
    made["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [_special("[CLS]"), _text("A"), _special("[SEP]")],
        "pair": [_special("[CLS]"), _text("A"), _special("[SEP]"), _text("B"), _special("[SEP]")],
        "special_tokens": {
            token: {"id": token, "ids": [numbers[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    config = {"bos_token": "[CLS]", "eos_token": "[SEP]", "sep_token": "[SEP]", "cls_token": "[CLS]"}
    config |= {
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "[MASK]",
        "tokenizer_class": "RemBertTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _text(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}


D_MODEL, D_KV, HEADS, D_FF, MT5_LAYERS, MT5_VOCABULARY = 8, 4, 2, 12, 2, 250112


def make_metricx(folder: Path, name: str, *, safetensors: bool = True) -> Path:
    """Write a tiny mT5 as MetricX's repositories have it, with mT5's vocabulary size, under `folder`."""
    from safetensors.torch import save_file

    random = np.random.Generator(np.random.Philox(sum(name.encode())))
    where, inner = folder / name, HEADS * D_KV
    where.mkdir(parents=True)
    state = {key: tiny._normal(random, (MT5_VOCABULARY, D_MODEL), 1.0) for key in ("shared.weight", "lm_head.weight")}
    # Scores from 0 to 25, few of them cut: the decoder's first token is large, and the scored row leans towards it.
    state["shared.weight"][0] *= 3.0
    state["lm_head.weight"][250089] += 0.4 * state["shared.weight"][0]
    for side in ("encoder", "decoder"):
        state[f"{side}.final_layer_norm.weight"] = 1 + tiny._normal(random, (D_MODEL,), 0.1)
        bias = tiny._normal(random, (32, HEADS), 1.0)
        state[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = bias
        kinds = ["SelfAttention", *(["EncDecAttention"] if side == "decoder" else []), "DenseReluDense"]
        for block, (index, kind) in itertools.product(range(MT5_LAYERS), enumerate(kinds)):
            base = f"{side}.block.{block}.layer.{index}."
            state[f"{base}layer_norm.weight"] = 1 + tiny._normal(random, (D_MODEL,), 0.1)
            shapes = dict.fromkeys("qkv", (inner, D_MODEL)) | {"o": (D_MODEL, inner)}
            if kind == "DenseReluDense":
                shapes = {"wi_0": (D_FF, D_MODEL), "wi_1": (D_FF, D_MODEL), "wo": (D_MODEL, D_FF)}
            for part, shape in shapes.items():
                state[f"{base}{kind}.{part}.weight"] = tiny._normal(random, shape, 1.2 / shape[1] ** 0.5)
    config = {
        "model_type": "mt5",
        "architectures": ["MT5ForRegression"],
        "d_model": D_MODEL,
        "d_kv": D_KV,
        "d_ff": D_FF,
        "num_heads": HEADS,
        "num_layers": MT5_LAYERS,
        "num_decoder_layers": MT5_LAYERS,
        "vocab_size": MT5_VOCABULARY,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    (where / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if safetensors:
        save_file(state, str(where / "model.safetensors"), metadata={"format": "pt"})
    else:
        torch.save(state, where / "pytorch_model.bin")
    _t5_tokenizer(where, splits="spaces" not in name)
    return where


def _t5_tokenizer(folder: Path, *, splits: bool) -> None:
    """A unigram model with T5's special tokens in their places, and as many pieces as mT5's has.

    One that does not split at spaces has pieces that cross them: no string can then be tokenised on its own.
    """
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    specials = ["<pad>", "</s>", "<unk>"]
    pieces = ["▁the", "▁a", "▁word", "ing", "ch", "er", "▁horse", "▁", "▁source", "▁candidate", "▁reference"]
    pieces += [chr(code) for code in range(33, 127)] + list("äöüßışğç")
    vocabulary = [(token, 0.0) for token in specials]
    vocabulary += [(piece, -2.0 - len(piece) * 0.01 * (position % 7)) for position, piece in enumerate(pieces)]
    if not splits:
        vocabulary += [("d▁reference", -0.5), (".▁reference", -0.5), (".▁candidate:▁", -0.5)]
    vocabulary += [(f"\ue000{number}", -20.0) for number in range(MT5_VOCABULARY // 2 + 64 - len(vocabulary))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.normalizer = normalizers.NFKC()
    space = pre_tokenizers.Metaspace(prepend_scheme="always", split=splits)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space]) if splits else space
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "extra_ids": 0}
    config |= {"tokenizer_class": "T5Tokenizer", "additional_special_tokens": [], "model_max_length": 100_000}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
