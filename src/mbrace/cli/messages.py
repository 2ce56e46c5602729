"""What the command line prints on stderr, by --log-level: errors, warnings, what a run did, and its progress."""

from __future__ import annotations

import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mbrace.errors import MbraceWarning

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# Parameters that messages of the library name as in `force=True`.
PARAMETERS = (
    "cache chat force forecast format gpus_per_worker layer min_gap nbest num_candidates num_references on_error out "
    "prune public_url resume retry_errors save_utilities schedule seed select shard_size sources text utilities workers"
)
PARAMETER = re.compile(rf'(?<![\w/.-])({PARAMETERS.replace(" ", "|")})=("?)([^\s",;:)]+)\2|^(spm)(?=: )')
# Parameters that messages begin with, as in `alpha 2: must be between 0 and 1` and `system: only valid with chat=True`.
FIRST_WORDS = (
    "aggregates alpha beta bootstraps budget centroids diversity exclude_self format "
    "fraction min_gap nbest pool prompt qe rank regret schedule select system threads top utilities window"
)
FIRST_WORD = re.compile(rf"^({FIRST_WORDS.replace(' ', '|')})(?= [^:]+: |: only valid )")
# Parameters that other ones depend on, as in `diversity: only valid with nbest`.
OTHER_WORD = re.compile(r"\b(only valid with|only valid without|at least) (method|nbest|pool)\b")
# Classes of the library that a message recommends, and what loads them here.
CLASSES = {
    "mbrace.Comet": "--utility comet",
    "mbrace.Unified": "--utility unified",
    "mbrace.Referenceless": "`mbrace rerank --qe`",
}
log = logging.getLogger("mbrace")


def say(message: str) -> None:
    """Print what a run did, unless --log-level hides it."""
    log.info(message)


def shows_progress() -> bool:
    """Whether --log-level lets a run show its progress."""
    return log.isEnabledFor(logging.INFO)


def print_error(error: Exception, message: str | None = None) -> None:
    """Print one line for an error; with --log-level debug, a traceback before it."""
    if log.isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)
    print(f"mbrace: error: {as_options(str(error)) if message is None else message}", file=sys.stderr)


def as_options(message: str) -> str:
    """A library message that names parameters, in the words of the command line: force=True is --force."""

    def option(found: re.Match[str]) -> str:
        if found[4]:
            return f"--{found[4]}"
        if found[1] == "layer":
            return f"--utility-option {found[0]}"
        return f"{_flag(found[1])} {'none' if found[3] == 'None' else found[3]}".removesuffix(" True")

    for class_name, options in CLASSES.items():
        message = re.sub(rf"{re.escape(class_name)}\b", options, message)
    message = FIRST_WORD.sub(lambda found: _flag(found[1]), OTHER_WORD.sub(r"\1 --\2", message))
    return PARAMETER.sub(option, message)


def _flag(parameter: str) -> str:
    return "-o" if parameter == "out" else f"--{parameter.replace('_', '-')}"


class _LinesOnStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        print(text if text.startswith("mbrace: ") else f"mbrace: {text}", file=sys.stderr)


@contextmanager
def plain_messages(level: str) -> Iterator[None]:
    """In this block, each log message and warning of the library is printed as one line, from `level` on."""
    handler = _LinesOnStderr()
    propagated, level_before = log.propagate, log.level
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(LEVELS[level])
    try:
        with warnings.catch_warnings():
            others = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
                if issubclass(category, MbraceWarning):
                    log.warning("mbrace: warning: %s", as_options(str(message)))
                elif log.isEnabledFor(logging.WARNING):
                    others(message, category, filename, *rest)

            warnings.showwarning = show  # type: ignore[assignment]
            yield
    finally:
        log.propagate = propagated
        log.setLevel(level_before)
        log.removeHandler(handler)
