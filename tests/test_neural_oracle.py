"""mbrace's own COMET against the `unbabel-comet` package: its scores of tiny checkpoints are in oracle/scores.json."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from mbrace.neural.comet import Comet
from mbrace.utility import Ask, Sentence

ORACLE = Path(__file__).parent / "oracle"

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SCORES = json.loads((ORACLE / "scores.json").read_text())


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_scores_are_the_original_packages(variant: str, tmp_path: Path) -> None:
    comet = Comet(tiny.make(tmp_path, variant), device="cpu")
    found = comet.pairs(tiny.HYPOTHESES, tiny.REFERENCES, tiny.SOURCES)
    np.testing.assert_allclose(found, SCORES[variant], atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_a_race_scores_as_the_original_package(variant: str, device: str, tmp_path: Path) -> None:
    """The way of a race: hypotheses prepared, parts of the head shared, sentences together, on a GPU its kernels."""
    comet = Comet(tiny.make(tmp_path, variant), device=device, dtype="float32")
    texts = list(dict.fromkeys([*tiny.HYPOTHESES, *tiny.REFERENCES]))
    scorer = comet.start([Sentence(number, source, texts) for number, source in enumerate(tiny.SOURCES)])
    asks = [Ask(number, np.arange(len(texts)), texts) for number in range(len(tiny.SOURCES))]
    pairs = zip(tiny.HYPOTHESES, tiny.REFERENCES, strict=True)
    places = [(texts.index(hypothesis), texts.index(reference)) for hypothesis, reference in pairs]
    found = [table[place] for table, place in zip(scorer.score(asks), places, strict=True)]
    np.testing.assert_allclose(found, SCORES[variant], atol=1e-5 if device == "cpu" else 1e-4, rtol=0)


def test_the_scores_are_of_the_version_we_name() -> None:
    assert SCORES["unbabel-comet"] == "2.2.7"
