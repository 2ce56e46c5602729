"""Run the notebooks under docs/ and write what their cells print into them: `python docs/run_notebooks.py`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Every notebook, in a folder of its own."""
    for path in sorted(Path(__file__).parent.resolve().rglob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                run(notebook)
            finally:
                os.chdir(before)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(notebook: dict[str, Any]) -> None:
    """Run the code cells in order; standard output is all they may show."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate((cell for cell in notebook["cells"] if cell["cell_type"] == "code"), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        text = printed.getvalue().splitlines(keepends=True)
        cell["execution_count"] = number
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []


if __name__ == "__main__":
    main()
