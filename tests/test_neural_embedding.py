"""Pretrained encoders in folders and on the hub, whole, damaged and of all kinds; `Embedding` over them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_encoders
import torch
import transformers
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

import mbrace
from mbrace.neural import pretrained
from mbrace.neural.comet import Comet
from mbrace.neural.embedding import Embedding

# Damaged folders


def by_reference(folder: Path) -> Path:
    """A COMET checkpoint that refers to its encoder for weights, as `mbrace train-metric` writes it."""
    made = tiny.make(folder, "bert-cls")
    tiny.make_pretrained(made / "tiny-bert")
    saved = torch.load(made / "checkpoints" / "model.ckpt", weights_only=True)
    state = {key: value for key, value in saved["state_dict"].items() if not key.startswith("encoder.")}
    tiny.write(made, {**saved["hyper_parameters"], "encoder_weights": "reference"}, state)
    return made


def test_an_encoder_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, "bert-cls")
    (made / "tiny-bert" / "vocab.txt").unlink()
    with pytest.raises(mbrace.UserError, match=r"tiny-bert: has no tokenizer .tokenizer.json"):
        Comet(made, device="cpu")
    made = tiny.make_pretrained(tmp_path / "encoder")
    (made / "vocab.txt").unlink()
    with pytest.raises(mbrace.UserError, match=r"encoder: has no tokenizer .tokenizer.json"):
        Embedding(made, device="cpu")


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    made = tiny.make_pretrained(tmp_path / "encoder")
    vocabulary = (made / "vocab.txt").read_text()
    (made / "vocab.txt").write_text("\n".join(vocabulary.splitlines()[:5]) + "\n")
    with pytest.raises(mbrace.UserError, match=r"has 5 tokens, and vocab_size in config.json is 160"):
        Embedding(made, device="cpu")
    (made / "vocab.txt").write_text(vocabulary + "".join(f"more{number}\n" for number in range(100)))
    with pytest.raises(mbrace.UserError, match=r"vocab_size in config.json is 160; give the tokenizer of this encoder"):
        Embedding(made, device="cpu")
    by = by_reference(tmp_path)
    (by / "tiny-bert" / "vocab.txt").rename(by / "tiny-bert" / "spiece.model")  # a file, but not one of this kind
    with pytest.raises(mbrace.UserError, match="tokenizer"):
        Comet(by, device="cpu")


def test_an_encoder_whose_weights_do_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    made = by_reference(tmp_path)
    encoder = made / "tiny-bert"
    whole = load_file(encoder / "model.safetensors")  # without a pooler, which is not read
    assert Comet(made, device="cpu").pairs(["a"], ["b"], ["c"]) == Comet(made, device="cpu").pairs(["a"], ["b"], ["c"])
    norm = "encoder.layer.2.output.LayerNorm.weight"
    for weights, fault in (
        ({key: value for key, value in whole.items() if key != norm}, f"1 missing weights .{norm}"),
        ({**whole, norm: torch.ones(7)}, f"1 misshapen weights .{norm}"),
        ({key: value for key, value in whole.items() if "layer.2." not in key}, "16 missing weights .encoder.layer.2"),
    ):
        save_file(weights, encoder / "model.safetensors", metadata={"format": "pt"})
        for load in (lambda: Comet(made, device="cpu"), lambda: Embedding(encoder, device="cpu")):
            with pytest.raises(mbrace.UserError, match=f"tiny-bert: {fault}"):
                load()


# Folders of sentence-transformers


def sentence_transformers(folder: Path, pooling: str, *, old: bool, limit: int = 12) -> Path:
    """A folder as sentence-transformers saves it: pooling by one name as in 6.2, or by flags as before (`old`)."""
    made = tiny.make_pretrained(folder)
    types = ["models.Transformer", "models.Pooling", "models.Normalize"]
    if not old:
        types = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling"]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{kind}"}
        for number, (path, kind) in enumerate(zip(paths, types, strict=False))
    ]
    flags = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
    stated = {flag: name == pooling for name, flag in flags.items()} if old else {"pooling_mode": pooling}
    (made / "1_Pooling").mkdir()
    write_json(made / "modules.json", modules)
    write_json(made / "1_Pooling" / "config.json", {"word_embedding_dimension": tiny.UNITS, **stated})
    write_json(made / "sentence_bert_config.json", {"max_seq_length": limit} if old else {"modality_config": {}})
    if not old:
        told = json.loads((made / "tokenizer_config.json").read_text())
        write_json(made / "tokenizer_config.json", {**told, "model_max_length": limit})
    return made


def cosines(folder: Path, left: list[str], right: list[str], pooling: str, *, limit: int) -> list[float]:
    """Cosines with transformers' own classes, one text at a time."""
    model = transformers.AutoModel.from_pretrained(str(folder)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    pool = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "max": lambda rows: rows.amax(0)}
    found = []
    with torch.no_grad():
        for pair in zip(left, right, strict=True):
            ids = [tokenizer(text, truncation=True, max_length=limit, return_tensors="pt").input_ids for text in pair]
            sides = [pool[pooling](model(input_ids=each).last_hidden_state[0]) for each in ids]
            found.append(torch.nn.functional.cosine_similarity(*sides, dim=0).item())
    return found


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_pooling_and_limit_are_what_a_sentence_transformers_folder_says(
    pooling: str, old: bool, tmp_path: Path
) -> None:
    made = sentence_transformers(tmp_path / "encoder", pooling, old=old)
    left, right = ["the horse", "cat word " * 20], ["a cat and a horse", "word"]
    embedding = Embedding(made, device="cpu")
    with pytest.warns(UserWarning, match="limit of 12 tokens"):
        found = embedding.pairs(left, right)
    np.testing.assert_allclose(found, cosines(made, left, right, pooling, limit=12), atol=1e-5)
    assert embedding.truncated == 1
    assert f"pooling:{pooling}" in embedding.name


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("1_Pooling/config.json", '{"pooling_mode": "weightedmean"}', "its pooling .weightedmean. is not supported"),
        ("1_Pooling/config.json", '{"pooling_mode": ["mean", "max"]}', "its pooling .mean, max. is not supported"),
        ("1_Pooling/config.json", '{"pooling_mode_mean_tok', "cannot be read as JSON"),
        ("sentence_bert_config.json", '{"max_seq_length": "many"}', "max_seq_length many: must be"),
        ("sentence_bert_config.json", "[", "cannot be read as JSON"),
        ("modules.json", "{}", "must hold a JSON array"),
        ("modules.json", "", "cannot be read as JSON"),
    ],
)
def test_a_broken_file_of_a_sentence_transformers_folder_is_named(
    name: str, text: str, fault: str, tmp_path: Path
) -> None:
    made = sentence_transformers(tmp_path / "encoder", "mean", old=True)
    (made / name).write_text(text)
    with pytest.raises(mbrace.UserError, match=f"{name}: {fault}"):
        Embedding(made, device="cpu")


def test_a_module_of_somebody_else_is_not_taken_for_one_of_sentence_transformers(tmp_path: Path) -> None:
    made = sentence_transformers(tmp_path / "encoder", "mean", old=True)
    write_json(made / "modules.json", [{"path": "", "type": "custom_code.Transformer"}])
    with pytest.raises(mbrace.UserError, match=r"its module custom_code\.Transformer is not supported"):
        Embedding(made, device="cpu")


# Last-token pooling and Dense modules, against sentence-transformers (oracle/scores_encoders.json)

SCORES = json.loads((Path(__file__).parent / "oracle" / "scores_encoders.json").read_text())


@pytest.mark.parametrize("name", tiny_encoders.SENTENCE_ENCODERS)
@pytest.mark.filterwarnings("ignore:text over the metric's limit")
def test_cosines_are_the_original_packages(name: str, tmp_path: Path) -> None:
    made = tiny_encoders.make_sentence_encoder(tmp_path, name)
    found = Embedding(made, device="cpu").pairs(tiny.HYPOTHESES, tiny.REFERENCES)
    np.testing.assert_allclose(found, SCORES["cosine"][name], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"in_features": None}, r"2_Dense/config.json: in_features None: must be a number above 0"),
        ({"out_features": 9}, r"linear.weight has shape .16, 24., not .9, 24."),
        ({"bias": False}, r"1 unexpected weights .linear.bias."),
        (
            {"activation_function": "os.system"},
            r"activation_function os.system: only classes of torch.nn are supported",
        ),
        ({"activation_function": "torch.nn.modules.linear.Linear"}, r"activation Linear: torch.nn has none"),
        ({"use_residual": True}, r"with a residual is not supported"),
        ({"module_input_name": "token_embeddings"}, r"over token vectors or with a residual is not supported"),
    ],
)
def test_a_dense_module_that_cannot_be_served_is_refused(
    settings: dict[str, object], message: str, tmp_path: Path
) -> None:
    made = tiny_encoders.make_sentence_encoder(tmp_path, "labse")
    file = made / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(mbrace.UserError, match=message):
        Embedding(made, device="cpu")


def test_broken_files_of_a_dense_module_are_named(tmp_path: Path) -> None:
    made = tiny_encoders.make_sentence_encoder(tmp_path, "labse")
    weights = made / "2_Dense" / "model.safetensors"
    state = load_file(weights)
    save_file({"linear.weight": state["linear.weight"]}, str(weights))
    with pytest.raises(mbrace.UserError, match=r"2_Dense/model.safetensors: 1 missing weights .linear.bias."):
        Embedding(made, device="cpu")
    weights.unlink()
    with pytest.raises(mbrace.UserError, match=r"2_Dense: has no weights .model.safetensors, pytorch_model.bin."):
        Embedding(made, device="cpu")
    torch.save(state, made / "2_Dense" / "pytorch_model.bin")  # as LaBSE has them
    Embedding(made, device="cpu")
    (made / "2_Dense" / "config.json").unlink()
    with pytest.raises(mbrace.UserError, match=r"2_Dense: has no config\.json"):
        Embedding(made, device="cpu")


# Other networks

SHAPE = {"vocab_size": tiny.VOCABULARY, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "max_position_embeddings": tiny.POSITIONS}


def save(folder: Path, model: Any) -> Path:
    """A network of transformers with XLM-RoBERTa's tokenizer, of which every tokenizer class reads the file."""
    tiny.make_pretrained(folder, "XLM-RoBERTa")
    model.save_pretrained(str(folder))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", {**told, "tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


@pytest.mark.parametrize(
    ("kind", "limit"),
    [("MPNet", 38), ("XLMRobertaXL", 38), ("Roberta", 38), ("Electra", 40), ("Bert", 40)],
)
def test_text_is_cut_where_the_positions_of_a_network_end(kind: str, limit: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SHAPE, pad_token_id=1)
    made = save(tmp_path / "encoder", getattr(transformers, f"{kind}Model")(config))
    left, right = ["the horse", "word cat " * 20], ["a cat", "word horse " * 30]
    with pytest.warns(UserWarning, match=f"limit of {limit} tokens"):
        found = Embedding(made, device="cpu").pairs(left, right)
    np.testing.assert_allclose(found, cosines(made, left, right, "mean", limit=limit), atol=1e-5)


def test_a_network_with_a_decoder_is_refused_by_name(tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=tiny.VOCABULARY, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    made = save(tmp_path / "encoder", transformers.T5Model(config))
    with pytest.raises(mbrace.UserError, match="a t5 network, with a decoder; give an encoder"):
        Embedding(made, device="cpu")


# The hub


def cached(cache: Path, name: str, folder: Path) -> Path:
    """Move a folder into huggingface_hub's cache, laid out as it does: blobs, a snapshot of links, a reference."""
    root = cache / f"models--{name.replace('/', '--')}"
    commit = "0123456789abcdef0123456789abcdef01234567"
    for number, file in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        blob, link = root / "blobs" / f"{number:040x}", root / "snapshots" / commit / file.relative_to(folder)
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    return root / "snapshots" / commit


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub, which may not ask the network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_names_on_the_hub_are_served_from_its_cache(hub: Path, tmp_path: Path) -> None:
    by = by_reference(tmp_path)
    given = {"hypotheses": ["the horse"], "references": ["a cat"], "sources": ["word"]}
    expected = Comet(by, device="cpu").pairs(**given)
    encoder = sentence_transformers(tmp_path / "copy", "max", old=False)
    expected_cosine = Embedding(encoder, device="cpu").pairs(["the horse"], ["a cat"])
    saved = torch.load(by / "checkpoints" / "model.ckpt", weights_only=True)
    tiny.write(by, {**saved["hyper_parameters"], "pretrained_model": "some/encoder"}, saved["state_dict"])
    shutil.rmtree(by / "tiny-bert")
    metric = cached(hub, "some/metric", by)
    snapshot = cached(hub, "some/encoder", encoder)
    comet, embedding = Comet("some/metric", device="cpu"), Embedding("some/encoder", device="cpu")
    assert comet.pairs(**given) == expected
    assert embedding.pairs(["the horse"], ["a cat"]) == expected_cosine
    assert comet.name.startswith("comet|some/metric|")
    assert embedding.name.startswith("cosine|some/encoder|pooling:max|")
    for given_path in (metric, metric / "checkpoints" / "model.ckpt"):  # its links lead to names that say nothing
        assert Comet(given_path, device="cpu").name.startswith(f"comet|{metric.name}|")
    (snapshot / "vocab.txt").unlink()  # a download that was broken off
    with pytest.raises(mbrace.UserError, match="has no tokenizer"):
        Embedding("some/encoder", device="cpu")
    with pytest.raises(mbrace.UserError, match="has no tokenizer"):
        Comet("some/metric", device="cpu")


def test_pickled_weights_are_taken_where_a_repository_has_no_others(hub: Path, tmp_path: Path) -> None:
    made = tiny.make_pretrained(tmp_path / "encoder")
    expected = Embedding(made, device="cpu").pairs(["the horse"], ["a cat"])
    torch.save(load_file(made / "model.safetensors"), made / "pytorch_model.bin")
    (made / "model.safetensors").unlink()
    cached(hub, "some/encoder", made)
    assert Embedding("some/encoder", device="cpu").pairs(["the horse"], ["a cat"]) == expected


def test_a_repository_is_not_fetched_several_times_over() -> None:
    """By huggingface_hub's own filter, from what two repositories of encoders hold."""
    needed = ["config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json", "modules.json"]
    needed += ["sentence_bert_config.json", "special_tokens_map.json", "vocab.txt", "model.safetensors"]
    others = ["README.md", "onnx/model.onnx", "onnx/config.json", "onnx/tokenizer.json", "openvino/openvino_model.bin"]
    others += ["openvino/openvino_model.xml", "pytorch_model.bin", "rust_model.ot", "tf_model.h5", "data_config.json"]
    others += ["flax_model.msgpack", "training_args.bin", "train_script.py"]
    chosen = filter_repo_objects([*needed, *others], allow_patterns=pretrained.LIGHT + pretrained.SAFETENSORS)
    assert set(chosen) == set(needed)
    parts = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"]
    needed = ["config.json", "sentencepiece.bpe.model", *parts]
    chosen = filter_repo_objects(["README.md", *needed], allow_patterns=pretrained.LIGHT + pretrained.PICKLES)
    assert set(chosen) == set(needed)
