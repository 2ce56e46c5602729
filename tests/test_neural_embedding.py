"""Pretrained encoders in folders and on the hub, whole, damaged and of all kinds; `Embedding` over them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import mbrace
from mbrace.neural.comet import Comet
from mbrace.neural.embedding import Embedding

sys.path.insert(0, str(Path(__file__).parent / "oracle"))
import tiny

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another


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
    with pytest.raises(mbrace.UserError, match="its tokenizer"):
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
