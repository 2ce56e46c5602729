"""How many of our files run for a record: what a newcomer has to read to follow one through."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import decode, lines
from model_commands import folder, sources, translate

import mbrace

__all__ = ["folder", "sources"]

PACKAGE = Path(mbrace.__file__).parent


def executed(run: Callable[[], int]) -> set[str]:
    """The files in which some function was called; importing a file does not count."""
    seen: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        assert run() == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return {str(Path(file).relative_to(PACKAGE)) for file in seen if file.startswith(f"{PACKAGE}/")}


def test_a_record_of_decode_runs_at_most_45_files(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(lines([{"id": i, "samples": [f"a {i} {j}" for j in range(20)]} for i in range(3)]))
    files = executed(lambda: decode(path, "-o", tmp_path / "o.jsonl"))
    assert {"api.py", "race.py", "sentence.py"} <= files
    assert len(files) <= 45, sorted(files)


def test_a_line_of_translate_runs_at_most_70_files(folder: Path, sources: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    files = executed(lambda: translate(sources, folder, tmp_path / "o.jsonl"))
    assert {"api.py", "race.py", "models/live.py"} <= files
    assert len(files) <= 70, sorted(files)
