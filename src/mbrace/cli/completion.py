"""`mbrace completion`: a script that lets a shell complete commands and options."""

from __future__ import annotations

import argparse
from typing import Any

from mbrace.errors import require

SHELLS = ("bash", "zsh", "tcsh")


def add(commands: Any) -> None:
    """The options of `mbrace completion`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script that lets a shell complete commands and options",
        description="For bash: mbrace completion bash > ~/.local/share/bash-completion/completions/mbrace; for zsh: "
        "mbrace completion zsh > _mbrace, in a folder of $fpath. A new shell then completes commands, options, their "
        "choices and file names.",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    shtab = require("shtab", extra="completion")
    from mbrace.cli.parser import make_parser, parsers_by_command

    parser = make_parser()
    for command in parsers_by_command(parser).values():
        for action in command._actions:
            kind = _kind(action)
            if kind is not None:
                action.complete = shtab.FILE if kind == "file" else shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0


def _kind(action: argparse.Action) -> str | None:
    """Whether a value is the name of a file or of a folder, as its placeholder says."""
    shown = action.metavar if isinstance(action.metavar, str) else ""
    if shown in ("DIR", "PATH_OR_NAME", "M", "MODEL"):
        return "directory"
    is_file = shown in ("FILE", "DB", "OUT", "A", "B", "R", "S", "SYSTEM") or "." in shown
    return "file" if is_file or (not action.option_strings and not shown and action.choices is None) else None
