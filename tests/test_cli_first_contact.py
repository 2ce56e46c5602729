"""What a newcomer types first: bare `mbrace`, `doctor`; names of fields; counts in words."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from cli_helpers import decode, lines

import mbrace
from mbrace.cli import main
from mbrace.cli.runs import summary_lines
from mbrace.errors import counted
from mbrace.jobs.run import Summary
from mbrace.result import Phases


def test_mbrace_alone_prints_help_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("usage: mbrace")
    assert told.err == ""


def test_doctor_reports_what_the_environment_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    from mbrace._native import simd_variants

    assert f"mbrace {mbrace.__version__} python {'.'.join(map(str, sys.version_info[:3]))} (" in printed
    assert f" numpy {metadata.version('numpy')} chrF kernel {simd_variants()[0]} (usable: " in printed
    assert f"[parquet] pyarrow {metadata.version('pyarrow')}" in printed
    assert f" torch {__import__('torch').__version__}; cpu" in printed
    folder = re.search(r" learned (\S+)", printed)
    assert folder is not None
    assert Path(folder[1]).is_dir()


def test_doctor_says_how_to_install_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["numpy>=1", "nosuchpackage>=2 ; extra == 'some'", "numpy ; extra == 'some'"]
    wanted += ['old; python_version < "3.3" and extra == "x"']
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^\[(.+?)\] +(.*)$", shown, flags=re.M) == [("some", "missing: nosuchpackage")]
    assert "pip install 'mbrace[some]'" in shown


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 hypotheses"), (1, "1 hypothesis"), (2, "2 hypotheses"), (12345, "12,345 hypotheses")]
)
def test_one_thing_is_singular(count: int, words: str) -> None:
    assert counted(count, "hypothesis", "hypotheses") == words
    assert counted(count, "line") == words.replace("hypotheses", "lines").replace("hypothesis", "line")


def test_a_run_of_one_sentence_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines([{"hypotheses": ["a", "b"], "pseudo_references": ["a"]}]))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl") == 0
    told = capsys.readouterr().err
    assert told.startswith("mbrace: 1 sentence in ")
    assert "2 utility calls (0.0% saved), 2 pairs scored" in told


def test_the_summary_of_a_run_fits_80_columns() -> None:
    many = 123_456_789_012
    phases = Phases(12345.6, 12345.6, 12345.6, 12345.6, 12345.6)
    counts = dict.fromkeys(("sentences", "kept", "skipped", "utility_calls", "pairs_scored", "standard_calls"), many)
    others = dict.fromkeys(
        ("quality_calls", "requests", "kept_answers", "prompt_tokens", "completion_tokens", "drawn"), many
    )
    summary = Summary(**counts, **others, hypothesis_seconds=12345.6, seconds=123456.7, phases=phases)
    text = summary_lines(summary)
    shown = text.split("\n")
    assert max(map(len, shown)) <= 80
    assert len(shown) <= 10
    assert text.count(f"{many:,}") == 11  # all but those of standard MBR, which are in the share saved
    assert summary_lines(Summary(sentences=1, seconds=1.0)) == "mbrace: 1 sentence in 1.00 s"


BOTH = {"hypotheses": ["a b", "a c"], "pseudo_references": ["a b"]}
FIELDS = [
    ({"candidates": ["a b", "a c"], "pseudo_references": ["a b"]}, BOTH),
    ({**BOTH, "references": ["c"]}, BOTH),
    ({"candidates": ["a b", "a c", "a b"]}, {"hypotheses": ["a b", "a c", "a b"]}),
    ({"samples": ["a b", "a c", "a b"]}, {"hypotheses": ["a b", "a c", "a b"]}),
]


@pytest.mark.parametrize(("other", "own"), FIELDS)
def test_fields_may_have_other_names(other: object, own: object, tmp_path: Path) -> None:
    for name, row in (("other", other), ("own", own)):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([row]))
        assert decode(tmp_path / f"{name}.jsonl", "-o", tmp_path / f"{name}.out.jsonl") == 0
    assert (tmp_path / "other.out.jsonl").read_bytes() == (tmp_path / "own.out.jsonl").read_bytes()
