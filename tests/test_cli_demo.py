"""`mbrace demo`, and what runs without any optional dependency."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mbrace.cli import main
from mbrace.cli.labelled_texts import print_labelled

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "ray", "pyarrow", "matplotlib"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
from mbrace.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_demo_and_decode_run_without_any_extra(candidates: Path, tmp_path: Path, answers: bytes) -> None:
    demo = [sys.executable, "-c", BLOCKED, "demo", "--sentences", "8", "--examples", "1"]
    done = subprocess.run(demo, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    assert "standard MBR" in done.stdout
    assert "survivors" in done.stdout
    out = tmp_path / "blocked.jsonl"
    subprocess.run([sys.executable, "-c", BLOCKED, "decode", candidates, "-o", out], check=True, capture_output=True)
    assert out.read_bytes() == answers
    parquet = subprocess.run(
        [sys.executable, "-c", BLOCKED, "decode", candidates, "-o", tmp_path / "o.parquet"], capture_output=True
    )
    assert parquet.returncode == 2
    assert b"pip install 'mbrace[parquet]'" in parquet.stderr


@pytest.mark.parametrize("options", [["--sentences", "0"], ["--sentences", "-3"], ["--examples", "-1"]])
def test_a_demo_of_nothing_is_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *options]) == 2
    assert f"{' '.join(options)}: must be" in capsys.readouterr().err


def test_the_demo_prints_texts_word_for_word_and_wraps_them_beside_their_labels() -> None:
    console = Console(width=80, file=io.StringIO())
    text = "a [bold]word[/bold] and [/nothing] " + "of a long sentence " * 6
    print_labelled(console, ("source", "dim", text, ""), ("MBR", "bold", "short", "bold"))
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert shown[1].startswith("source a [bold]word[/bold] and [/nothing] of")
    assert shown[2].startswith("       ")
    assert shown[-1].split() == ["MBR", "short"]
    assert max(map(len, shown)) <= 80
