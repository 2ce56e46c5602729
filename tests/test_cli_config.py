"""`--config` and `--log-level`, which every command has."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import decode, lines

from mbrace.cli import main
from mbrace.cli.config import LEFT_OUT, TRUSTED, given_options, use_config
from mbrace.cli.parser import make_parser, parsers_by_command


def parsed(arguments: list[str]) -> dict[str, Any]:
    parser = make_parser(arguments[0])
    use_config(parser, arguments)
    return vars(parser.parse_args(arguments))


def test_every_command_has_the_general_options() -> None:
    commands = parsers_by_command(make_parser())
    assert " ".join(commands) == (
        "decode rerank score demo generate translate answer serve train train-metric export experiment compare judge "
        "judge-results mbrs-decode comet-mbr doctor"
    )
    for parser in commands.values():
        assert {"--config", "--log-level"} <= set(parser._option_string_actions)


YAML = """
candidates: [part-1.jsonl, part-2.jsonl]
output: out.jsonl
alpha: 0.9
schedule: [8, 16]
cover: true
no-shuffle: false
utility: bleu
utility-option: {tokenize: char, order: 2}
window: 3
"""
TOML = """
candidates = ["part-1.jsonl", "part-2.jsonl"]
output = "out.jsonl"
alpha = 0.9
schedule = "8,16"
cover = true
utility = "bleu"
utility_option = ["tokenize=char", "order=2"]
window = 3
"""
JSON = json.dumps({
    "candidates": ["part-1.jsonl", "part-2.jsonl"], "output": "out.jsonl", "alpha": 0.9, "schedule": [8, 16],
    "cover": True, "utility": "bleu", "utility-option": ["tokenize=char", "order=2"], "window": 3, "regret": None,
})  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [("run.yaml", YAML), ("run.toml", TOML), ("run.json", JSON)])
def test_a_file_gives_the_options_that_would_be_typed(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    typed = (
        "part-1.jsonl part-2.jsonl -o out.jsonl --alpha 0.9 --schedule 8,16 --cover --utility bleu "
        "--utility-option tokenize=char --utility-option order=2 --window 3"
    )
    trusted = ["--config", str(path), "--trust-config"]
    found = parsed(["decode", *trusted])
    assert found == {**parsed(["decode", *typed.split()]), "config": str(path), "trust_config": True}


def test_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(JSON)
    words = f"decode other.jsonl --config {path} --alpha 0.5 --utility-option order=4 --schedule all -o -".split()
    found = parsed(words)
    assert found["candidates"] == ["other.jsonl"]
    assert (found["alpha"], found["schedule"], found["output"]) == (0.5, "all", "-")
    assert found["utility_option"] == ["order=4"]
    assert (found["cover"], found["window"]) == (True, 3)  # the file's


def test_options_that_are_required_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"train": ["a.de", "a.en"], "valid": ["v.tsv"], "output": "model", "steps": 5}))
    found = parsed(["train", "--config", str(path), "--trust-config", "--seed", "3"])
    assert (found["train"], found["valid"], found["output"]) == (["a.de", "a.en"], ["v.tsv"], "model")
    path.write_text(json.dumps({"b": "b.jsonl", "a": "a.jsonl", "source": "s.txt", "output": "r.db", "items": 5}))
    found = parsed(["judge", "--config", str(path), "--trust-config"])
    assert (found["a"], found["b"], found["items"]) == ("a.jsonl", "b.jsonl", 5)
    path.write_text(json.dumps({"report-only": ["one", "two"], "output": "out"}))
    found = parsed(["experiment", "--config", str(path), "--trust-config", "x.jsonl"])
    assert (found["report_only"], found["candidates"]) == (["one", "two"], ["x.jsonl"])
    path.write_text(json.dumps({"num_candidates": 4, "hypotheses": "h.txt"}))
    assert parsed(["mbrs-decode", "--config", str(path)])["num_candidates"] == 4
    path.write_text(json.dumps({"ray": True, "output": "out"}))
    found = parsed(["decode", "--config", str(path), "--trust-config", "x.jsonl"])
    assert (found["ray"], found["candidates"]) == ("local", ["x.jsonl"])


DANGEROUS: dict[str, tuple[str, dict[str, Any]]] = {
    "output": ("decode", {"output": "old.jsonl"}),
    "force": ("decode", {"force": True}),
    "a function": ("decode", {"utility": "evil.py:run"}),
    "a function in a mixture": ("decode", {"utility": "chrf++:0.5+evil.py:run:0.5"}),
    "metric-model": ("decode", {"utility": "comet", "metric-model": "evil"}),
    "save-utilities": ("decode", {"save-utilities": "folder"}),
    "ray": ("decode", {"ray": "ray://host:1"}),
    "a judge's server": ("decode", {"utility-option": {"url": "http://host"}}),
    "a judge's file": ("decode", {"utility-option": ["answers=old.jsonl"]}),
    "a model in a mixture": ("decode", {"utility-option": ["comet.model=evil"]}),
    "a tokenizer": ("decode", {"utility": "metricx", "utility-option": {"tokenizer": "evil"}}),
    "a file to a judge": ("decode", {"utility-option": "prompt=@secret"}),
    "server": ("translate", {"server": "http://host"}),
    "model": ("translate", {"model": "evil"}),
    "qe": ("rerank", {"qe": "evil"}),
    "a file called 0": ("decode", {"output": 0}),
    "a folder called 0": ("decode", {"save-utilities": 0.0}),
    "a model called 0": ("decode", {"utility": "comet", "metric-model": 0}),
    "an address called 0": ("serve", {"host": 0}),
}


@pytest.mark.parametrize("name", DANGEROUS)
def test_a_file_of_somebody_else_writes_nothing_runs_nothing_and_sends_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, options = DANGEROUS[name]
    monkeypatch.chdir(tmp_path)
    Path("old.jsonl").write_text("mine\n")
    Path("evil.py").write_text("open('ran', 'w')\ndef run(hypothesis, reference): return 0.0\n")
    Path("in.jsonl").write_text('{"hypotheses": ["a", "b"]}\n')
    Path("options.json").write_text(json.dumps(options))
    candidates = ["in.jsonl"] if command == "decode" else []
    assert main([command, *candidates, "--config", "options.json"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mbrace: error: options.json: ")
    assert "--trust-config" in error
    assert {path.name for path in Path().iterdir()} == {"old.jsonl", "evil.py", "in.jsonl", "options.json"}
    assert Path("old.jsonl").read_text() == "mine\n"


def test_a_file_of_somebody_else_names_no_file_but_those_that_are_read_as_data() -> None:
    kinds = {"FILE", "DIR", "OUT", "OUT.jsonl", "DB", "URL", "ADDRESS", "MODEL", "M", "PATH_OR_NAME"}
    named = {
        action.dest
        for parser in parsers_by_command(make_parser()).values()
        for action in parser._actions
        if action.metavar in kinds and action.help != argparse.SUPPRESS and action.dest not in LEFT_OUT
    }
    inputs = {"instructions", "num_references", "minutes", "ratings", "reference_lprobs", "references", "report_only"}
    inputs |= {"source", "sources", "train", "translations", "valid"}
    assert named - set(TRUSTED) == inputs


def test_a_value_is_never_read_as_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"candidates": ["--output=old.jsonl", "--force"]}))
    assert main(["decode", "--config", str(path)]) == 2
    assert "--output=old.jsonl: No such file" in capsys.readouterr().err


def test_a_trusted_file_says_everything_and_no_file_trusts_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"hypotheses": ["a", "b"]}\n')
    Path("options.json").write_text(json.dumps({"output": "out.jsonl"}))
    assert main(["decode", "in.jsonl", "--config", "options.json", "--trust-config"]) == 0
    assert Path("out.jsonl").exists()
    Path("options.json").write_text(json.dumps({"trust-config": True, "output": "other.jsonl"}))
    assert main(["decode", "in.jsonl", "--config", "options.json"]) == 2
    assert "trust-config: no option of mbrace decode" in capsys.readouterr().err


def test_what_a_run_was_told_is_kept_beside_its_output_and_repeats_it(tmp_path: Path, small_rows: list[Any]) -> None:
    source, out, again = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    source.write_bytes(lines(small_rows[:20]))
    settings = tmp_path / "run.toml"
    settings.write_text('alpha = 0.8\nutility = "chrf"\n')
    assert decode(source, "-o", out, "--config", settings, "--seed", "5", "--nbest", "2") == 0
    kept = json.loads((tmp_path / "out.jsonl.run.json").read_bytes())
    assert kept["options"] == {"candidates": [str(source)], "alpha": 0.8, "utility": "chrf", "seed": 5, "nbest": 2}
    assert decode("--config", tmp_path / "out.jsonl.run.json", "-o", again) == 0
    assert again.read_bytes() == out.read_bytes()
    other = tmp_path / "other.jsonl"
    assert decode(source, "-o", other, "--nbest", "2") == 0
    assert other.read_bytes() != out.read_bytes()
    assert decode("--config", tmp_path / "out.jsonl.run.json", "-o", out, "--resume") == 0


def test_no_credentials_are_kept(tmp_path: Path) -> None:
    url = "https://user:secret@host/v1?key=hidden"
    words = ["generate", "s.txt", "-o", "o", "--server", url, "--model", "m"]
    found = given_options(make_parser("generate").parse_args(words))
    assert found == {"sources": "s.txt", "server": "https://***@host/v1?key=***", "model": "m"}


LEVELS_TOLD = {
    "": ["warning", "sentences in"],
    "--log-level debug": ["warning", "sentences in"],
    "--log-level info": ["warning", "sentences in"],
    "--log-level warning": ["warning"],
    "--log-level error": [],
}


@pytest.mark.parametrize("level", LEVELS_TOLD)
def test_the_level_says_what_is_printed(level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"hypotheses": ["a", "b"], "pseudo_references": ["a"] * 300}] * 2
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    for options, words in ((level, LEVELS_TOLD[level]), ("", LEVELS_TOLD[""])):  # not that of the next run
        assert decode(tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--force", *options.split()) == 0
        told = capsys.readouterr().err
        assert [word for word in ("warning", "sentences in") if word in told] == words


def test_errors_are_always_printed_and_debug_says_where_they_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", "no.jsonl", "--log-level", "error"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["decode", "no.jsonl", "--log-level", "debug"]) == 2
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.splitlines()[-1].startswith("mbrace: error: no.jsonl: No such file or directory")
