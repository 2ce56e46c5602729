"""mbrace's own BERTScore against `bert-score`: its scores with tiny encoders are in oracle/scores_encoders.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_encoders
import torch

import mbrace
from mbrace.neural import bertscore
from mbrace.neural.bertscore import BERTScore, known_layer
from mbrace.utility import Ask, Sentence

ORACLE = Path(__file__).parent / "oracle"

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SCORES = json.loads((ORACLE / "scores_encoders.json").read_text())
HYPOTHESES, REFERENCES, LAYER = tiny_encoders.HYPOTHESES, tiny_encoders.REFERENCES, tiny_encoders.LAYER
OPTIONS: dict[str, dict[str, Any]] = {"plain": {}, "idf": {"idf": tiny_encoders.TEXTS}}


@pytest.mark.parametrize("measure", ["precision", "recall", "f1"])
@pytest.mark.parametrize("name", ["plain", "idf"])
@pytest.mark.parametrize("kind", tiny_encoders.KINDS)
def test_scores_are_the_original_packages(kind: str, name: str, measure: str, tmp_path: Path) -> None:
    made = tiny_encoders.make(tmp_path, kind)
    score = BERTScore(made, layer=LAYER, measure=measure, device="cpu", **OPTIONS[name])
    want = SCORES["bertscore"][f"{kind} {name}"][measure]
    np.testing.assert_allclose(score.pairs(HYPOTHESES, REFERENCES), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("name", ["plain", "idf"])
@pytest.mark.parametrize("kind", tiny_encoders.KINDS)
def test_a_race_scores_as_the_original_package(kind: str, name: str, device: str, tmp_path: Path) -> None:
    made = tiny_encoders.make(tmp_path, kind)
    score = BERTScore(made, layer=LAYER, device=device, dtype="float32", **OPTIONS[name])
    scorer = score.start([Sentence(0, None, HYPOTHESES), Sentence(1, None, REFERENCES)])
    everything = np.arange(len(HYPOTHESES))
    tables = scorer.score([Ask(0, everything, REFERENCES), Ask(1, everything[1:3], HYPOTHESES)])
    tolerance = 1e-5 if device == "cpu" else 1e-4
    want = SCORES["bertscore"][f"{kind} {name}"]["f1"]
    np.testing.assert_allclose(tables[0].diagonal(), want, atol=tolerance, rtol=0)
    other = [[score.pairs([hypothesis], [reference])[0] for reference in HYPOTHESES] for hypothesis in REFERENCES[1:3]]
    np.testing.assert_allclose(tables[1], other, atol=tolerance, rtol=0)
    assert score.encoder.stream.strings == len({*HYPOTHESES, *REFERENCES}) + 2 * 2 * len(
        HYPOTHESES
    )  # the last line's too


def test_bits_do_not_depend_on_what_else_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any window, step, batch and block of the matching a pair has the same score."""
    made = tiny_encoders.make(tmp_path, "xlmr")
    texts = [" ".join(text.split()[:size]) for text in tiny.REFERENCES + tiny.HYPOTHESES[:-1] for size in (2, 4, 9)]
    texts = list(dict.fromkeys(text[:36] for text in texts if text))
    everything = np.arange(len(texts))
    whole = BERTScore(made, layer=LAYER, device="cpu").start([Sentence(0, None, texts)])
    (table,) = whole.score([Ask(0, everything, texts)])
    monkeypatch.setitem(bertscore.COSINES, "cpu", 500)
    small = BERTScore(made, layer=LAYER, device="cpu", batch_tokens=40).start([Sentence(0, None, texts)] * 2)
    pieces = [small.score([Ask(0, everything[:3], texts[:2]), Ask(1, everything[2:], texts[1:6])])]
    pieces += [small.score([Ask(0, everything[5:6], texts[7:8])]), small.score([Ask(1, everything[:1], texts)])]
    assert np.array_equal(pieces[0][0], table[:3, :2])
    assert np.array_equal(pieces[0][1], table[2:, 1:6])
    assert np.array_equal(pieces[1][0], table[5:6, 7:8])
    assert np.array_equal(pieces[2][0], table[:1])


def test_a_layer_is_the_networks_hidden_state(tmp_path: Path) -> None:
    """The vectors matched are those that transformers gives for that layer, of each token, at length 1."""
    import transformers

    made = tiny_encoders.make(tmp_path, "bert")
    score = BERTScore(made, layer=1, device="cpu")
    (ids,) = score.encoder.tokenize(["the cat sat"])
    ((_, (_, vectors, _)),) = score.encoder.batches(["the cat sat"])
    model = transformers.AutoModel.from_pretrained(made).eval()
    states = model(input_ids=torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states[1][0]
    np.testing.assert_allclose(vectors, (states / states.norm(dim=1, keepdim=True)).detach(), atol=1e-6)


@pytest.mark.filterwarnings("ignore:text over the metric")
def test_padded_batches_give_the_same_token_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU may have them: strings of several lengths in a batch, with the padding's vectors left out."""
    monkeypatch.setattr("mbrace.neural.encoder.packed_network", lambda model: None)
    made = tiny_encoders.make(tmp_path, "xlmr")
    texts = [" ".join(["the cat sat on a mat"] * times) for times in range(1, 5)] + ["the cat", "a", "mat"]

    def rows(*, pads: bool) -> tuple[list[torch.Tensor], int]:
        encoder = BERTScore(made, layer=LAYER, device="cpu", batch_tokens=100).encoder
        encoder.stream.pads = pads
        vectors, batches = [torch.empty(0)] * len(texts), 0
        for indices, (lengths, found, _) in encoder.batches(texts):
            for index, part in zip(indices.tolist(), found.split(lengths.tolist()), strict=True):
                vectors[index] = part
            batches += 1
        return vectors, batches

    vectors, batches = rows(pads=False)
    padded, fewer = rows(pads=True)
    assert fewer < batches
    for plain, other in zip(vectors, padded, strict=True):
        np.testing.assert_allclose(plain, other, atol=1e-5)


def test_a_race_decodes_with_bertscore(tmp_path: Path) -> None:
    utility = mbrace.BERTScore(tiny_encoders.make(tmp_path, "bert"), layer=LAYER, device="cpu")
    assert isinstance(utility, mbrace.Utility)
    answer = mbrace.decode(HYPOTHESES, REFERENCES, utility=utility, prune=None, schedule=[6])
    means = [np.mean(utility.pairs([hypothesis] * 6, REFERENCES)) for hypothesis in HYPOTHESES]
    assert answer.text == HYPOTHESES[int(np.argmax(means))]
    assert utility.name == "bertscore|bert|layer:2|measure:f1|idf:no|rescaled:no|encoder:float32"


def test_layers_of_well_known_encoders_are_the_originals(tmp_path: Path) -> None:
    assert [known_layer(name) for name in ("roberta-large", "FacebookAI/roberta-large", "mine")] == [17, 17, None]
    made = tiny_encoders.make(tmp_path, "bert")
    with pytest.raises(mbrace.UserError, match="bert-score has chosen no layer for it; give one, such as layer=9"):
        BERTScore(made, device="cpu")
    with pytest.raises(mbrace.UserError, match=r"layer 4: .*bert has 3; give a number from 0 to 3"):
        BERTScore(made, layer=4, device="cpu")


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    made = tiny_encoders.make(tmp_path, "bert")
    with pytest.raises(mbrace.UserError, match="idf: has no text"):
        BERTScore(made, layer=1, idf=[], device="cpu")
    with pytest.raises(mbrace.UserError, match=r"texts.txt: cannot be read as text"):
        BERTScore(made, layer=1, idf=tmp_path / "texts.txt", device="cpu")
    state = made / "model.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(mbrace.UserError, match="bert: cannot be read as a transformer"):
        BERTScore(made, layer=1, device="cpu")


def test_idf_from_a_file_is_that_of_its_lines(tmp_path: Path) -> None:
    made = tiny_encoders.make(tmp_path, "bert")
    (tmp_path / "texts.txt").write_text("\n".join(tiny_encoders.TEXTS) + "\n")
    found = BERTScore(made, layer=LAYER, idf=tmp_path / "texts.txt", device="cpu").pairs(HYPOTHESES, REFERENCES)
    np.testing.assert_allclose(found, SCORES["bertscore"]["bert idf"]["f1"], atol=1e-5, rtol=0)
