"""The parsers of all commands, and the options that every command has."""

from __future__ import annotations

import argparse
import importlib
import itertools
from typing import Any, NoReturn

from mbrace.cli.messages import LEVELS
from mbrace.errors import LARGEST, UserError
from mbrace.setting_fields import nearest, removal

COMMANDS = {  # the module of each, and its function that adds the options
    "decode": ("decode", "add"),
    "rerank": ("decode", "add_rerank"),
    "score": ("evaluate", "add"),
    "demo": ("demo", "add"),
    "generate": ("generate", "add"),
    "translate": ("generate", "add_translate"),
    "answer": ("answer", "add"),
    "serve": ("answer", "add_serve"),
    "train": ("train", "add"),
    "train-metric": ("train", "add_metric"),
    "export": ("decode", "add_export"),
    "experiment": ("evaluate", "add_experiment"),
    "compare": ("evaluate", "add_compare"),
    "judge": ("judge", "add"),
    "judge-results": ("judge", "add_results"),
    "mbrs-decode": ("peers", "add_mbrs"),
    "comet-mbr": ("peers", "add_comet_mbr"),
    "doctor": ("doctor", "add"),
}


PEERS = ("--metric", "--decoder", "--selector")  # options of mbrs-decode; others of it have underscores


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, like every other error, and takes only the full names of options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.register("type", int, _whole)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options: those that were removed with a sentence of their own."""
        words = list(itertools.takewhile(lambda word: word != "--", args or ()))
        if self._subparsers is None:  # a command
            for flag in (word.partition("=")[0] for word in words if word[:2] == "--"):
                if flag not in self._option_string_actions:
                    name = flag[2:].replace("-", "_")
                    removed = removal(name, self.prog.rpartition(" ")[2])
                    raise UserError(f"{flag}: {removed or f'no such option{self._nearest(flag)}'}")
        elif words and words[0][:1] != "-" and words[0] not in COMMANDS:
            raise UserError(f"{words[0]}: no such command{nearest(words[0], COMMANDS, help='mbrace --help')}")
        found, extras = super().parse_known_args(args, namespace)
        if extras and self._subparsers is None:  # else the parser of all commands would point to its own help
            self.error(f"unrecognized arguments: {' '.join(extras)}")
        return found, extras

    def _nearest(self, flag: str) -> str:
        if self.prog.endswith(" decode") and ("_" in flag or flag.partition(".")[0] in PEERS):
            return "; mbrs's and COMET's own commands are `mbrace mbrs-decode` and `mbrace comet-mbr`"
        known = [name for name in self._option_string_actions if name[:2] == "--"]
        return nearest(flag, known, help=f"{self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Raise the message as a UserError."""
        raise UserError(f"{message}; see {self.prog} --help")


def _whole(text: str) -> int:
    """A whole number that fits into 64 bits."""
    value = int(text)
    if abs(value) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text}: must be {LARGEST:,} or less, and not below minus that")
    return value


def seed(text: str) -> int:
    """A seed: any whole number; what uses it may accept fewer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None


def make_parser(command: str | None = None) -> Parser:
    """The parser of `command`, or of all commands if it is not one: importing all takes longer than a small run.

    With `--version` as `command`, no command is imported.
    """
    from mbrace import __version__

    parser = Parser(prog="mbrace", description="Minimum Bayes risk decoding that races (Cheng & Vlachos, EMNLP 2023).")
    parser.add_argument("--version", action="version", version=f"mbrace {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    wanted = () if command == "--version" else [command] if command in COMMANDS else COMMANDS
    for name in wanted:
        module, add = COMMANDS[name]
        getattr(importlib.import_module(f"mbrace.cli.{module}"), add)(commands)
    for own in commands.choices.values():
        _add_general(own)
    return parser


def parsers_by_command(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("no commands")


def _add_general(parser: argparse.ArgumentParser) -> None:
    """The options of every command."""
    group = parser.add_argument_group("general")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="options by name from a .yaml, .toml or .json file, such as OUT.run.json; the command line wins",
    )
    group.add_argument(
        "--trust-config",
        action="store_true",
        help="let FILE also say what writes files, runs code, and which models and servers are used",
    )
    group.add_argument(
        "--log-level",
        choices=list(LEVELS),
        default="info",
        help="what is printed on stderr: error; warning; info (default): also progress and what a run did; debug: "
        "also tracebacks of errors",
    )
