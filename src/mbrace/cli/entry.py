"""How a command is run: standard streams, the parser, messages, and exit statuses."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence

from mbrace.cli.messages import plain_messages, print_error, tell
from mbrace.cli.parser import make_parser, parsers_by_command
from mbrace.errors import ServiceError, UserError


def run_command(arguments: Sequence[str] | None) -> int:
    """Run a command with these arguments, or those of the process; the exit status."""
    # OpenMP's threads spin while they wait for each other, unless told otherwise before torch is loaded. On a busy
    # machine they would keep the thread that they wait for off its core: minutes instead of seconds.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if arguments is None:
        _reserve_standard_streams()
        for stream in (sys.stdout, sys.stderr):  # an ASCII terminal shows other characters as escapes
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
    _silence_progress_bars()
    words = list(sys.argv[1:] if arguments is None else arguments)
    return _status_of(lambda: _run(words))


def _reserve_standard_streams() -> None:
    """Where a standard stream is closed (`>&-`), give its number to the null device: else the next file opened, which
    may be the output, would get it, and with it whatever any library prints."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            if name != "stdin":  # writing to stdout fails, so that no answer is lost silently
                setattr(sys, name, open(number, "w" if name == "stderr" else "r", encoding="utf-8"))  # noqa: SIM115


def _run(arguments: list[str]) -> int:
    """Run a command; the exit status."""
    if not arguments:
        make_parser().print_help()
        return 0
    parser = make_parser(arguments[0])
    if any(word.partition("=")[0] == "--config" for word in arguments):
        from mbrace.cli.config import use_config

        use_config(parser, arguments)
    args = parser.parse_args(arguments)
    args.arguments = arguments
    with plain_messages(args.log_level, parsers_by_command(parser)[args.command]._option_string_actions):
        return _status_of(lambda: args.run(args))


def _status_of(run: Callable[[], int]) -> int:
    """Run a function; returns its exit status. If it fails, one line on stderr says why."""
    try:
        status = run()
        sys.stdout.flush()
        return status
    except UserError as error:
        print_error(error)
        return 3 if isinstance(error, ServiceError) else 2
    except BrokenPipeError:  # the reader of our output has stopped (`| head`): not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # most likely a full disk, where no other message says what is kept
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "free disk space and run again" if full else "give a file or a folder that can be read and written"
        print_error(error, f"{error.filename or 'a file or standard output'}: {error.strerror or error}; {remedy}")
        return 2
    except KeyboardInterrupt:
        tell("mbrace: interrupted")
        return 130


def _silence_progress_bars() -> None:
    """Turn off the progress bars of other libraries where there is no terminal: they would fill a log."""
    if not sys.stderr.isatty():
        for variable in ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"):
            os.environ.setdefault(variable, "1")
