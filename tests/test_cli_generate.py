"""`mbrace generate` with a live model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
from model_commands import SOURCES, folder, generate, sources

import mbrace
from mbrace.cli import main
from mbrace.io.candidates import read_records
from mbrace.io.output import Output
from mbrace.jobs.generate import GenerateWorker
from mbrace.jobs.run import Summary, run_worker

__all__ = ["folder", "sources"]


def test_generate_writes_records_that_decode_reads(sources: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    more = ["--logprobs", "--prefix", "t."]
    assert generate(sources, folder, out, *more) == 0
    records = list(read_records(str(out)))
    assert [record.source for record in records] == SOURCES
    assert [record.id for record in records] == [f"t.{n}" for n in range(1, 6)]  # the lines
    assert all(len(record.pseudo_references or []) == len(record.logprobs or []) == 6 for record in records)  # type: ignore[arg-type]
    model = mbrace.Seq2Seq(folder, tokenizer=tiny.tokenizer())
    again = model.sample(["d d a"], 6, seed=3, ids=["t.3"])[0]
    assert list(records[2].pseudo_references or []) == list(again.texts)  # type: ignore[arg-type]
    assert list(records[2].hypotheses) == list(model.beam(["d d a"], k=4)[0].texts)


def test_generate_goes_on_to_the_same_bytes_with_the_same_options_and_sources_only(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut, text = tmp_path / "whole.jsonl", tmp_path / "c.jsonl", sources.read_text()
    assert generate(sources, folder, whole) == 0
    sources.write_text("".join(text.splitlines(keepends=True)[:2]))
    assert generate(sources, folder, cut) == 0
    before = cut.read_bytes()
    for more, message in {
        (): "exists; use --resume to continue it or --force to replace it",
        ("--resume", "--seed", "4"): "was made with seed 3, not 4",
        ("--resume", "--beam", "3"): "was made with beam 4, not 3",
        ("--resume", "--epsilon", "0.1"): "was made with epsilon 0.02, not 0.1",
    }.items():
        assert generate(sources, folder, cut, *more) == 2
        assert f"c.jsonl: {message}" in capsys.readouterr().err
    sources.write_text("a b\nd\n")
    assert generate(sources, folder, cut, "--resume") == 2
    assert f"c.jsonl:2: --resume: not made of {sources}:2; give the same sources" in capsys.readouterr().err
    assert cut.read_bytes() == before
    sources.write_text(text)
    cut.write_bytes(before[: len(before) * 4 // 5])  # inside a line
    assert generate(sources, folder, cut, "--resume") == 0
    assert cut.read_bytes() == whole.read_bytes()


def test_only_the_suffix_tsv_means_columns() -> None:
    from mbrace.jobs.translate import source_item

    for name, source, reference in [
        ("a.tsv", "x", "y"),
        ("a.tsv.gz", "x", "y"),
        ("a.tsv/b.txt", "x\ty", None),
        ("a.tsvx", "x\ty", None),
    ]:
        item = source_item(b"x\ty\tz\n" if reference else b"x\ty\n", name, 1)
        assert isinstance(item, mbrace.Record)
        assert (item.source, item.reference) == (source, reference)


def test_a_cluster_run_is_continued_only_with_the_same_endpoint_of_a_server(sources: Path) -> None:
    from mbrace.cli.generate import job_from
    from mbrace.cli.parser import make_parser

    server = ["generate", str(sources), "-o", "o", "--server", "http://x", "--model", "m", "--prompt", "{source}"]
    kinds = (["--server-option", f"kind={kind}"] for kind in ("chat", "completions"))
    chat, completions = (job_from(make_parser().parse_args([*server, *kind])).describe() for kind in kinds)
    assert chat != completions


def test_generate_sets_a_bad_source_aside_and_names_its_line(
    sources: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "c.jsonl"
    assert generate(sources, folder, whole) == 0
    rows = whole.read_bytes().splitlines(keepends=True)
    lines = [source.encode() for source in SOURCES]
    sources.write_bytes(b"\n".join([lines[0], b"a " * 3000, lines[2], b"\xff", lines[4]]) + b"\n")
    assert generate(sources, folder, out) == 2
    assert f"{sources}:2: a source has 3001 pieces" in capsys.readouterr().err
    assert out.read_bytes() == rows[0]
    assert generate(sources, folder, out, "--resume", "--on-error", "skip") == 0
    assert out.read_bytes() == b"".join(rows[::2])
    set_aside = [json.loads(line) for line in (tmp_path / "c.jsonl.errors.jsonl").read_text().splitlines()]
    assert [(row["file"], row["line"]) for row in set_aside] == [(str(sources), 2), (str(sources), 4)]


def generate_with(make: Any, items: Any, out: Path) -> Summary:
    with Output(str(out)) as output:
        return run_worker(GenerateWorker(make, window=3), items, output)


def test_a_signal_lets_generate_finish_its_window_and_say_how_to_go_on(
    sources: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "c.jsonl"
    assert generate(sources, folder, whole) == 0
    beam = mbrace.Seq2Seq.beam

    def interrupted(self: Any, *args: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return beam(self, *args, **options)

    monkeypatch.setattr(mbrace.Seq2Seq, "beam", interrupted)
    assert generate(sources, folder, out, "--window", "2") == 128 + signal.SIGTERM
    assert "go on with the same command and --resume" in capsys.readouterr().err
    assert out.read_bytes() == b"".join(whole.read_bytes().splitlines(keepends=True)[:2])
    monkeypatch.setattr(mbrace.Seq2Seq, "beam", beam)
    assert generate(sources, folder, out, "--resume") == 0
    assert out.read_bytes() == whole.read_bytes()


def test_generate_reads_sources_as_it_needs_them_and_writes_what_is_done(tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    read: list[int] = []
    written: list[int] = []

    def items() -> Any:
        for number in range(7):
            read.append(number)
            yield mbrace.Record((), id=number, source=f"s{number}")

    def make(texts: Any, ids: Any) -> Any:
        assert read[-1] == ids[-1]
        written.append(len(out.read_bytes().splitlines()))
        return [(mbrace.Draws([text]), None) for text in texts]

    assert generate_with(make, items(), out).sentences == 7
    assert written == [0, 3, 6]


def test_generate_writes_parquet_that_decode_reads(sources: Path, folder: Path, tmp_path: Path) -> None:
    assert generate(sources, folder, tmp_path / "c.jsonl") == 0
    assert generate(sources, folder, tmp_path / "c.parquet") == 0
    for name in ("c.jsonl", "c.parquet"):
        assert main(["decode", f"{tmp_path}/{name}", "-o", f"{tmp_path}/{name}.out"]) == 0
    assert (tmp_path / "c.parquet.out").read_bytes() == (tmp_path / "c.jsonl.out").read_bytes()
