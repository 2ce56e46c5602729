"""The command line. Each command is a module here with `add` (its options) and `run` (one call of the library)."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mbrace COMMAND ...`; a user's mistake is one line on stderr and status 2, a server's failure status 3."""
    try:
        from mbrace.cli.entry import run_command  # here, since Ctrl-C may come while it is imported

        return run_command(arguments)
    except KeyboardInterrupt:
        print("mbrace: interrupted", file=sys.stderr)
        return 130
