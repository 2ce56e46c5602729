"""Neural utilities: checkpoints and settings that are refused by name, and older ones that load."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import mbrace
from mbrace.neural.comet import Comet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("comet"), "xlmr-sparsemax")


@pytest.fixture(scope="module")
def comet(folder: Path) -> Comet:
    return Comet(folder, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"class_identifier": "referenceless_regression_metric"}}, "has no reference"),
        ({"settings": {"class_identifier": "my_metric"}}, "my_metric is not known"),
        ({"settings": {"encoder_model": "T5"}}, "encoder_model T5: not one of"),
        ({"settings": {"activations": "Loud"}}, "activation Loud"),
        ({"settings": {"activations": "Linear"}}, "activation Linear"),
        ({"settings": {"activations": "MultiheadAttention"}}, "activation MultiheadAttention"),
        ({"settings": {"activations": None}}, "activations None: must be a name"),
        ({"settings": {"final_activation": 3}}, "final_activation 3: must be a name or null"),
        ({"settings": {"pretrained_model": None}}, "pretrained_model None: must be a name"),
        ({"settings": {"encoder_model": ["BERT"]}}, "encoder_model .'BERT'.: must be a name"),
        ({"settings": {"class_identifier": ["regression_metric"]}}, "is not known; give a regression_metric"),
        ({"settings": {"hidden_sizes": None}}, "hidden_sizes None: must be a list of numbers"),
        ({"settings": {"hidden_sizes": [40, "16"]}}, "hidden_sizes .40, '16'.: must be a list of numbers"),
        ({"settings": {"hidden_sizes": [40, 17]}}, "estimator.ff.3.weight has shape"),
        ({"settings": {"hidden_sizes": [40]}}, "unexpected weights .estimator.ff.6.bias"),
        ({"settings": {"layer": 9}}, "unexpected weights .layerwise_attention.gamma"),
        ({"encoder.model.encoder.layer.1.output.dense.bias": None}, "1 missing weights"),
        ({"layerwise_attention.gamma": None}, "missing weights .layerwise_attention.gamma"),
        ({"layerwise_attention.gamma": torch.ones(4)}, r"layerwise_attention.gamma has shape \(4,\), not \(1,\)"),
        ({"layerwise_attention.gamma": torch.tensor(1.0)}, r"layerwise_attention.gamma has shape \(\), not \(1,\)"),
        ({"layerwise_attention.scalar_parameters.0": torch.ones(2)}, r"scalar_parameters.0 has shape \(2,\)"),
        ({"layerwise_attention.gamma": torch.tensor([float("nan")])}, "layerwise_attention.gamma holds nan or inf"),
        ({"estimator.ff.6.bias": torch.tensor([float("inf")])}, "estimator.ff.6.bias holds nan or inf"),
        ({"decoder.weight": torch.zeros(1)}, "unexpected weights .decoder.weight"),
    ],
)
def test_a_checkpoint_that_cannot_be_served_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = tiny.make(tmp_path, "xlmr-sparsemax")
    tiny.edit(made, **changes)
    with pytest.raises(mbrace.UserError, match=message):
        Comet(made, device="cpu")


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"state_dict": [1, 2]}, "has no `state_dict` of weights by name"),
        ({"state_dict": {"gamma": "x"}}, "has no `state_dict` of weights by name"),
        ({"state_dict": {7: torch.ones(1)}, "hyper_parameters": {}}, "1 unexpected weights .7."),
        ({"state_dict": {}, "hyper_parameters": [1]}, "its hyper_parameters must be settings by name"),
        ([], "has no `state_dict` of weights by name"),
        (b"", "cannot be read as a checkpoint of weights"),
        (b"PK\x03\x04 and no more", "cannot be read as a checkpoint of weights"),
        (b"text", "cannot be read as a checkpoint of weights"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(saved: Any, message: str, tmp_path: Path) -> None:
    path = tiny.make(tmp_path, "xlmr-sparsemax") / "checkpoints" / "model.ckpt"
    if isinstance(saved, bytes):
        path.write_bytes(saved)
    else:
        torch.save(saved, path)
    with pytest.raises(mbrace.UserError, match=f"model.ckpt: {message}"):
        Comet(path, device="cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "tiny-xlmr: has no config.json; copy or download"),
        ("", "config.json: cannot be read as JSON"),
        ('{"vocab_size": 160', "config.json: cannot be read as JSON"),
        ("[]", "config.json: must hold a JSON object"),
        ('{"hidden_size": "many"}', "config.json: cannot be read as XLMRobertaConfig"),
    ],
)
def test_a_broken_configuration_of_the_encoder_is_named(text: str | None, message: str, tmp_path: Path) -> None:
    made = tiny.make(tmp_path, "xlmr-sparsemax")
    path = made / "tiny-xlmr" / "config.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(mbrace.UserError, match=message):
        Comet(made, device="cpu")


def test_older_files_with_position_numbers_and_a_pooler_load(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, "xlmr-sparsemax")
    before = Comet(made, device="cpu").pairs(["a"], ["b"], ["c"])
    extra = {"encoder.model.embeddings.position_ids": torch.arange(40)[None]}
    tiny.edit(made, **extra, **{"encoder.model.pooler.dense.weight": torch.zeros(24, 24)})
    assert Comet(made, device="cpu").pairs(["a"], ["b"], ["c"]) == before
    path = made / "checkpoints" / "model.ckpt"
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)
    assert Comet(made, device="cpu").pairs(["a"], ["b"], ["c"]) == before


def test_a_checkpoint_finds_its_settings_and_encoder_beside_it(tmp_path: Path, comet: Comet) -> None:
    """Given as a folder or as the file; what lies a folder up belongs to something else."""
    made = tiny.make(tmp_path / "up", "xlmr-sparsemax")
    flat = made / "flat"
    flat.mkdir()
    for name in ("hparams.yaml", "tiny-xlmr", "checkpoints/model.ckpt"):
        (made / name).rename(flat / Path(name).name)
    (made / "hparams.yaml").write_text("class_identifier: unified_metric")
    saved = torch.load(flat / "model.ckpt", weights_only=True)
    torch.save({"state_dict": saved["state_dict"]}, flat / "model.ckpt")  # all settings are in hparams.yaml
    for given in (flat, flat / "model.ckpt"):
        assert Comet(given, device="cpu").pairs(["a"], ["b"], ["c"]) == comet.pairs(["a"], ["b"], ["c"])
    (flat / "hparams.yaml").unlink()
    (made / "hparams.yaml").unlink()
    with pytest.raises(mbrace.UserError, match=r"has no hyper_parameters, and hparams.yaml is neither"):
        Comet(flat, device="cpu")


def test_a_checkpoint_is_found_from_inside_its_folder(
    folder: Path, comet: Comet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "checkpoints")
    assert Comet("model.ckpt", device="cpu").pairs(["a"], ["b"], ["c"]) == comet.pairs(["a"], ["b"], ["c"])


def test_a_checkpoint_with_code_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    torch.save({"state_dict": {}, "hyper_parameters": {"run": Path}}, path)
    with pytest.raises(mbrace.UserError, match="weights and plain values only"):
        Comet(path)


def test_missing_models_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mbrace.UserError, match=r"has no checkpoints/model.ckpt"):
        Comet(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(mbrace.UserError, match="the model hub could not provide it"):
        Comet("Unbabel/wmt22-comet-da")


def test_a_missing_extra_names_the_extra() -> None:
    command = "import sys; sys.modules['torch'] = None; import mbrace; mbrace.Comet('anything')"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert re.search(r"mbrace\.errors\.UserError: .*pip install 'mbrace\[neural\]'", found.stderr)
