"""ARCHITECTURE.md's picture of layers is the contract that import-linter holds."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEFORE = (ROOT / "ARCHITECTURE.md").read_text().split("\n## How a record goes through\n")[0]


def test_the_picture_of_layers_is_the_contract() -> None:
    contract = re.search(
        r'name = "Imports go down".*?^layers = \[\n(.*?)^\]', (ROOT / "pyproject.toml").read_text(), re.S | re.M
    )
    assert contract is not None
    layers = re.findall(r'"(.+?)"', contract[1])
    picture = [re.split(r"\s{2,}", line.strip())[0] for line in BEFORE.splitlines() if line.startswith("    ")]
    drawn = [layer for line in picture[picture.index("cli") :] for layer in line.split(" > ")]
    assert drawn == [*layers[1:], "native"]
