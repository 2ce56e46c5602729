"""`mbrace score`: sacreBLEU's figures, from text files and from records."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import sacrebleu
from cli_helpers import Row

from mbrace.cli import main


def test_score_equals_sacrebleu(tmp_path: Path, demo_rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    hypotheses = [row["hypotheses"][0] for row in demo_rows]
    references = [row["reference"] for row in demo_rows]
    (tmp_path / "h").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
    (tmp_path / "r").write_text("\n".join(references) + "\n", encoding="utf-8")
    for name, order in (("chrf", 0), ("chrf+", 1), ("chrf++", 2)):
        assert main(["score", str(tmp_path / "h"), str(tmp_path / "r"), "--utility", name, "--per-line"]) == 0
        *scores, average, corpus = capsys.readouterr().out.splitlines()
        chrf = sacrebleu.CHRF(word_order=order)
        expected = [chrf.sentence_score(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]
        assert [float(score) for score in scores] == pytest.approx(expected, abs=2e-4)
        assert float(average.split()[2]) == pytest.approx(sum(expected) / len(expected), abs=2e-4)
        assert float(corpus.split()[1]) == pytest.approx(chrf.corpus_score(hypotheses, [references]).score, abs=2e-4)


def test_score_reads_the_field_of_records_and_no_byte_order_mark(
    tmp_path: Path, demo_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": row["id"], "text": row["hypotheses"][0], "reference": row["reference"]} for row in demo_rows[:5]]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    (tmp_path / "mixed.jsonl").write_bytes(b"".join(lines[::-1]))
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + b"".join(lines)))
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
