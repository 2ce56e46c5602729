"""`--config FILE`: options of a command from a file, by their names on the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mbrace.cli.parser import Parser, make_parser, parsers_by_command
from mbrace.errors import UserError, require
from mbrace.removed import REMOVED

OPTIONS = "options"  # where OUT.run.json keeps them
COMMA_SEPARATED = ("schedule", "hold_out")  # options of several values in one word
LEFT_OUT = ("config", "trust_config", "help")  # options that a file cannot have
# What writes a file, runs code, loads a model, or decides who gets a text or a key: only a trusted file says it.
TRUSTED = (
    *("output", "force", "save_utilities", "save_draws", "json", "cache", "save", "ray"),
    *("server", "model", "metric_model", "qe", "encoder", "spm", "host", "public_host", "public_url", "allow_utility"),
)
TRUSTED_OPTIONS = ("url", "answers", "model", "prompt")  # of utilities: servers, files, models
# Not saved in OUT.run.json: what must be given again, or is not needed, to repeat a run, and the notes in `given`.
NOT_KEPT = (
    *LEFT_OUT,
    "command",
    "output",
    "save_utilities",
    "resume",
    "force",
    "log_level",
    "quiet",
)


def with_config(arguments: Sequence[str]) -> list[str]:
    """The arguments, with those options of the `--config` file added that they do not have.

    Positional arguments all come from the command line, or all from the file.
    """
    given = vars(_made_lenient(make_parser(arguments[0])).parse_args(arguments))
    if given.get("config") is None:
        return list(arguments)
    command, path = given["command"], given["config"]
    parser = parsers_by_command(make_parser(command))[command]
    values = dict(read_options(path, command, parser))
    plain = [action for action in parser._actions if not action.option_strings]
    if any(action.dest in given for action in plain):
        values = {action: value for action, value in values.items() if action not in plain}
    words: dict[bool, list[str]] = {True: [], False: []}
    for action in sorted(values, key=lambda action: plain.index(action) if action in plain else len(plain)):
        if action.dest not in given:
            if not given.get("trust_config"):
                _refuse_untrusted(action, values[action], path)
            # an option that takes all words after it must come last
            is_open = bool(action.option_strings) and action.nargs in ("*", "+")
            words[is_open] += _words(action, values[action], path)
    _check_words([command, *words[False], *words[True]], path)
    return [arguments[0], *words[False], *arguments[1:], *words[True]]


def _refuse_untrusted(action: argparse.Action, value: Any, path: str) -> None:
    """Refuse what a file that somebody else wrote must not decide."""
    refused = action.dest in TRUSTED and value not in (None, False)
    shown = _names(action)[0]
    if action.dest == "utility" and isinstance(value, str):
        refused = _names_a_function(value)
    elif action.dest == "utility_option" and value is not None:
        options = value if isinstance(value, Mapping | list) else [value]
        keys = [str(option).partition("=")[0].rpartition(".")[2] for option in options]
        found = next((key for key in keys if key in TRUSTED_OPTIONS), None)
        refused, shown = found is not None, f"{shown} {found}"
    if refused:
        raise UserError(
            f"{path}: {shown}: is taken from the command line only, as it writes files, runs code or decides who gets "
            "your texts; give it there, or --trust-config if you trust this file"
        )


def _names_a_function(utility: str) -> bool:
    from mbrace.utilities.mixture import is_mixture, parse_mixture
    from mbrace.utilities.named import NAMED

    if is_mixture(utility):
        return any(_names_a_function(part) for part, _ in parse_mixture(utility))
    return utility not in NAMED and ":" in utility


def given_options(arguments: Sequence[str], parser: Parser) -> dict[str, Any]:
    """The options that were given, by the names that `--config` knows, without those about where the output goes.

    `parser` has parsed them before; it is changed here, and must not be used afterwards.
    """

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(entry) for entry in value]
        if isinstance(value, str) and "://" in value:
            from mbrace.servers.http import hide_credentials

            return hide_credentials(value)
        return value

    given = vars(_made_lenient(parser).parse_args(arguments))
    return {name.replace("_", "-"): shown(value) for name, value in given.items() if name not in NOT_KEPT}


def read_options(path: str, command: str, parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.Action, Any]]:
    """The options in a file: each option of the command with its value, which may be None."""
    values = _read(path)
    if isinstance(values, Mapping) and isinstance(values.get(OPTIONS), Mapping):  # OUT.run.json, a manifest
        _check_command(values.get("command"), command, path)
        values = values[OPTIONS]
    if not isinstance(values, Mapping):
        raise UserError(f"{path}: expected options by name, such as alpha: 0.9")
    known = {
        name: action
        for action in parser._actions
        if action.dest not in LEFT_OUT and action.help != argparse.SUPPRESS
        for name in _names(action)
    }
    for name, value in values.items():
        if name == "command":
            _check_command(value, command, path)
            continue
        action = known.get(str(name).replace("_", "-"))
        removed = REMOVED.get(str(name).replace("-", "_"))
        if action is None and removed is not None:
            raise UserError(f"{path}: {name}: {removed}")
        if action is None:
            raise UserError(f"{path}: {name}: no option of mbrace {command}{_nearest(str(name), known, command)}")
        yield action, value


def _nearest(name: str, known: Mapping[str, Any], command: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.replace("_", "-"), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else f"; see mbrace {command} --help"


def _check_command(found: Any, command: str, path: str) -> None:
    if found not in (None, command):
        raise UserError(f"{path}: options of mbrace {found}, not of mbrace {command}")


def _names(action: argparse.Action) -> list[str]:
    """The names of an option or a positional argument in a file."""
    return [name[2:] for name in action.option_strings if name.startswith("--")] or [action.dest.replace("_", "-")]


def _read(path: str) -> Any:
    suffix = os.path.splitext(path)[1].lower()  # pathlib would make every command start later
    if suffix not in (".yaml", ".yml", ".toml", ".json"):
        raise UserError(f"--config {path}: give a .yaml, .toml or .json file")
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"--config {path}: {reason}; give a file that can be read") from error
    try:
        if suffix == ".json":
            return json.loads(text)
        if suffix == ".toml":
            toml: Any = require("tomllib" if sys.version_info >= (3, 11) else "tomli", extra="config")
            return toml.loads(text)
        return require("yaml", extra="config").safe_load(text)
    except UserError:
        raise
    except Exception as error:  # each format's parser has errors of its own, which name the line
        kind = "YAML" if suffix == ".yml" else suffix[1:].upper()
        raise UserError(f"--config {path}: not {kind}: {' '.join(str(error).split())}") from error


def _words(action: argparse.Action, value: Any, path: str) -> list[str]:
    """An option as it would be typed."""
    name = _names(action)[0]
    option = next((text for text in action.option_strings if text.startswith("--")), None)
    if value is None:
        return []
    if action.nargs == 0 or isinstance(value, bool):
        if not isinstance(value, bool) or action.nargs not in (0, "?"):
            expected = "true or false" if action.nargs == 0 else "a value"
            raise UserError(f"{path}: {name}: expected {expected}, got {value!r}")
        if action.nargs == "?" and value:
            return [f"{option}={action.const}"]  # without a value it would take the next word
        return [option] if value and option else []
    values = value
    if isinstance(value, Mapping) and action.metavar == "NAME=VALUE":
        values = [f"{key}={_text(entry, name, path)}" for key, entry in value.items()]
    elif isinstance(value, list) and action.dest in COMMA_SEPARATED:
        values = ",".join(_text(entry, name, path) for entry in value)
    is_list = isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")
    if isinstance(values, list) and is_list:
        texts = [_text(entry, name, path) for entry in values]
    else:
        texts = [_text(values, name, path)]
    if option is not None and action.nargs not in ("*", "+"):
        return [f"{option}={text}" for text in texts]
    for text in texts:
        if text.startswith("-") and text != "-":  # it would be read as an option of its own
            raise UserError(f"{path}: {name}: {text}: begins like an option; write ./{text}")
    return texts if option is None else [option, *texts]


def _text(value: Any, name: str, path: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{path}: {name}: expected text or a number, got {value!r}")
    return str(value)


def _check_words(words: Sequence[str], path: str) -> None:
    """Refuse values that the command line would refuse, in a message with the file's name."""
    try:
        _made_lenient(make_parser(words[0])).parse_args(words)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _made_lenient(parser: Parser) -> Parser:
    """The parser, changed so that it requires nothing and sets no defaults: it returns only what was given."""
    for command in parsers_by_command(parser).values():
        command._defaults.clear()
        for action in command._actions:
            action.default = argparse.SUPPRESS
            if action.option_strings:
                action.required = False
            elif action.nargs in (None, "+"):
                action.nargs = "?" if action.nargs is None else "*"
    return parser
