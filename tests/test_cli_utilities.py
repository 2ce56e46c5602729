"""Utilities by name on the command line: decode, score and compare with them, and their signatures in results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sacrebleu
from cli_helpers import Row, decode, lines

import mbrace
from mbrace.cli import main
from mbrace.utility import Utility


@pytest.fixture
def few(tmp_path: Path, demo_rows: list[Row]) -> tuple[Path, list[Row]]:
    rows = [
        row | {"hypotheses": row["hypotheses"][:12], "pseudo_references": row["pseudo_references"][:20]}
        for row in demo_rows[:4]
    ]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    (tmp_path / "own.py").write_text(
        "def closer(hypothesis, reference):\n    return -abs(len(hypothesis) - len(reference))\n"
    )
    return tmp_path / "in.jsonl", rows


OWN = mbrace.Pairwise(lambda hypothesis, reference: -abs(len(hypothesis) - len(reference)))
UTILITIES: dict[str, tuple[list[str], Utility]] = {
    "bleu": ([], mbrace.BLEU()),
    "bleu ": (["tokenize=char", "smooth_method=floor"], mbrace.BLEU(tokenize="char", smooth_method="floor")),
    "ter": ([], mbrace.TER()),
    "wer": ([], mbrace.EditDistance(kind="wer")),
    "cer": ([], mbrace.EditDistance(kind="cer")),
    "edit": (["kind=indel"], mbrace.EditDistance(kind="indel")),
    "exact": ([r"pattern=^(\w+)"], mbrace.ExactMatch(pattern=r"^(\w+)")),
    "rouge-l": ([], mbrace.RougeL()),
    "own.py:closer": ([], OWN),
    "chrf++:0.5+bleu:0.5": ([], mbrace.Mixture([(mbrace.ChrF(), 0.5), (mbrace.BLEU(), 0.5)])),
    "chrf:1+own.py:closer:2": (
        ["scale=fixed"],
        mbrace.Mixture([(mbrace.ChrF(word_order=0), 1), (OWN, 2)], scale="fixed"),
    ),
}


@pytest.mark.parametrize("name", UTILITIES)
def test_decode_answers_as_the_library_does(
    name: str, few: tuple[Path, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, utility = UTILITIES[name]
    flags = [text for option in options for text in ("--utility-option", option)]
    assert decode(few[0], "-o", tmp_path / "out.jsonl", "--utility", name.strip(), *flags) == 0
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    records = [
        mbrace.Record(id=row["id"], hypotheses=row["hypotheses"], pseudo_references=row["pseudo_references"])
        for row in few[1]
    ]
    expected = list(mbrace.decode_corpus(records, utility=utility, prune=mbrace.Confidence(0.99)))
    assert [(row["text"], row["utility"]) for row in written] == [(one.text, one.utility) for one in expected]


def test_score_with_bleu_and_ter_is_sacrebleus(
    tmp_path: Path, demo_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    hypotheses = [row["hypotheses"][0] for row in demo_rows]
    references = [row["reference"] for row in demo_rows]
    (tmp_path / "h").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
    (tmp_path / "r").write_text("\n".join(references) + "\n", encoding="utf-8")
    for name, metric, sign in (("bleu", sacrebleu.BLEU(), 1), ("ter", sacrebleu.TER(), -1)):
        assert main(["score", str(tmp_path / "h"), str(tmp_path / "r"), "--utility", name]) == 0
        average, corpus = capsys.readouterr().out.splitlines()
        assert float(corpus.split()[1]) == pytest.approx(
            sign * metric.corpus_score(hypotheses, [references]).score, abs=1e-4
        )
        assert {"bleu": mbrace.BLEU().name, "ter": mbrace.TER().name}[name] in average


def test_compare_and_score_need_a_fixed_scale_of_a_mixture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a", "a b c\nd e\n"), ("b", "a b\nd f\n"), ("r", "a b c d\nd e\n")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / "a"), str(tmp_path / "b"), "--reference", str(tmp_path / "r")]
    options = ["--utility", "bleu:0.5+chrf:0.5", "--resamples", "10", "--shuffles", "10"]
    assert main(["compare", *files, *options]) == 2
    assert "scale='fixed'" in capsys.readouterr().err
    assert main(["compare", *files, *options, "--utility-option", "scale=fixed"]) == 0
    assert "mixture|scale:0/100,0/100|0.5 BLEU|" in capsys.readouterr().out
