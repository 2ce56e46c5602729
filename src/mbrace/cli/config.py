"""`--config FILE`: options of a command from a file, by their names on the command line."""

from __future__ import annotations

import argparse
import json
import os
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mbrace.cli.parser import make_parser, parsers_by_command
from mbrace.errors import UserError, require
from mbrace.setting_fields import nearest, removal

OPTIONAL: dict[Any, str] = {None: "?", "+": "*"}  # how often an argument may come that was required
OPTIONS = "options"  # where OUT.run.json keeps them
COMMA_SEPARATED = ("schedule", "hold_out")  # options of several values in one word
LEFT_OUT = ("config", "trust_config", "help")  # options that a file cannot have
# What writes a file, runs code, loads a model, or decides who gets a text or a key: only a trusted file says it.
TRUSTED = (
    *("output", "force", "report", "save_utilities", "save_draws", "json", "save", "ray"),
    *("server", "model", "metric_model", "qe", "encoder", "spm", "initial", "model_storage_path"),
    *("host", "public_host", "public_url", "allow_utility"),
)
TRUSTED_OPTIONS = ("url", "answers", "model", "tokenizer", "prompt")  # of utilities: servers, files, models
# Not saved in OUT.run.json: what must be given again, or is not needed, to repeat a run.
NOT_KEPT = (*LEFT_OUT, "output", "save_utilities", "resume", "force", "log_level")


def use_config(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Make the options in the `--config` file the defaults of the command's parser: the command line wins."""
    words = list(arguments)[: list(arguments).index("--") if "--" in arguments else None]
    given = {word.partition("=")[0] if word.startswith("--") else word[:2] for word in words if word.startswith("-")}
    path = next((word.partition("=")[2] for word in words if word.startswith("--config=")), None)
    if path is None and "--config" in words[:-1]:
        path = words[words.index("--config") + 1]
    command = parsers_by_command(parser).get(words[0])
    if path is None or command is None:
        return  # the parser says what is wrong
    for action, value in read_options(path, words[0], command):
        if given.intersection(action.option_strings):
            continue
        if "--trust-config" not in given:
            _refuse_untrusted(action, value, path)
        try:
            default = _default(command, action, value, f"{path}: {_names(action)[0]}")
        except UserError:
            raise
        except (argparse.ArgumentError, ValueError) as error:  # Python writes no whole number of thousands of digits
            raise UserError(f"{path}: {error}") from None
        if default is not None:
            action.default, action.required = default, False
            if not action.option_strings:
                action.nargs = OPTIONAL.get(action.nargs, action.nargs)


def _refuse_untrusted(action: argparse.Action, value: Any, path: str) -> None:
    """Refuse what a file that somebody else wrote must not decide."""
    refused = action.dest in TRUSTED and value is not None and value is not False  # 0 == False, but is a value
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
    from mbrace.utilities.mixture import parts_of
    from mbrace.utilities.named import NAMED

    return any(part not in NAMED and ":" in part for part, _ in parts_of(utility))


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by the names that `--config` knows, without those about where the output goes."""

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(entry) for entry in value]
        if isinstance(value, str) and "://" in value:
            from mbrace.servers.http import hide_credentials

            return hide_credentials(value)
        return value

    parser = parsers_by_command(make_parser(args.command))[args.command]
    names = [action.dest for action in parser._actions if action.dest not in NOT_KEPT]
    found = {name: getattr(args, name) for name in names if getattr(args, name) != parser.get_default(name)}
    return {name.replace("_", "-"): shown(value) for name, value in found.items()}


def read_options(path: str, command: str, parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.Action, Any]]:
    """The options in a file: each option of the command with its value, which may be None."""
    values = _read(path)
    if isinstance(values, Mapping) and isinstance(values.get(OPTIONS), Mapping):  # OUT.run.json, a manifest
        _check_command(values.get("command"), command, path)
        values = values[OPTIONS]
    if not isinstance(values, Mapping):
        raise UserError(f"{path}: expected options by name, such as alpha: 0.9")
    known = {
        name.replace("_", "-"): action
        for action in parser._actions
        if action.dest not in LEFT_OUT and action.help != argparse.SUPPRESS
        for name in _names(action)
    }
    for name, value in values.items():
        if name == "command":
            _check_command(value, command, path)
            continue
        action = known.get(str(name).replace("_", "-"))
        removed = removal(str(name).replace("-", "_"), command)
        if action is None and removed is not None:
            raise UserError(f"{path}: {name}: {removed}")
        if action is None:
            near = nearest(str(name), known, help=f"mbrace {command} --help")
            raise UserError(f"{path}: {name}: no option of mbrace {command}{near}")
        yield action, value


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


def _default(parser: argparse.ArgumentParser, action: argparse.Action, value: Any, where: str) -> Any:
    """A value as the command line would give it; None if that is as if it were not given."""
    if action.nargs == 0 or isinstance(value, bool):  # a switch; or an option that needs no value
        if not isinstance(value, bool | None) or action.nargs not in (0, "?"):
            expected = "true or false" if action.nargs == 0 else "a value"
            raise UserError(f"{where}: expected {expected}, got {reprlib.repr(value)}")
        is_off = not value and not isinstance(action, argparse.BooleanOptionalAction)
        return None if is_off else value if action.nargs == 0 else action.const
    if isinstance(value, Mapping) and action.metavar == "NAME=VALUE":
        value = [f"{key}={_text(entry, where)}" for key, entry in value.items()]
    elif isinstance(value, list) and action.dest in COMMA_SEPARATED:
        value = ",".join(_text(entry, where) for entry in value)
    is_list = isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")
    entries = value if isinstance(value, list) and is_list else [value]
    found = []
    for entry in entries if value is not None else ():
        found.append(parser._get_value(action, _text(entry, where)))
        parser._check_value(action, found[-1])
    return found if is_list and found else found[0] if found else None


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: expected text or a number, got {reprlib.repr(value)}")
    return str(value)
