"""The command line. Each command is a module here with `add` (its options) and `run` (one call of the library)."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mbrace COMMAND ...`; a user's mistake is one line on stderr and status 2, a server's failure status 3."""
    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    try:
        if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        from mbrace.cli.entry import run_command  # here, since Ctrl-C may come while it is imported

        return run_command(arguments)
    except (KeyboardInterrupt, Exception) as error:  # modules in C make another error of an interrupt
        if not (interrupts or isinstance(error, KeyboardInterrupt)):
            raise
        print("mbrace: interrupted", file=sys.stderr)
        return 130
