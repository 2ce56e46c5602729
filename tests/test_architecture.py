"""ARCHITECTURE.md names every file, once, and no other; the functions it names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mbrace"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
BEFORE, FILES = TEXT.split("\n## Files\n")
WALKS = re.split(r"^### ", BEFORE.split("\n## How a record goes through\n")[1], flags=re.M)[1:]


def described() -> list[tuple[str, str]]:
    """(path, sentence) of every row."""
    rows = []
    for section in re.split(r"^### ", FILES, flags=re.M)[1:]:
        folder = section.split("`")[1]
        rows += [(folder + name, idea) for name, idea in re.findall(r"^\| `(.+?)` \| (.*) \|$", section, flags=re.M)]
    return rows


def test_every_file_has_one_sentence_and_no_other_is_named() -> None:
    rows = described()
    there = {*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyi"), *(ROOT / "native").iterdir()}
    files = {str(path.relative_to(ROOT)) for path in there if path.is_file()}
    named = [path for path, _ in rows]
    assert sorted(set(named)) == sorted(named), "named twice"
    assert files - set(named) == set(), "give each a row in ARCHITECTURE.md"
    assert set(named) - files == set(), "not there any more"
    assert [path for path, idea in rows if not re.fullmatch(r"\S[^|]*[.?]", idea)] == [], "one sentence for each"


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


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.split("`")[1])
def test_what_a_walk_names_is_in_the_source(walk: str) -> None:
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", walk)
    assert len(names) > 10
    assert [name for name in names if not exists(name)] == []
    assert not exists("cli.decode.walk")


def test_the_picture_of_layers_is_the_contract() -> None:
    contract = re.search(
        r'name = "Imports go down".*?^layers = \[\n(.*?)^\]', (ROOT / "pyproject.toml").read_text(), re.S | re.M
    )
    assert contract is not None
    layers = re.findall(r'"(.+?)"', contract[1])
    picture = [re.split(r"\s{2,}", line.strip())[0] for line in BEFORE.splitlines() if line.startswith("    ")]
    drawn = [layer for line in picture[picture.index("cli") :] for layer in line.split(" > ")]
    assert drawn == [*layers[1:], "native"]
