"""Utilities by name on the command line: decode, score and compare with them, and their signatures in results."""

from __future__ import annotations

import gzip
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


METRICS = {"bleu": (sacrebleu.BLEU(), mbrace.BLEU()), "ter": (sacrebleu.TER(), mbrace.TER())} | {
    "chrf" + "+" * order: (sacrebleu.CHRF(word_order=order), mbrace.ChrF(word_order=order)) for order in range(3)
}


@pytest.mark.parametrize("name", METRICS)
def test_score_is_sacrebleus(
    name: str, tmp_path: Path, demo_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    hypotheses = [row["hypotheses"][0] for row in demo_rows]
    references = [row["reference"] for row in demo_rows]
    (tmp_path / "h").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
    (tmp_path / "r").write_text("\n".join(references) + "\n", encoding="utf-8")
    metric, ours = METRICS[name]
    assert main(["score", str(tmp_path / "h"), str(tmp_path / "r"), "--utility", name, "--per-line"]) == 0
    *scores, average, corpus = capsys.readouterr().out.splitlines()
    score = (-1 if name == "ter" else 1) * metric.corpus_score(hypotheses, [references]).score
    assert float(corpus.split()[1]) == pytest.approx(score, abs=2e-4)
    assert ours.name in average
    if name.startswith("chrf"):
        expected = [metric.sentence_score(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]
        assert [float(score) for score in scores] == pytest.approx(expected, abs=2e-4)
        assert float(average.split()[2]) == pytest.approx(sum(expected) / len(expected), abs=2e-4)


def test_score_reads_the_field_of_records_and_no_byte_order_mark(
    tmp_path: Path, demo_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": row["id"], "text": row["hypotheses"][0], "reference": row["reference"]} for row in demo_rows[:5]]
    (tmp_path / "mixed.jsonl").write_bytes(lines(rows[::-1]))
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + lines(rows)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "table.parquet")
    for name, field in (("h.txt", "text"), ("r.txt", "reference")):
        (tmp_path / name).write_text("\ufeff" + "".join(row[field] + "\n" for row in rows), encoding="utf-8")
    chrf = sacrebleu.CHRF(word_order=2)
    expected = chrf.corpus_score([row["text"] for row in rows], [[row["reference"] for row in rows]]).score
    files = ("mixed.jsonl", "packed.json.gz"), ("table.parquet", "mixed.jsonl"), ("h.txt", "packed.json.gz")
    for hypotheses, references in (*files, ("h.txt", "r.txt"), ("table.parquet", "r.txt")):
        assert main(["score", str(tmp_path / hypotheses), str(tmp_path / references)]) == 0
        assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(expected, abs=2e-4)
    (tmp_path / "out.jsonl").write_bytes(b'{"id": 1, "text": "a"}\n')
    assert main(["score", str(tmp_path / "out.jsonl"), str(tmp_path / "out.jsonl")]) == 2
    assert "out.jsonl:1: reference: missing; give records with a string `reference`" in capsys.readouterr().err


def test_compare_and_score_need_a_fixed_scale_of_a_mixture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a", "a b c\nd e\n"), ("b", "a b\nd f\n"), ("r", "a b c d\nd e\n")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / "a"), str(tmp_path / "b"), "--reference", str(tmp_path / "r")]
    options = ["--utility", "bleu:0.5+chrf:0.5", "--resamples", "10", "--shuffles", "10"]
    assert main(["compare", *files, *options]) == 2
    assert "scale='fixed'" in capsys.readouterr().err
    assert main(["compare", *files, *options, "--utility-option", "scale=fixed"]) == 0
    assert "mixture|scale:0/100,0/100|0.5 BLEU|" in capsys.readouterr().out
