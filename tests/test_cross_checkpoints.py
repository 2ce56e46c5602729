"""Cross-encoders: checkpoints and settings that cannot be served, and names."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mbrace
from mbrace.cross.metricx import MetricX
from mbrace.cross.xcomet import XCOMET
from mbrace.neural.comet import Referenceless

sys.path.insert(0, str(Path(__file__).parent / "oracle"))
import tiny
import tiny_cross

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cross")


@pytest.fixture(scope="module")
def xcomet(folder: Path) -> XCOMET:
    return XCOMET(tiny_cross.make(folder, "xcomet-xl"), device="cpu")


@pytest.fixture(scope="module")
def metricx_folder(folder: Path) -> Path:
    return tiny_cross.make_metricx(folder, "metricx-24")


@pytest.fixture(scope="module")
def metricx(metricx_folder: Path) -> MetricX:
    return MetricX(metricx_folder, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"settings": {"class_identifier": "regression_metric"}},
            "embeds each text on its own; give it to mbrace.Comet",
        ),
        ({"settings": {"class_identifier": "ranking_metric"}}, "ranking_metric is not supported"),
        ({"settings": {"class_identifier": "other"}}, "other is not known; give a unified_metric or xcomet_metric"),
        ({"settings": {"class_identifier": "unified_metric", "input_segments": ["mt"]}}, "has neither src nor ref"),
        ({"settings": {"class_identifier": "unified_metric", "input_segments": ["a"]}}, "input_segments .'a'.: must"),
        ({"settings": {"error_labels": ["minor"]}}, "error_labels .'minor'.: XCOMET's are"),
        ({"settings": {"word_layer": 9}}, "word_layer 9: give a number from 0 to 3"),
        ({"settings": {"sent_layer": 9}}, "unexpected weights .layerwise_attention.gamma"),
        ({"settings": {"hidden_sizes": [40, 17]}}, "estimator.ff.3.weight has shape"),
        ({"hidden2tag.weight": None}, "1 missing weights .hidden2tag.weight"),
        ({"hidden2tag.bias": torch.zeros(3)}, r"hidden2tag.bias has shape \(3,\), not \(4,\)"),
        ({"hidden2tag.bias": torch.full((4,), float("nan"))}, "hidden2tag.bias holds nan or inf"),
        ({"estimator.ff.0.weight": torch.zeros(40, 48)}, r"estimator.ff.0.weight has shape \(40, 48\), not \(40, 24\)"),
        ({"encoder.model.encoder.LayerNorm.bias": None}, "missing weights .encoder.model.encoder.LayerNorm.bias"),
        ({"decoder.weight": torch.zeros(1)}, "unexpected weights .decoder.weight"),
    ],
)
def test_a_unified_checkpoint_that_cannot_be_served_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = tiny_cross.make(tmp_path, "xcomet-xl")
    tiny.edit(made, **changes)
    with pytest.raises(mbrace.UserError, match=message):
        XCOMET(made, device="cpu")


def test_a_checkpoint_of_another_class_opens_as_that_or_names_it(xcomet: XCOMET, folder: Path, tmp_path: Path) -> None:
    opened = mbrace.Comet(folder / "xcomet-xl", device="cpu")
    assert isinstance(opened, XCOMET)
    assert opened.name == xcomet.name
    assert pickle.loads(pickle.dumps(opened)).name == xcomet.name
    with pytest.raises(mbrace.UserError, match=r"kiwi-xlmr.*unified_metric is not supported.*mbrace.XCOMET"):
        Referenceless(tiny_cross.make(tmp_path, "kiwi-xlmr"), device="cpu")
    with pytest.raises(
        mbrace.UserError, match=r"referenceless_regression_metric is not supported.*mbrace.Referenceless"
    ):
        mbrace.Comet(tiny_cross.make(tmp_path, "referenceless-xlmr"), device="cpu")


def test_a_checkpoint_with_code_is_refused(tmp_path: Path) -> None:
    class Run:
        def __reduce__(self) -> Any:
            return print, ("run",)

    made = tiny_cross.make(tmp_path, "kiwi-xlmr")
    torch.save({"state_dict": {}, "hyper_parameters": {"x": Run()}}, made / "checkpoints" / "model.ckpt")
    with pytest.raises(mbrace.UserError, match="cannot be read as a checkpoint of weights and plain values only"):
        XCOMET(made, device="cpu")
    there = tiny_cross.make_metricx(tmp_path, "metricx-24", safetensors=False)
    torch.save({"shared.weight": Run()}, there / "pytorch_model.bin")
    with pytest.raises(mbrace.UserError, match=r"pytorch_model.bin: cannot be read as weights by name"):
        MetricX(there, device="cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "t5"}, "config.json: model_type 't5': MetricX-23 and -24 are of type mt5"),
        ({"feed_forward_proj": "relu"}, "feed_forward_proj 'relu': mT5's is gated-gelu"),
        ({"vocab_size": 1000}, "vocab_size 1000: MetricX scores with token 250089"),
        ({"d_model": "many"}, "d_model 'many': must be a whole number, 1 or more"),
        ({"num_layers": 3}, "missing weights .encoder.block.2"),
        ({"num_decoder_layers": 1}, "unexpected weights .decoder.block.1"),
        ({"d_ff": 13}, r"DenseReluDense.wi_0.weight has shape \(12, 8\), not \(13, 8\)"),
    ],
)
def test_a_metricx_configuration_that_does_not_fit_is_refused_by_name(
    settings: dict[str, Any], message: str, metricx_folder: Path, tmp_path: Path
) -> None:
    made = tmp_path / "metricx-24"
    made.mkdir()
    for file in metricx_folder.iterdir():
        (made / file.name).symlink_to(file)
    config = json.loads((metricx_folder / "config.json").read_text()) | settings
    (made / "config.json").unlink()
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(mbrace.UserError, match=message):
        MetricX(made, device="cpu")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights .model.safetensors, pytorch_model.bin"),
    ],
)
def test_a_missing_file_of_metricx_is_named(missing: str, message: str, metricx_folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "metricx-24"
    made.mkdir()
    for file in metricx_folder.iterdir():
        if file.name != missing:
            (made / file.name).symlink_to(file)
    with pytest.raises(mbrace.UserError, match=message):
        MetricX(made, device="cpu")


def test_weights_in_several_files_are_read_by_their_index(
    metricx: MetricX, metricx_folder: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    made = tmp_path / "metricx-24"
    made.mkdir()
    for file in metricx_folder.glob("*.json"):
        (made / file.name).symlink_to(file)
    state = load_file(metricx_folder / "model.safetensors")
    parts = {f"pytorch_model-0000{part + 1}-of-00002.bin": dict(list(state.items())[part::2]) for part in (0, 1)}
    for name, part in parts.items():
        torch.save(part, made / name)
    index = {"weight_map": {key: name for name, part in parts.items() for key in part}}
    (made / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    columns = ["a horse"], ["the horse"], ["ein Pferd"]
    np.testing.assert_array_equal(MetricX(made, device="cpu").pairs(*columns), metricx.pairs(*columns))
    (made / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(mbrace.UserError, match=r"00002-of-00002.bin: missing, though the index names it"):
        MetricX(made, device="cpu")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mine", {}, "mine: version: not in the model's name; give version='24'"),
        ("metricx-25", {}, "version 25: is not supported"),
        ("metricx-24", {"version": "22"}, "version 22: is not supported"),
        ("metricx-24", {"qe": True}, "qe: only for version 23"),
        ("metricx-24", {"dtype": "int8"}, "dtype int8: unknown"),
        ("metricx-24", {"batch_tokens": 0}, "batch_tokens 0: must be 1 or more"),
    ],
)
def test_settings_of_metricx_that_cannot_be_served_are_refused(
    name: str, settings: dict[str, Any], message: str, metricx_folder: Path, tmp_path: Path
) -> None:
    made = tmp_path / name
    made.symlink_to(metricx_folder, target_is_directory=True)
    with pytest.raises(mbrace.UserError, match=message):
        MetricX(made, device="cpu", **settings)


def test_names_say_what_a_score_is(xcomet: XCOMET, metricx: MetricX) -> None:
    assert xcomet.name == "xcomet|xcomet-xl|encoder:float32"
    assert metricx.name == "metricx-24|metricx-24|negated|float32"
    assert isinstance(xcomet, mbrace.Utility)
    assert isinstance(metricx, mbrace.QualityUtility)
