"""What a caller may get wrong is a `UserError` that says so, never an error from inside."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import COMMAND

import mbrace
from mbrace.cli import main
from mbrace.records import digest
from mbrace.sampler import Draws, Want

H, R = ["a b", "a c", "d"], ["a b", "a", "c"]


def test_an_array_is_a_schedule_and_numpy_numbers_are_numbers() -> None:
    numbers: dict[str, Any] = {"nbest": np.int64(2), "seed": np.uint8(3)}
    prune = mbrace.Confidence(bootstraps=np.int32(20))  # type: ignore[arg-type]
    found = mbrace.decode(H, R, schedule=np.array([1, 2]), prune=prune, **numbers)
    assert found == mbrace.decode(H, R, schedule=[1, 2], prune=mbrace.Confidence(bootstraps=20), nbest=2, seed=3)
    assert digest(np.int32(3)) == digest(3) != digest("3") == digest(np.str_("3"))  # type: ignore[arg-type]


class Returns:
    """A sampler that returns what it is told to."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def start(self, records: Sequence[mbrace.Record]) -> Any:
        return self


SAMPLERS: dict[str, tuple[Any, str]] = {
    "too many draws": (lambda wants: [Draws(["a"] * (want.count + 1)) for want in wants], "asked for 16 draws, got 17"),
    "too many sentences": (lambda wants: [Draws(["a"])] * (len(wants) + 1), "draws of 1 sentence, got 2"),
    "too few sentences": (lambda wants: [], "draws of 1 sentence, got 0"),
    "nothing": (lambda wants: None, "draws of 1 sentence, got NoneType"),
    "texts": (lambda wants: ["a"] * len(wants), "expected Draws, got str"),
    "a string": (lambda wants: [Draws("ab")] * len(wants), "expected Draws of a list of strings, got a string"),
    "a set": (lambda wants: [Draws({"a", "b"})] * len(wants), "expected Draws of a list of strings, got set"),
    "logprobs": (lambda wants: [Draws(["a", "b"], [0.0])] * len(wants), "1 logprobs for 2 draws"),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_returns_something_else_is_told_what_was_asked(name: str) -> None:
    draw, message = SAMPLERS[name]
    with pytest.raises(mbrace.UserError, match=message):
        list(mbrace.decode_corpus([mbrace.Record(H, id=1, source="s")], sampler=Returns(draw)))


def test_a_sampler_may_run_out() -> None:
    def draw(wants: Sequence[Want]) -> list[Draws]:
        return [Draws(["a b"] * min(want.count, 3)) for want in wants]

    assert mbrace.decode(H, ["a b"] * 3).text == "a b"
    (answer,) = mbrace.decode_corpus([mbrace.Record(H, id=0, source="s")], sampler=Returns(draw))
    assert (answer.text, answer.pseudo_references) == ("a b", 3)


def test_a_disk_that_fills_up_in_an_experiment_is_one_line(tmp_path: Path, candidates: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "experiment", candidates, "-o", tmp_path / "out", "--no-report", "--limit", "3", "--workers", "1"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700)),
        capture_output=True,
    )
    assert done.returncode == 2
    assert b"File too large" in done.stderr
    assert b"Traceback" not in done.stderr


ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e"


def shows_no_control(text: str) -> bool:
    return not any(character in text for character in "\x1b\x07\x9b\u202e")


def test_terminal_escapes_of_others_are_made_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"a{ESCAPES}.jsonl"
    row = {"id": f"x{ESCAPES}", "hypotheses": ["a", f"b{ESCAPES}"], "source": ESCAPES}
    Path(name).write_text(json.dumps(row) + "\n")
    Path("h.txt").write_text("a\nb\n")
    Path(f"r{ESCAPES}.txt").write_text("a\nc\n")
    for command, status in (
        (["decode", f"no{ESCAPES}"], 2),
        (["decode", f"no{ESCAPES}", "--log-level", "debug"], 2),
        (["decode", name, "--explain", "y"], 2),
        (["decode", name, "--explain", row["id"]], 0),
        (["decode", name, "-o", f"{ESCAPES}/out.jsonl"], 2),
        (["decode", name, f"--{ESCAPES}"], 2),
        (["compare", "h.txt", f"r{ESCAPES}.txt", "--reference", f"r{ESCAPES}.txt"], 0),
        (["export", name], 2),
    ):
        assert main(command) == status, command
        printed = capsys.readouterr()
        assert shows_no_control(printed.out + printed.err), command
        assert "x1b" in printed.out + printed.err or status == 0


class WarningOfTwo(UserWarning):
    """A warning of somebody's that is not made of a message alone."""

    def __init__(self, message: str, more: str) -> None:
        super().__init__(message, more)


def test_messages_of_servers_and_warnings_are_made_visible_and_take_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from mbrace.cli.messages import log, plain_messages, print_error
    from mbrace.errors import ServiceError, warn

    print_error(ServiceError(f"http://host: status 500: {ESCAPES}\n  File fake.py"))
    with plain_messages("info"):
        log.warning("the server said %s", ESCAPES)
        warn(f"record {ESCAPES}")
        warnings.warn(ESCAPES, stacklevel=1)
        warnings.warn(WarningOfTwo(ESCAPES, "more"), stacklevel=1)
    told = capsys.readouterr().err
    assert shows_no_control(told)
    assert told.count("\\x1b") >= 5
    assert told.splitlines()[0].endswith("\\n  File fake.py")


def test_the_command_line_prints_through_one_function() -> None:
    for path in (Path(mbrace.__file__).parent / "cli").glob("*.py"):
        calls = re.findall(r"(?<![\w.])print\(.*", path.read_text(encoding="utf-8"))
        allowed = {"messages.py": 2, "__init__.py": 1}
        assert len(calls) <= allowed.get(path.name, 0), (path, calls)


def test_a_terminal_of_ascii_alone_shows_other_characters_as_escapes(tmp_path: Path) -> None:
    row = {"id": 1, "source": "Käse", "hypotheses": ["Gruyère 奶酪", "b \ud800"], "pseudo_references": ["Gruyère"]}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "é.txt").write_text("é\n", encoding="utf-8")
    ascii_alone = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "COLUMNS": "80"}
    for words in (
        ["decode", tmp_path / "in.jsonl", "--explain", "1"],
        ["compare", tmp_path / "é.txt", tmp_path / "é.txt", "--reference", tmp_path / "é.txt"],
        ["demo", "--sentences", "2"],
    ):
        done = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, env=ascii_alone)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
        assert done.stdout.isascii()


@pytest.mark.parametrize("module", ["mbrace.cli.entry", "mbrace.cli.parser", "mbrace.cli.decode", "mbrace.jobs.decode"])
def test_ctrl_c_while_modules_are_imported_is_one_line(module: str) -> None:
    code = f"""
import sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from mbrace.cli import main
sys.exit(main(["decode", "x.jsonl"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "mbrace: interrupted\n")


def test_ctrl_c_that_a_module_in_c_turns_into_another_error_is_one_line() -> None:
    code = """
import signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == "mbrace.jobs.decode":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("PyCapsule_Import could not import module") from None
sys.meta_path.insert(0, Interrupts())
from mbrace.cli import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code, "decode", "x.jsonl"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "mbrace: interrupted\n")
