"""The command line. Each command is a module here with `add` (its options) and `run` (one call of the library)."""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from mbrace.errors import MbraceWarning, ServiceError, UserError

COMMANDS = (
    "decode",
    "rerank",
    "score",
    "demo",
    "generate",
    "translate",
    "train",
    "train_metric",
    "experiment",
    "compare",
    "judge",
    "judge_results",
)
# Parameters of the library, as its messages name them; out is the only one whose option has another name.
PARAMETERS = (
    "cache force gpus_per_worker num_candidates num_references on_error out public_url resume retry_errors "
    "save_utilities schedule seed shard_size text workers"
)
PARAMETER = re.compile(rf'(?<![\w/.-])({PARAMETERS.replace(" ", "|")})=("?)([^\s",;:)]+)\2|^(spm)(?=: )')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mbrace COMMAND ...`; a user's mistake is one line on stderr and status 2, a server's failure status 3."""
    # OpenMP's threads spin while they wait for each other, unless told otherwise before torch is loaded. On a busy
    # machine they would keep the one that they wait for off its core: minutes instead of seconds.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _silence_other_bars()
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        args = _parser(given[0] if given else None).parse_args(given)
        with _plain_warnings(), _plain_log():
            status: int = args.run(args)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"mbrace: error: {_as_options(str(error))}", file=sys.stderr)
        return 3 if isinstance(error, ServiceError) else 2
    except BrokenPipeError:  # the reader of our output has stopped (`| head`): not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a full disk, most likely, where nothing nearer says what is kept
        remedy = "make room and run again" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "see there"
        print(
            f"mbrace: error: {error.filename or 'a file or standard output'}: {error.strerror or error}; {remedy}",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("mbrace: interrupted", file=sys.stderr)
        return 130


def _silence_other_bars() -> None:
    """Without a terminal, progress bars of other libraries fill a log with lines of no use."""
    if not sys.stderr.isatty():
        for variable in ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"):
            os.environ.setdefault(variable, "1")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print our own warnings as one line, without file name and line of code."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
            if issubclass(category, MbraceWarning):
                print(f"mbrace: warning: {_as_options(str(message))}", file=sys.stderr)
            else:
                others(message, category, filename, *rest)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


class _LinesOnStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(f"mbrace: {record.getMessage()}", file=sys.stderr)


@contextmanager
def _plain_log() -> Iterator[None]:
    """Print what the library logs as one line each."""
    log, handler = logging.getLogger("mbrace"), _LinesOnStderr()
    log.addHandler(handler)
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.propagate = before
        log.removeHandler(handler)


def _as_options(message: str) -> str:
    """A library message that names parameters, in the words of the command line: force=True is --force."""

    def option(found: re.Match[str]) -> str:
        if found[4]:
            return f"--{found[4]}"
        name = "-o" if found[1] == "out" else f"--{found[1].replace('_', '-')}"
        return f"{name} {found[3]}".removesuffix(" True")

    return PARAMETER.sub(option, message)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # one line, like every other error
        raise UserError(f"{message}; see {self.prog} --help")


def _parser(command: str | None = None) -> argparse.ArgumentParser:
    """The options of `command`, or of all where it is none: to import all of them takes longer than a small run."""
    parser = _Parser(prog="mbrace", description="Minimum Bayes risk decoding that races (Cheng & Vlachos, EMNLP 2023).")
    parser.add_argument("--version", action="version", version=f"mbrace {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wanted = [name for name in COMMANDS if name.replace("_", "-") == command] or COMMANDS
    for name in wanted:
        importlib.import_module(f"mbrace.cli.{name}").add(commands)
    return parser


def _version() -> str:
    from mbrace import __version__

    return __version__
