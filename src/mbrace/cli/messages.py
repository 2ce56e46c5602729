"""What the command line prints on stderr, by --log-level: errors, warnings, what a run did, and its progress."""

from __future__ import annotations

import logging
import sys
import textwrap
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mbrace.errors import MbraceWarning, SettingError, UserError, spelled, visible

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# The flags of parameters that have other names
FLAGS = {
    "out": "-o",
    "n": "-n",
    "shuffle": "--no-shuffle",
    "method_options": "--method-option",
    "server_options": "--server-option",
}
YES_NO = {"True": "yes", "False": "no"}  # as options of methods, utilities and servers are given
NETWORK = {"model": "--metric-model"}  # flags of a utility's network that have other names
log = logging.getLogger("mbrace")
_flags: Collection[str] = ()  # of the command that runs; none: all are known


def show(text: object = "") -> None:
    """Print on stdout, with control characters as escapes."""
    print(visible(str(text)))


def show_labelled(rows: Sequence[tuple[str, str]]) -> None:
    """Print texts next to their labels on stdout, in lines of at most 80 characters where words allow it."""
    width = max(len(label) for label, _ in rows) + 2
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * width}
    for label, text in rows:
        show(textwrap.fill(text, 80, initial_indent=f"{label:<{width}}", **how).rstrip())


def tell(line: str, end: str = "\n") -> None:
    """Print a line on stderr; it is lost where stderr cannot be written, such as a log on a full disk."""
    with suppress(OSError):
        print(line, file=sys.stderr, end=end, flush=True)


def say(message: str) -> None:
    """Print what a run did, unless --log-level hides it."""
    log.info(message)


def shows_progress() -> bool:
    """Whether --log-level lets a run show its progress."""
    return log.isEnabledFor(logging.INFO)


def print_error(error: Exception, message: str | None = None) -> None:
    """Print one line for an error; with --log-level debug, a traceback before it."""
    if log.isEnabledFor(logging.DEBUG):
        tell(visible("".join(traceback.format_exception(error))), "")
    if message is None:
        message = in_flags(error) if isinstance(error, UserError) else str(error)
    line = visible(message).replace("\n", "\\n")
    tell(f"mbrace: error: {line}")


def in_flags(error: UserError) -> str:
    """The message of an error, with its parameters spelled as options: `force=True` is `--force`."""
    if isinstance(error, SettingError):
        value = "" if error.value is ... or error.value is True else str(error.value)
        subject = flag(error.parameter, value, error.group, joined=" ")
        return f"{subject}: {spelled(error.reason, flag)}"
    return spelled(error.message, flag)


def flag(name: str, value: str = "", group: str = "", *, joined: str = "=") -> str:
    """A parameter as it is given on the command line; one that the command does not have keeps its name."""
    value = value.strip('"')
    if group and group != "network":
        return f"--{group}-option {name}" + (f"={YES_NO.get(value, value)}" if value else "")
    found = NETWORK.get(name) if group == "network" else FLAGS.get(name)
    found = found or f"--{name.replace('_', '-')}"
    if value == "False" and (not _flags or found in _flags) and not found.startswith("--no-"):
        return f"--no-{found[2:]}"
    if _flags and found not in _flags:
        return name + (f"{joined}{value}" if value else "")
    return (
        found if value in ("", "True") or found == "--no-shuffle" else f"{found} {'none' if value == 'None' else value}"
    )


class _LinesOnStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = visible(record.getMessage())
        tell(text if text.startswith("mbrace: ") else f"mbrace: {text}")


@contextmanager
def plain_messages(level: str, flags: Collection[str] = ()) -> Iterator[None]:
    """In this block, each log message and warning of the library is printed as one line, from `level` on, and a
    parameter that is one of the command's `flags` is spelled so."""
    global _flags
    handler = _LinesOnStderr()
    before = log.propagate, log.level, _flags
    log.addHandler(handler)
    log.propagate, _flags = False, flags
    log.setLevel(LEVELS[level])
    try:
        with warnings.catch_warnings():
            others = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
                if isinstance(message, MbraceWarning):
                    log.warning("mbrace: warning: %s", spelled(message.args[0], flag))
                elif log.isEnabledFor(logging.WARNING):
                    others(visible(str(message)), category, filename, *rest)

            warnings.showwarning = show  # type: ignore[assignment]
            yield
    finally:
        log.propagate, level_before, _flags = before
        log.setLevel(level_before)
        log.removeHandler(handler)
