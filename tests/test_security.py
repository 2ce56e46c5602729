"""Nothing that is read is executed."""

from __future__ import annotations

import ast
from pathlib import Path

import mbrace

SOURCES = sorted(Path(mbrace.__file__).parent.rglob("*.py"))
FORBIDDEN = {"eval", "exec", "compile"}  # built-in names; methods such as re.compile are others
MODULES = {"pickle", "dill", "marshal", "shelve", "joblib", "cloudpickle", "subprocess", "tarfile", "zipfile"}


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
        assert not FORBIDDEN & {name_of(call) for call in calls(tree)}, path


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
