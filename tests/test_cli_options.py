"""Options, help and messages of all commands: what a newcomer types first, bad options, what was removed."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from cli_helpers import decode, lines

import mbrace
from mbrace.cli import main
from mbrace.cli.messages import flag as spell
from mbrace.cli.parser import make_parser, parsers_by_command
from mbrace.cli.runs import summary_lines
from mbrace.errors import counted, spelled
from mbrace.jobs.run import Summary
from mbrace.result import Phases
from mbrace.setting_fields import REMOVED


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


def test_a_warning_is_one_line_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"hypotheses": ["a", "b"], "pseudo_references": ["a"] * count} for count in (300, 301, 302)]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl") == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warned) == 1
    assert warned[0].startswith("mbrace: warning: the default schedule ends at 256")
    assert "--schedule all" in warned[0]


def test_help_is_instant_and_loads_nothing_heavy() -> None:
    code = "import sys\nfrom mbrace.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'ray', 'pyarrow', 'transformers', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# `--help` lists no more: what is rarely used is given as NAME=VALUE
MOST_OPTIONS = {"decode": 42, "translate": 55, "generate": 38}


@pytest.mark.parametrize("command", MOST_OPTIONS)
def test_a_command_has_a_limited_number_of_options(command: str) -> None:
    actions = parsers_by_command(make_parser(command))[command]._actions
    listed = [action for action in actions if action.option_strings and action.help != argparse.SUPPRESS]
    assert len(listed) <= MOST_OPTIONS[command]


def test_a_removed_option_is_refused_with_what_to_do_instead(capsys: pytest.CaptureFixture[str]) -> None:
    for command in MOST_OPTIONS:
        known = parsers_by_command(make_parser(command))[command]._option_string_actions
        for name, sentence in REMOVED.items():
            flag = f"--{name.replace('_', '-')}"
            assert flag not in known
            assert main([command, "x", flag, "1"]) == 2
            assert capsys.readouterr().err == f"mbrace: error: {flag}: {spelled(sentence, spell)}\n"
            assert main([command, "x", f"{flag}=1"]) == 2
            assert flag in capsys.readouterr().err
