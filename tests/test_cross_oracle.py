"""Cross-encoders against their originals: the scores of tiny checkpoints are in oracle/scores_cross.json."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_cross

from mbrace.cross.metricx import MetricX
from mbrace.cross.xcomet import XCOMET
from mbrace.neural.comet import Referenceless
from mbrace.utility import Ask, Sentence

ORACLE = Path(__file__).parent / "oracle"

pytestmark = pytest.mark.filterwarnings("ignore:.*over the metric's limit")
SCORES = json.loads((ORACLE / "scores_cross.json").read_text())
UNIFIED = [name for name in tiny_cross.VARIANTS if not name.startswith("referenceless")]
LONG = " ".join(f"token{number}" for number in range(400))  # as in the oracle: over MetricX's limits
HYPOTHESES = [*tiny.HYPOTHESES, LONG]
REFERENCES, SOURCES = [*tiny.REFERENCES, tiny.REFERENCES[0]], [*tiny.SOURCES, tiny.SOURCES[0]]


@pytest.mark.parametrize("variant", UNIFIED)
def test_unified_scores_are_the_original_packages(variant: str, tmp_path: Path) -> None:
    utility = XCOMET(tiny_cross.make(tmp_path, variant), device="cpu")
    wanted = SCORES[variant]
    assert wanted.keys() == {
        *(["pairs"] if utility.reads_references else []),
        *(["quality"] if utility.reads_sources else []),
    }
    if "pairs" in wanted:
        found = utility.pairs(tiny.HYPOTHESES, tiny.REFERENCES, tiny.SOURCES)
        np.testing.assert_allclose(found, wanted["pairs"], atol=1e-5, rtol=0)
    if "quality" in wanted:
        found = utility.quality(tiny.HYPOTHESES, tiny.SOURCES)
        np.testing.assert_allclose(found, wanted["quality"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", ["unite-bert-types", "unite-mt-ref", "xcomet-xl"])
def test_a_race_scores_as_the_original_package(variant: str, tmp_path: Path) -> None:
    """The way of a race: sentences together, hypotheses and references of a table."""
    utility = XCOMET(tiny_cross.make(tmp_path, variant), device="cpu")
    check_race(utility, SCORES[variant]["pairs"], tiny.HYPOTHESES, tiny.REFERENCES, tiny.SOURCES)


def check_race(utility: XCOMET | MetricX, wanted: list[float], *columns: list[str]) -> None:
    hypotheses, references, sources = columns
    texts = list(dict.fromkeys(hypotheses))
    scorer = utility.start([Sentence(number, source, texts) for number, source in enumerate(sources)])
    found = []
    for half in (range(4), range(4, len(sources))):  # two time steps
        asks = [Ask(number, np.arange(len(texts)), [references[number], "else"]) for number in half]
        tables = scorer.score(asks)
        found += [table[texts.index(hypotheses[number]), 0] for number, table in zip(half, tables, strict=True)]
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", [name for name in tiny_cross.VARIANTS if name.startswith("referenceless")])
def test_referenceless_scores_are_the_original_packages(variant: str, tmp_path: Path) -> None:
    utility = Referenceless(tiny_cross.make(tmp_path, variant), device="cpu")
    found = utility.quality(tiny.HYPOTHESES, tiny.SOURCES)
    np.testing.assert_allclose(found, SCORES[variant]["quality"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", tiny_cross.METRICX)
def test_metricx_scores_are_those_of_the_published_recipe(variant: str, tmp_path: Path) -> None:
    folder = tiny_cross.make_metricx(tmp_path, variant, safetensors=variant != "metricx-23-qe")
    utility = MetricX(folder, device="cpu")
    wanted = {kind: -np.array(scores) for kind, scores in SCORES[variant].items()}  # lower is better there
    if "pairs" in wanted:
        found = utility.pairs(HYPOTHESES, REFERENCES, SOURCES)
        np.testing.assert_allclose(found, wanted["pairs"], atol=1e-5, rtol=0)
        check_race(utility, wanted["pairs"].tolist(), HYPOTHESES, REFERENCES, SOURCES)
    if "quality" in wanted:
        np.testing.assert_allclose(utility.quality(HYPOTHESES, SOURCES), wanted["quality"], atol=1e-5, rtol=0)


def test_the_scores_are_of_the_version_we_name() -> None:
    assert SCORES["unbabel-comet"] == "2.2.7"
