"""What is installed: a core that stays small, and weights in distributions of their own."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

import mbrace
from mbrace import _native, errors

ROOT = Path(__file__).parents[1]
PACKAGE = Path(mbrace.__file__).parent


def test_the_core_is_under_two_megabytes() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so")]
    packed = sum(len(zlib.compress(path.read_bytes(), 6)) for path in [*files, Path(_native.__file__)])
    assert packed < 2_000_000, sorted((path.stat().st_size, str(path)) for path in files)[-5:]


@pytest.mark.parametrize("name", ["mbrace-de-en", "mbrace-learned"])
def test_weights_are_asked_for_in_the_version_that_is_built_here(name: str) -> None:
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "packages" / name / "pyproject.toml").read_text(), re.M)
    asked = re.findall(rf'"{name}>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert asked
    for low, high in asked:
        assert tuple(map(int, low.split("."))) <= tuple(map(int, version.split("."))) < tuple(map(int, high.split(".")))


def test_every_target_installs_the_weights_that_its_extras_ask_for() -> None:
    """They are on no index, so that pip would find none."""
    lines = (ROOT / "Makefile").read_text().replace("\\\n", " ").splitlines()
    asking = [line for line in lines if re.search(r'--editable "\.\[[^]]*(models|learned|all)', line)]
    assert len(asking) >= 4
    assert [line for line in asking if "$(WEIGHTS)" not in line] == []


@pytest.mark.parametrize(
    ("module", "use", "extra"),
    [
        ("mbrace_de_en", "Seq2Seq()", "models"),
        ("mbrace_learned", "Learned()", "learned"),
        ("mbrace_learned", "Learned('multilingual')", "learned"),
    ],
)
def test_missing_weights_are_named_with_the_extra_that_brings_them(
    module: str, use: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = errors.importlib.import_module

    def without(name: str) -> object:
        if name == module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name)

    monkeypatch.setattr(errors.importlib, "import_module", without)
    with pytest.raises(mbrace.UserError, match=rf"{module} is not installed .*pip install 'mbrace\[{extra}\]'"):
        eval(f"mbrace.{use}")
