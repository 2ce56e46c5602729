"""Hostile inputs and options: one table, hostile.jsonl, of (command, files, exit status, words in the message).

A row is a JSON object: `command` as typed; `files`, content by name (a string, or {"base64": ...}), beside those of the
first row, which every command finds; `exit`, the status; `says`, the words on stderr; `leaves`, files it may leave.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mbrace.cli import main
from mbrace.cli.parser import make_parser, parsers_by_command

HERE = Path(__file__).parent
TABLE = [json.loads(line) for line in (HERE / "hostile.jsonl").read_text(encoding="utf-8").splitlines()]
SHARED, ROWS = TABLE[0]["files"], TABLE[1:]


def name_of(row: dict[str, Any]) -> str:
    return f"{row['command']} {'+'.join(row.get('files', {}))}"[:110]


def bytes_of(content: Any) -> bytes:
    return base64.b64decode(content["base64"]) if isinstance(content, dict) else str(content).encode()


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_hostile_input_is_named_in_one_line_and_leaves_nothing(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {name: bytes_of(content) for name, content in {**SHARED, **row.get("files", {})}.items()}
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    status = main(shlex.split(row["command"]))
    told = capsys.readouterr().err
    assert status == row["exit"], told
    assert row["says"] in told
    if status == 2:
        errors = [line for line in told.splitlines() if line.startswith("mbrace: error: ")]
        assert [line for line in told.splitlines() if not line.startswith("mbrace: warning: ")] == errors, told
        assert len(errors) == 1
    left = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name: data for name, data in left.items() if name not in row.get("leaves", [])} == files


def used_in_tests() -> Iterator[set[str]]:
    """The words of the table's commands, and of the strings of each test file."""
    for row in ROWS:
        yield {word.partition("=")[0] for word in shlex.split(row["command"])}
    for path in HERE.glob("test_*.py"):
        if path.name != Path(__file__).name:
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            yield {word for text in texts for word in re.split(r"[\s=,]+", text)}


def test_every_command_and_option_is_in_a_test_or_a_row_of_the_table() -> None:
    used = list(used_in_tests())
    for command, parser in parsers_by_command(make_parser()).items():
        assert any(row["command"].split()[0] == command for row in ROWS), f"{command}: no row in hostile.jsonl"
        for action in parser._actions:
            if action.option_strings and action.dest != "help":
                names = set(action.option_strings)
                assert any(command in words and names & words for words in used), (
                    f"mbrace {command} {action.option_strings}"
                )


def test_the_walk_over_options_notices_one_that_nothing_uses() -> None:
    assert not any("decode" in words and "--no-such-option" in words for words in used_in_tests())
