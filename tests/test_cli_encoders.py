"""Neural utilities by name on the command line: the original packages' scores, signatures in results, and a race."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_bleurt
import tiny_cross
import tiny_encoders

import mbrace
from mbrace.cli import main

ORACLE = Path(__file__).parent / "oracle"

pytestmark = pytest.mark.filterwarnings("ignore:.*over the metric's limit")
FILES = ("scores_encoders", "scores_cross", "scores")
ENCODERS, CROSS, COMET = (json.loads((ORACLE / f"{name}.json").read_text()) for name in FILES)
OF_TINY = tiny.HYPOTHESES, tiny.REFERENCES, tiny.SOURCES
# of each utility: what makes its checkpoint, options, texts, the original's scores, and the signature's end
CASES: dict[str, tuple[Any, str, list[str], Any, Any, str]] = {
    "comet": (tiny.make, "xlmr-sparsemax", [], OF_TINY, COMET["xlmr-sparsemax"], "encoder:float32"),
    "xcomet": (tiny_cross.make, "xcomet-xl", [], OF_TINY, CROSS["xcomet-xl"]["pairs"], "encoder:float32"),
    "metricx": (
        tiny_cross.make_metricx,
        "metricx-24",
        [],
        OF_TINY,
        -np.array(CROSS["metricx-24"]["pairs"][: len(tiny.SOURCES)]),
        "negated|float32",
    ),
    "bleurt": (
        tiny_bleurt.make,
        "bleurt-20",
        [],
        (tiny_bleurt.HYPOTHESES, tiny_bleurt.REFERENCES),
        ENCODERS["bleurt"]["bleurt-20"],
        "encoder:float32",
    ),
    "bertscore": (
        tiny_encoders.make,
        "roberta",
        ["layer=2", "measure=recall", "idf=texts.txt"],
        (tiny_encoders.HYPOTHESES, tiny_encoders.REFERENCES),
        ENCODERS["bertscore"]["roberta idf"]["recall"],
        "layer:2|measure:recall|idf:yes|rescaled:no|encoder:float32",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_scores_by_name_are_the_originals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, variant, given, columns, scores, signature = CASES[name]
    kept = [number for number, texts in enumerate(zip(*columns, strict=True)) if not set("\n\r") & set("".join(texts))]
    for file, texts in zip(("h", "r", "s"), columns, strict=False):
        Path(file).write_text("".join(f"{texts[number]}\n" for number in kept), encoding="utf-8")
    Path("texts.txt").write_text("\n".join(tiny_encoders.TEXTS) + "\n")
    options = ["--utility", name, "--metric-model", str(make(tmp_path, variant)), "--device", "cpu"]
    options += [word for option in given for word in ("--utility-option", option)]
    source = ["--source", "s"] if len(columns) == 3 else []
    assert main(["score", "h", "r", *source, "--per-line", *options]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    np.testing.assert_allclose([float(line) for line in lines], np.array(scores)[kept], atol=1e-4)
    assert f"|{variant}|{signature}" in last
    if source:
        assert main(["score", "h", "r", *options]) == 2
        assert "give --source" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["comet", "xcomet"])
def test_a_race_by_name_is_the_librarys(name: str, tmp_path: Path) -> None:
    make, variant, *_ = CASES[name]
    made, texts = make(tmp_path, variant), (tiny.HYPOTHESES[:4], tiny.REFERENCES[:4])
    record = {"id": 0, "source": tiny.SOURCES[0], "hypotheses": texts[0], "pseudo_references": texts[1]}
    (tmp_path / "in.jsonl").write_text(json.dumps(record) + "\n")
    options = ["--utility", name, "--metric-model", str(made), "--device", "cpu", "--threads", "1"]
    assert main(["decode", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out.jsonl", *options]) == 0
    (answer,) = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    want = mbrace.decode(*texts, utility=mbrace.Comet(made, device="cpu"), source=tiny.SOURCES[0])
    assert answer["text"] == want.text
