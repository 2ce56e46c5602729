"""Unified COMET checkpoints and MetricX by name on the command line: the originals' scores, and races by them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_cross

import mbrace
from mbrace.cli import main

ORACLE = Path(__file__).parent / "oracle"

pytestmark = pytest.mark.filterwarnings("ignore:.*length limit:UserWarning")
SCORES = json.loads((ORACLE / "scores_cross.json").read_text())
KEPT = [number for number, text in enumerate(tiny.HYPOTHESES) if "\n" not in text and "\r" not in text]


def score(folder: Path, *options: str) -> int:
    columns = {"h": tiny.HYPOTHESES, "r": tiny.REFERENCES, "s": tiny.SOURCES}
    for name, texts in columns.items():
        (folder / name).write_text("".join(f"{texts[number]}\n" for number in KEPT), encoding="utf-8")
    arguments = [f"{folder}/h", f"{folder}/r", "--source", f"{folder}/s", "--per-line", "--device", "cpu"]
    return main(["score", *arguments, *options])


@pytest.mark.parametrize(("name", "variant", "sign"), [("xcomet", "xcomet-xl", 1), ("metricx", "metricx-24", -1)])
def test_scores_by_name_are_the_originals(
    name: str, variant: str, sign: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = tiny_cross.make if name == "xcomet" else tiny_cross.make_metricx
    assert score(tmp_path, "--utility", name, "--metric-model", str(make(tmp_path, variant))) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    want = sign * np.array(SCORES[variant]["pairs"])[KEPT]
    np.testing.assert_allclose([float(line) for line in lines], want, atol=1e-4)
    assert f"|{variant}|" in last


def test_a_race_by_name_is_the_librarys(tmp_path: Path) -> None:
    made = tiny_cross.make(tmp_path, "xcomet-xl")
    texts = tiny.HYPOTHESES[:4], tiny.REFERENCES[:4]
    record = {"id": 0, "source": tiny.SOURCES[0], "hypotheses": texts[0], "pseudo_references": texts[1]}
    (tmp_path / "in.jsonl").write_text(json.dumps(record) + "\n")
    options = ["--utility", "xcomet", "--metric-model", str(made), "--device", "cpu"]
    assert main(["decode", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out.jsonl", *options]) == 0
    (answer,) = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    utility = mbrace.XCOMET(made, device="cpu")
    want = mbrace.decode(*texts, utility=utility, source=tiny.SOURCES[0])
    assert answer["text"] == want.text
