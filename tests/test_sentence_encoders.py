"""Last-token pooling and Dense modules against `sentence-transformers` (oracle/scores_encoders.json)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_encoders
import torch
from safetensors.torch import load_file, save_file

import mbrace
from mbrace.neural.embedding import Embedding

ORACLE = Path(__file__).parent / "oracle"

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another
SCORES = json.loads((ORACLE / "scores_encoders.json").read_text())


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
    with pytest.raises(mbrace.UserError, match=r"2_Dense/config.json: missing"):
        Embedding(made, device="cpu")
