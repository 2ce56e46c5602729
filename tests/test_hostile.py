"""Hostile inputs and options: one table, hostile.jsonl, of commands and calls, and what they are told.

A row is a JSON object. Of a command: `command` as typed; `files`, content by name (a string, or {"base64": ...}),
beside those of the first row, which every command finds; `exit`, the status; `says`, the words on stderr; `leaves`,
files it may leave. Of a call: `python`, an expression over the public names and those of `NAMES`; `files`; `says`, how
the message begins; `error`, its class, if not UserError.
"""

from __future__ import annotations

import ast
import base64
import json
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import overlap

import mbrace
from mbrace.cli import main
from mbrace.cli.parser import make_parser, parsers_by_command
from mbrace.judge.items import read_prediction_pairs
from mbrace.settings import Network
from mbrace.utilities.named import load_function

HERE = Path(__file__).parent
TABLE = [json.loads(line) for line in (HERE / "hostile.jsonl").read_text(encoding="utf-8").splitlines()]
SHARED, ROWS = TABLE[0]["files"], [row for row in TABLE if "command" in row]


def name_of(row: dict[str, Any]) -> str:
    return f"{row.get('command') or row['python']} {'+'.join(row.get('files', {}))}"[:110]


def bytes_of(content: Any) -> bytes:
    return base64.b64decode(content["base64"]) if isinstance(content, dict) else str(content).encode()


def write_files(contents: dict[str, Any]) -> dict[str, bytes]:
    """Files in the current folder."""
    files = {name: bytes_of(content) for name, content in contents.items()}
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    return files


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_hostile_input_is_named_in_one_line_and_leaves_nothing(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = write_files({**SHARED, **row.get("files", {})})
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


def race(hypotheses: Any = ("a", "b", "c"), pseudo_references: Any = ("a", "b"), **options: Any) -> mbrace.Decoded:
    """A race in which a row changes one thing."""
    given = [list(texts) if isinstance(texts, tuple) else texts for texts in (hypotheses, pseudo_references)]
    return mbrace.decode(*given, **{"utility": overlap, **options})


def table(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").table(columns)


def marian(**options: Any) -> mbrace.Seq2Seq:
    tiny = pytest.importorskip("tiny_models")
    return mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), **options)


def causal(**options: Any) -> mbrace.CausalLM:
    tiny = pytest.importorskip("tiny_models")
    return mbrace.CausalLM(tiny.llama(), tokenizer=tiny.tokenizer(end=False), **options)


NAMES: dict[str, Any] = {name: getattr(mbrace, name) for name in mbrace.__all__} | {"mbrace": mbrace, "np": np}
NAMES |= {"Network": Network, "race": race, "table": table, "marian": marian, "causal": causal, "overlap": overlap}
NAMES |= {"load_function": load_function, "read_prediction_pairs": read_prediction_pairs}


@pytest.mark.parametrize("row", [row for row in TABLE if "python" in row], ids=name_of)
def test_a_hostile_call_is_told_what_is_wrong_and_so_is_another_process(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(row.get("files", {}))
    with pytest.raises(mbrace.UserError) as error:
        eval(row["python"], NAMES)
    assert str(error.value).startswith(row["says"])
    assert type(error.value).__name__ == row.get("error", "UserError")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


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
