"""ARCHITECTURE.md is true: the layers are the contract, walks name what is there, every package has a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mbrace"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
BEFORE, REST = TEXT.split("\n## How a record goes through\n")
WALKS, PACKAGES = REST.split("\n## Packages\n")


def exists(name: str) -> bool:
    """Whether `package.module.Class.method` is written in the source."""
    parts, path = name.split("."), SOURCE
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    if parts and (path / f"{parts[0]}.py").exists():
        path /= f"{parts.pop(0)}.py"
    if not parts:
        return path != SOURCE
    if path.suffix != ".py":
        return False
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in parts:
        found = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == part]
        if not found:
            return False
        body = found[0].body
    return True


@pytest.mark.parametrize("walk", re.split(r"^### ", WALKS, flags=re.M)[1:], ids=lambda walk: walk.split("`")[1])
def test_what_a_walk_names_is_in_the_source(walk: str) -> None:
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", walk)
    assert len(names) > 4
    assert [name for name in names if not exists(name)] == []
    assert not exists("cli.decode.walk")


def test_every_package_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|", PACKAGES, flags=re.M)
    assert sorted(rows) == sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
    assert len(TEXT.encode()) <= 12_000


def test_the_picture_of_layers_is_the_contract() -> None:
    contract = re.search(
        r'name = "Imports go down".*?^layers = \[\n(.*?)^\]', (ROOT / "pyproject.toml").read_text(), re.S | re.M
    )
    assert contract is not None
    layers = re.findall(r'"(.+?)"', contract[1])
    picture = [re.split(r"\s{2,}", line.strip())[0] for line in BEFORE.splitlines() if line.startswith("    ")]
    drawn = [layer for line in picture[picture.index("cli") :] for layer in line.split(" > ")]
    assert drawn == [*layers[1:], "native"]
