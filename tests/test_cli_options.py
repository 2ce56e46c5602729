"""Options of the command line: bad ones are named before any file is made, and help is instant."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import decode, lines

from mbrace.cli import main
from mbrace.cli.parser import make_parser, parsers_by_command
from mbrace.removed import REMOVED

BAD_OPTIONS: dict[str, tuple[list[str], str]] = {
    "utility": (["--utility", "blue"], "--utility blue: unknown"),
    "utility option": (
        ["--utility-option", "order=2"],
        "--utility-option order: not one of chrf++; it takes char_order",
    ),
    "utility option without a value": (["--utility-option", "beta"], "--utility-option beta: give NAME=VALUE"),
    "utility option twice": (
        ["--utility-option", "beta=1", "--utility-option", "beta=2"],
        "--utility-option beta=2: beta was given before",
    ),
    "utility option of the wrong type": (
        ["--utility-option", "beta=x"],
        "--utility-option beta=x: chrf++ expects a number",
    ),
    "a part of a mixture without a weight": (
        ["--utility", "chrf:1+bleu"],
        "--utility chrf:1+bleu: 'bleu' has no weight",
    ),
    "a function in no file": (["--utility", "gone.py:f"], "utility gone.py:f: gone.py: no such file"),
    "bertscore without a model": (["--utility", "bertscore"], "--utility bertscore: needs --metric-model"),
    "prune": (["--prune", "some"], "--prune some: unknown"),
    "on-error": (["--on-error", "cry"], "--on-error cry: unknown; choose from stop, skip, retry"),
    "schedule equal": (["--schedule", "16,16"], "sizes must increase"),
    "schedule falling": (["--schedule", "32,16"], "sizes must increase"),
    "schedule zero": (["--schedule", "0,16"], "start at 1 or more"),
    "schedule of words": (["--schedule", "some"], "--schedule some: give whole numbers"),
    "alpha high": (["--alpha", "1.5"], "alpha"),
    "alpha low": (["--alpha", "-0.1"], "alpha"),
    "alpha nan": (["--alpha", "nan"], "alpha"),
    "alpha a word": (["--alpha", "high"], "argument --alpha: invalid float value: 'high'"),
    "bootstraps": (["--bootstraps", "0"], "bootstraps"),
    "beta missing": (["--prune", "bottom"], "needs --beta"),
    "beta high": (["--prune", "bottom", "--beta", "1.5"], "beta"),
    "beta low": (["--prune", "bottom", "--beta", "-0.5"], "beta"),
    "beta without bottom": (["--beta", "0.5"], "--beta 0.5: only valid with --prune bottom"),
    "nbest": (["--nbest", "0"], "--nbest 0: must be 1 or more"),
    "window": (["--window", "0"], "--window 0: must be 1 or more"),
    "threads": (["--threads", "-1"], "--threads -1"),
    "resume and force": (["--resume", "--force"], "--resume and --force"),
    "workers without a cluster": (["--ray-option", "workers=2"], "--ray-option: only valid with --ray"),
    "a model without a neural utility": (
        ["--metric-model", "x"],
        "--metric-model: only valid with --utility comet, embedding",
    ),
    "a dtype without a neural utility": (["--dtype", "float16"], "--dtype: only valid with --utility comet, embedding"),
    "unknown option": (["--alfa", "0.9"], "--alfa: no such option; did you mean --alpha?"),
    "an option of a method": (
        ["--method", "low-rank", "--method-option", "rang=3"],
        "--method-option rang: no option of method low-rank; did you mean rank?",
    ),
    "a number out of a method's range": (
        ["--method", "low-rank", "--method-option", "rank=0"],
        "--method-option rank=0: must be 1 or more",
    ),
    "a method that was removed": (["--method", "aggregate-to-fine"], "--method aggregate-to-fine: was removed"),
    "an option of the cluster": (["--ray", "--ray-option", "worker=2"], "did you mean workers?"),
    "preset": (["--preset", "fats"], "--preset fats: unknown; did you mean fast?"),
    "both inputs": (["--hypotheses", "h.txt"], "give one kind of input"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option_is_named_before_any_file_is_made(
    name: str, candidates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, message = BAD_OPTIONS[name]
    assert decode(candidates, "-o", tmp_path / "out.jsonl", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


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
    listed = [action for action in listed if action.dest != "trust_config"]  # came later, for security
    assert len(listed) <= MOST_OPTIONS[command]


def test_a_removed_option_is_refused_with_what_to_do_instead(capsys: pytest.CaptureFixture[str]) -> None:
    for command in MOST_OPTIONS:
        known = parsers_by_command(make_parser(command))[command]._option_string_actions
        for name, sentence in REMOVED.items():
            flag = f"--{name.replace('_', '-')}"
            assert flag not in known
            assert main([command, "x", flag, "1"]) == 2
            assert capsys.readouterr().err == f"mbrace: error: {flag}: {sentence}\n"
            assert main([command, "x", f"{flag}=1"]) == 2
            assert flag in capsys.readouterr().err


def test_a_command_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decod"]) == 2
    assert capsys.readouterr().err == "mbrace: error: decod: no such command; did you mean decode?\n"
