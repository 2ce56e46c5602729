"""Nothing that is read is executed, and docs/security.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mbrace

SOURCES = sorted(Path(mbrace.__file__).parent.rglob("*.py"))
FORBIDDEN = {"eval", "exec", "compile"}  # built-in names; methods such as re.compile are others
MODULES = {"pickle", "dill", "marshal", "shelve", "joblib", "cloudpickle", "subprocess", "tarfile"}


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def name_of(node: ast.Call) -> str:
    return ast.unparse(node.func)


def test_no_module_unpickles_evaluates_or_extracts() -> None:
    assert len(SOURCES) > 20
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not imported & MODULES, path
        called = {name_of(call) for call in calls(tree)}
        assert not FORBIDDEN & called, path
        assert not any(name.endswith((".extract", ".extractall", ".unpack_archive")) for name in called), path


def test_checkpoints_are_loaded_with_weights_only_and_yaml_with_a_safe_loader() -> None:
    seen = 0
    for path in SOURCES:
        for call in calls(ast.parse(path.read_text(encoding="utf-8"))):
            name = name_of(call)
            if name == "torch.load":
                seen += 1
                settings = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert settings.get("weights_only") == "True", f"{path}:{call.lineno}"
            assert name not in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"), f"{path}:{call.lineno}"
            if name.endswith(("from_pretrained", "from_config")):
                settings = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert settings.get("trust_remote_code", "False") == "False", f"{path}:{call.lineno}"
    assert seen


def test_every_test_named_in_the_document_exists_and_every_claim_of_distrust_has_one() -> None:
    here = Path(__file__).parent
    document = (here.parent / "docs" / "security.md").read_text(encoding="utf-8")
    found = {
        node.name
        for path in here.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    named = set(re.findall(r"`(test_\w+)`", document))
    assert named <= found, named - found
    tables = [table.splitlines() for table in document.split("\n\n") if table.startswith("| a ")]
    assert len(tables) == 3
    for row in (row for table in tables for row in table[2:]):
        assert "`test_" in row.rsplit("|", 2)[1], row
