"""Options of the command line: bad ones are named before any file is made, and help is instant."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import decode, lines

from mbrace.cli import main
from mbrace.cli.messages import flag as spell
from mbrace.cli.parser import make_parser, parsers_by_command
from mbrace.errors import spelled
from mbrace.setting_fields import REMOVED


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
