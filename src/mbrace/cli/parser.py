"""The parsers of all commands, and the options that every command has."""

from __future__ import annotations

import argparse
import importlib
import itertools
from typing import Any, NoReturn

from mbrace.cli.messages import LEVELS
from mbrace.errors import LARGEST, UserError
from mbrace.removed import REMOVED

COMMANDS = (
    "decode",
    "rerank",
    "score",
    "demo",
    "generate",
    "translate",
    "answer",
    "serve",
    "train",
    "train_metric",
    "export",
    "experiment",
    "compare",
    "judge",
    "judge_results",
    "doctor",
    "completion",
)


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, like every other error, and takes only the full names of options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.register("type", int, _whole)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse options that were removed with a sentence of their own."""
        if self._subparsers is None:  # a command
            words = itertools.takewhile(lambda word: word != "--", args or ())
            flags = [flag for flag in (word.partition("=")[0] for word in words) if flag[:2] == "--"]
            unknown = [flag for flag in flags if flag not in self._option_string_actions]
            for flag in unknown:
                name = flag[2:].replace("-", "_")
                if name in REMOVED:
                    raise UserError(f"{flag}: {REMOVED[name]}")
        return super().parse_known_args(args, namespace)

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


class _Cite(argparse.Action):
    """Prints what to cite, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print the entries and exit."""
        from mbrace.cli.cite import bibtex

        print(bibtex())
        parser.exit()


def make_parser(command: str | None = None) -> Parser:
    """The parser of `command`, or of all commands if it is not one: importing all takes longer than a small run.

    With `--version` or `--cite` as `command`, no command is imported.
    """
    from mbrace import __version__

    parser = Parser(prog="mbrace", description="Minimum Bayes risk decoding that races (Cheng & Vlachos, EMNLP 2023).")
    parser.add_argument("--version", action="version", version=f"mbrace {__version__}")
    parser.add_argument(
        "--cite", action=_Cite, nargs=0, default=argparse.SUPPRESS, help="print what to cite, as BibTeX, and exit"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    wanted = [name for name in COMMANDS if name.replace("_", "-") == command] or COMMANDS
    for name in () if command in ("--version", "--cite") else wanted:
        importlib.import_module(f"mbrace.cli.{name}").add(commands)
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
        "--log-level",
        choices=list(LEVELS),
        help="what is printed on stderr: error; warning; info (default): also progress and what a run did; debug: "
        "also tracebacks of errors",
    )
    group.add_argument("--quiet", action="store_true", help="print only errors, like --log-level error")
