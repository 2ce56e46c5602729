"""Options of the command line: bad ones are named before any file is made, and help is instant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import decode, lines

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
    "utility option of the wrong type": (["--utility-option", "beta=x"], "option beta=x: chrf++ expects a number"),
    "a part of a mixture without a weight": (
        ["--utility", "chrf:1+bleu"],
        "--utility chrf:1+bleu: 'bleu' has no weight",
    ),
    "a function in no file": (["--utility", "gone.py:f"], "utility gone.py:f: gone.py: no such file"),
    "comet without a model": (["--utility", "comet"], "--utility comet: needs --metric-model"),
    "prune": (["--prune", "some"], "--prune some: unknown"),
    "on-error": (["--on-error", "cry"], "argument --on-error: invalid choice: 'cry'"),
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
    "beta without bottom": (["--beta", "0.5"], "--beta: only valid with --prune bottom"),
    "nbest": (["--nbest", "0"], "--nbest 0: must be 1 or more"),
    "window": (["--window", "0"], "--window 0: must be 1 or more"),
    "threads": (["--threads", "-1"], "--threads -1"),
    "resume and force": (["--resume", "--force"], "--resume and --force"),
    "workers without a cluster": (["--workers", "2"], "--workers: only valid with --ray"),
    "a model without a neural utility": (
        ["--metric-model", "x"],
        "--metric-model: only valid with --utility comet, embedding",
    ),
    "a dtype without a neural utility": (["--dtype", "float16"], "--dtype: only valid with --utility comet, embedding"),
    "unknown option": (["--fast"], "unrecognized arguments: --fast"),
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
