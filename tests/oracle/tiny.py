"""Tiny random checkpoints in exactly COMET's layout, the same bytes on every machine.

Used by the tests with mbrace's loader and by `oracle.py` with the `unbabel-comet` package, so it needs only numpy,
torch and tokenizers. Weights come from numpy's Philox generator, not from torch, whose random numbers may change.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Short texts in several scripts, an empty one, repeated words, a literal special token, and one over the length limit.
HYPOTHESES = [
    "A man rides a horse on the beach.",
    "The cat sat on the mat",
    "",
    "Der Hund läuft schnell durch den Wald.",
    "word word word word word word word",
    'He said: "don\'t <pad> go there" (2023)!',
    "Bir adam sahilde ata biniyor.",
    " ".join(f"token{number}" for number in range(60)),
]
REFERENCES = [
    "A person is riding a horse along the shore.",
    "the cat is sitting on a mat.",
    "Something was said.",
    "The dog runs quickly through the forest.",
    "word",
    "He said not to go there.",
    "A man rides a horse on the beach.",
    "one two three four five six seven",
]
SOURCES = [
    "Ein Mann reitet am Strand.",
    "Die Katze saß auf der Matte",
    "Etwas wurde gesagt.",
    "The dog runs fast.",
    "Wort Wort Wort",
    "Er sagte: geh nicht dorthin.",
    "Ein Mann reitet.",
    "eins zwei drei",
]

XLMR = {"encoder_model": "XLM-RoBERTa", "pretrained_model": "tiny-xlmr"}
BERT = {"encoder_model": "BERT", "pretrained_model": "tiny-bert"}
MINILM = {"encoder_model": "MiniLM", "pretrained_model": "tiny-minilm"}
SPARSE = {"layer_transformation": "sparsemax", "layer_norm": False}

VARIANTS: dict[str, dict[str, Any]] = {
    "xlmr-sparsemax": {**XLMR, **SPARSE},  # as Unbabel/wmt22-comet-da
    "xlmr-sparsemax-patch": {**XLMR, "layer_transformation": "sparsemax_patch", "layer_norm": False},
    "xlmr-sparsemax-patch-stated": {**XLMR, **SPARSE, "stated": {"layer_transformation": "sparsemax_patch"}},
    "xlmr-softmax-norm": {**XLMR, "layer_transformation": "softmax", "layer_norm": True},
    "xlmr-max": {**XLMR, **SPARSE, "pool": "max"},
    "xlmr-max-norm": {**XLMR, "layer_norm": True, "pool": "max"},
    "xlmr-cls-norm": {**XLMR, "layer_norm": True, "pool": "cls"},
    "xlmr-layer-2": {**XLMR, "layer": 2},
    "xlmr-default-pool": {**XLMR, **SPARSE, "pool": "default"},
    "xlmr-one-hidden-sigmoid": {**XLMR, **SPARSE, "hidden_sizes": [24], "activations": "Sigmoid"},
    "xlmr-three-hidden-final": {**XLMR, **SPARSE, "hidden_sizes": [32, 20, 12], "final_activation": "Sigmoid"},
    "bert-softmax-norm": {**BERT, "layer_transformation": "softmax", "layer_norm": True},
    "bert-cls": {**BERT, **SPARSE, "pool": "cls"},
    "minilm-sparsemax": {**MINILM, **SPARSE},
    "xlmr-no-source": {**XLMR, **SPARSE, "features": 4},
}

UNITS, LAYERS, POSITIONS, VOCABULARY = 24, 3, 40, 160


def make(folder: Path, name: str) -> Path:
    """Write variant `name` and the encoder folder it refers to under `folder`; returns the checkpoint's folder."""
    settings = dict(VARIANTS[name])
    features, stated = settings.pop("features", 6), settings.pop("stated", {})  # stated in hparams.yaml alone
    encoder = folder / name / settings["pretrained_model"]
    _make_encoder(encoder, settings["encoder_model"])
    random = np.random.Generator(np.random.Philox(sum(name.encode())))
    state = {f"encoder.model.{key}": value for key, value in _encoder_state(settings, random).items()}
    if settings.get("layer", "mix") == "mix":
        for layer in range(LAYERS + 1):
            state[f"layerwise_attention.scalar_parameters.{layer}"] = _normal(random, (1,), 0.4)
        state["layerwise_attention.gamma"] = torch.tensor([1.3])
    sizes = [features * UNITS, *settings.get("hidden_sizes", [40, 16]), 1]
    for position, (width, size) in enumerate(itertools.pairwise(sizes)):
        state[f"estimator.ff.{3 * position}.weight"] = _normal(random, (size, width), 1.5 / width**0.5)
        state[f"estimator.ff.{3 * position}.bias"] = _normal(random, (size,), 0.1)
    settings = {
        "pool": "avg",
        "layer": "mix",
        "hidden_sizes": [40, 16],
        "activations": "Tanh",
        "dropout": 0.0,
        **settings,
    }
    write(folder / name, settings, state, stated)
    return folder / name


def make_pretrained(folder: Path, encoder_model: str = "BERT") -> Path:
    """Write a pretrained encoder as transformers has it, weights included, under `folder`; returns its folder."""
    from safetensors.torch import save_file

    _make_encoder(folder, encoder_model)
    state = _encoder_state({"encoder_model": encoder_model}, np.random.Generator(np.random.Philox(0)))
    save_file(state, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def write(
    folder: Path, settings: dict[str, Any], state: dict[str, torch.Tensor], stated: dict[str, Any] | None = None
) -> None:
    """COMET's layout: hparams.yaml (JSON is YAML), where it may state other settings, and checkpoints/model.ckpt."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    settings = {"class_identifier": "regression_metric", **settings}
    (folder / "hparams.yaml").write_text(json.dumps({**settings, **(stated or {})}, indent=1), encoding="utf-8")
    inside = {key: value for key, value in settings.items() if key != "class_identifier"}
    saved = {"state_dict": state, "hyper_parameters": inside, "pytorch-lightning_version": "2.6.6"}
    torch.save(saved, folder / "checkpoints" / "model.ckpt")


def edit(folder: Path, **changes: Any) -> None:
    """Change settings and weights of a checkpoint in place; None removes a weight."""
    saved = torch.load(folder / "checkpoints" / "model.ckpt", weights_only=True)
    stated = json.loads((folder / "hparams.yaml").read_text(encoding="utf-8"))
    settings = {**stated, **saved["hyper_parameters"], **changes.pop("settings", {})}
    state = {key: value for key, value in {**saved["state_dict"], **changes}.items() if value is not None}
    write(folder, settings, state)


def _normal(random: np.random.Generator, shape: tuple[int, ...], scale: float) -> torch.Tensor:
    return torch.from_numpy((random.standard_normal(shape) * scale).astype(np.float32))


def _encoder_state(settings: dict[str, Any], random: np.random.Generator) -> dict[str, torch.Tensor]:
    """Weights under BERT's names, which XLM-R shares; large enough that every layer matters."""
    state = {
        "embeddings.word_embeddings.weight": _normal(random, (VOCABULARY, UNITS), 1.0),
        "embeddings.position_embeddings.weight": _normal(random, (POSITIONS, UNITS), 0.5),
        "embeddings.token_type_embeddings.weight": _normal(random, (_types(settings["encoder_model"]), UNITS), 0.5),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        base = f"encoder.layer.{layer}."
        shapes = {f"attention.self.{part}": (UNITS, UNITS) for part in ("query", "key", "value")}
        shapes |= {"attention.output.dense": (UNITS, UNITS)}
        shapes |= {"intermediate.dense": (2 * UNITS, UNITS), "output.dense": (UNITS, 2 * UNITS)}
        for key, shape in shapes.items():
            state[f"{base}{key}.weight"] = _normal(random, shape, 1.2 / shape[1] ** 0.5)
            state[f"{base}{key}.bias"] = _normal(random, shape[:1], 0.1)
        norms += [base + "attention.output.LayerNorm", base + "output.LayerNorm"]
    if settings["encoder_model"] == "MiniLM":  # the original keeps the pooler there, and never reads it
        state["pooler.dense.weight"] = _normal(random, (UNITS, UNITS), 0.2)
        state["pooler.dense.bias"] = _normal(random, (UNITS,), 0.2)
    for norm in norms:
        state[f"{norm}.weight"] = 1 + _normal(random, (UNITS,), 0.1)
        state[f"{norm}.bias"] = _normal(random, (UNITS,), 0.1)
    return state


def _types(encoder_model: str) -> int:
    return 1 if encoder_model == "XLM-RoBERTa" else 2


def _make_encoder(folder: Path, encoder_model: str) -> None:
    """A configuration and a tokenizer of our own making, in the files that the real encoders have."""
    folder.mkdir(parents=True, exist_ok=True)
    roberta = encoder_model == "XLM-RoBERTa"
    config = {
        "model_type": "xlm-roberta" if roberta else "bert",
        "architectures": ["XLMRobertaModel" if roberta else "BertModel"],
        "vocab_size": VOCABULARY,
        "hidden_size": UNITS,
        "intermediate_size": 2 * UNITS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 3,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": _types(encoder_model),
        "pad_token_id": 1 if roberta else 0,
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if encoder_model == "BERT":
        _bert_tokenizer(folder)
    else:
        _xlmr_tokenizer(folder)


def _xlmr_tokenizer(folder: Path) -> None:
    """A unigram model over characters and a few pieces, with XLM-R's special tokens in XLM-R's places."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = ["▁the", "▁a", "▁word", "ing", "ch", "er", "▁horse", "▁"]
    pieces += [chr(code) for code in range(33, 127)] + list("äöüßışğç")
    vocabulary = [(token, 0.0) for token in specials]
    vocabulary += [(piece, -2.0 - len(piece) * 0.01 * (position % 7)) for position, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram([*vocabulary, ("<mask>", 0.0)], unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    around = ("<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)])
    tokenizer.post_processor = processors.TemplateProcessing(*around)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in [*specials, "<mask>"]])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>"}
    config |= {"pad_token": "<pad>", "mask_token": "<mask>", "tokenizer_class": "XLMRobertaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _bert_tokenizer(folder: Path) -> None:
    """A word-piece vocabulary of letters, which BERT's tokenizer reads from vocab.txt."""
    letters = [chr(code) for code in range(97, 123)] + list("0123456789")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    pieces += ["the", "a", "horse", "cat", "word", "##ing", *".,:;!?()\"'"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    config = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
