"""mbrace's own COMET against the `unbabel-comet` package: its scores of tiny checkpoints are in oracle/scores.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mbrace.neural.comet import Comet

ORACLE = Path(__file__).parent / "oracle"
sys.path.insert(0, str(ORACLE))
import tiny  # noqa: E402

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another
SCORES = json.loads((ORACLE / "scores.json").read_text())


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_scores_are_the_original_packages(variant: str, tmp_path: Path) -> None:
    comet = Comet(tiny.make(tmp_path, variant), device="cpu")
    found = comet.pairs(tiny.HYPOTHESES, tiny.REFERENCES, tiny.SOURCES)
    np.testing.assert_allclose(found, SCORES[variant], atol=1e-5, rtol=0)


def test_the_scores_are_of_the_version_we_name() -> None:
    assert SCORES["unbabel-comet"] == "2.2.7"
