"""mbrace's own BLEURT against `bleurt-pytorch`: its scores of tiny checkpoints are in oracle/scores_encoders.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_bleurt as tiny
import torch

import mbrace
from mbrace.cross.bleurt import BLEURT, cut
from mbrace.utility import Ask, Sentence

ORACLE = Path(__file__).parent / "oracle"

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SCORES = json.loads((ORACLE / "scores_encoders.json").read_text())


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_scores_are_the_original_packages(variant: str, tmp_path: Path) -> None:
    found = BLEURT(tiny.make(tmp_path, variant), device="cpu").pairs(tiny.HYPOTHESES, tiny.REFERENCES)
    np.testing.assert_allclose(found, SCORES["bleurt"][variant], atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_a_race_scores_as_the_original_package(variant: str, device: str, tmp_path: Path) -> None:
    bleurt = BLEURT(tiny.make(tmp_path, variant), device=device, dtype="float32")
    scorer = bleurt.start([Sentence(0, None, tiny.HYPOTHESES), Sentence(1, None, tiny.HYPOTHESES[::-1])])
    everything = np.arange(len(tiny.HYPOTHESES))
    tables = scorer.score([Ask(0, everything, tiny.REFERENCES), Ask(1, everything[1:3], tiny.REFERENCES)])
    assert [table.shape for table in tables] == [(9, 9), (2, 9)]
    tolerance = 1e-5 if device == "cpu" else 1e-4
    np.testing.assert_allclose(tables[0].diagonal(), SCORES["bleurt"][variant], atol=tolerance, rtol=0)
    np.testing.assert_allclose(tables[1], tables[0][[7, 6]], atol=tolerance, rtol=0)


def test_a_pairs_score_does_not_depend_on_its_batch(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, "bleurt-20")
    whole = BLEURT(made, device="cpu").pairs(tiny.HYPOTHESES, tiny.REFERENCES)
    small = BLEURT(made, device="cpu", batch_tokens=1)
    alone = [small.pairs([h], [r])[0] for h, r in zip(tiny.HYPOTHESES, tiny.REFERENCES, strict=True)]
    assert whole.tolist() == alone


def test_a_pair_over_the_limit_is_cut_as_bleurt_cuts_it(tmp_path: Path) -> None:
    """Google's own rule: drop the last token of the longer side, of the second where both are as long."""

    def popped(first: list[int], second: list[int], room: int) -> tuple[int, int]:
        while len(first) + len(second) > room:
            (first if len(first) > len(second) else second).pop()
        return len(first), len(second)

    first, second = (sides.ravel() for sides in np.mgrid[:9, :9])
    for room in range(18):
        expected = [popped([0] * a, [0] * b, room) for a, b in zip(first, second, strict=True)]
        assert list(zip(*cut(first, second, room), strict=True)) == expected
    made = tiny.make(tmp_path, "bleurt-base")
    bleurt, word = BLEURT(made, device="cpu"), "word "
    with pytest.warns(UserWarning, match="limit of 128 tokens"):
        long = bleurt.pairs([word * 200], [word * 80])
    assert bleurt.truncated == 1
    assert long == bleurt.pairs([word * 62], [word * 63])
    assert bleurt.truncated == 1


def damaged(change: Callable[[dict[str, torch.Tensor]], object], folder: Path) -> Path:
    made = tiny.make(folder, "bleurt-20")
    state = torch.load(made / "pytorch_model.bin", weights_only=True)
    change(state)
    torch.save(state, made / "pytorch_model.bin")
    return made


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    pooler = "bleurt.pooler.dense.weight"
    with pytest.raises(mbrace.UserError, match=r"pytorch_model.bin: 1 missing weights .bleurt.pooler.dense.weight."):
        BLEURT(damaged(lambda state: state.pop(pooler), tmp_path / "a"), device="cpu")
    with pytest.raises(mbrace.UserError, match=r"1 unexpected weights .more."):
        BLEURT(damaged(lambda state: state.update(more=torch.zeros(1)), tmp_path / "b"), device="cpu")
    with pytest.raises(mbrace.UserError, match=r"classifier.weight has shape .2, 24., not .1, 24."):
        BLEURT(damaged(lambda state: state.update({"classifier.weight": torch.zeros(2, 24)}), tmp_path / "c"))
    with pytest.raises(mbrace.UserError, match=r"classifier.bias holds nan"):
        BLEURT(damaged(lambda state: state["classifier.bias"].fill_(torch.nan), tmp_path / "d"), device="cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "rembert"}, r"config.json: model_type 'rembert' is not supported as BLEURT"),
        ({"num_attention_heads": 5}, r"num_attention_heads 5: must divide hidden_size 24"),
        ({"hidden_size": "wide"}, r"hidden_size 'wide': must be a whole number, 1 or more"),
        ({"hidden_act": "os.system"}, r"hidden_act 'os.system': transformers has no activation"),
        ({"vocab_size": 400}, r"spm.model: has 114 tokens, and vocab_size in config.json is 400"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(settings: dict[str, object], message: str, tmp_path: Path) -> None:
    made = tiny.make(tmp_path, "bleurt-20")
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(mbrace.UserError, match=message):
        BLEURT(made, device="cpu")


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    made = tiny.make(tmp_path / "a", "bleurt-20")
    (made / "spm.model").write_bytes(b"no model")
    with pytest.raises(mbrace.UserError, match=r"spm.model: cannot be read as a sentencepiece model"):
        BLEURT(made, device="cpu")
    (made / "spm.model").unlink()
    with pytest.raises(mbrace.UserError, match=r"bleurt-20: has no tokenizer .tokenizer.json, vocab.txt, spm.model"):
        BLEURT(made, device="cpu")
    made = tiny.make(tmp_path / "b", "bleurt-20")
    (made / "pytorch_model.bin").write_bytes(b"no weights")
    with pytest.raises(mbrace.UserError, match=r"pytorch_model.bin: cannot be read as weights"):
        BLEURT(made, device="cpu")
    (made / "pytorch_model.bin").unlink()
    with pytest.raises(mbrace.UserError, match=r"bleurt-20: has no weights .model.safetensors, pytorch_model.bin"):
        BLEURT(made, device="cpu")
    (made / "config.json").unlink()
    with pytest.raises(mbrace.UserError, match=r"bleurt-20: has no config.json"):
        BLEURT(made, device="cpu")
