"""The names of the files that make up an output: OUT itself, and the files next to it."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from mbrace.errors import UserError
from mbrace.io.atomic import TEMPORARY
from mbrace.io.packing import packing_of
from mbrace.io.run_file import SUFFIX

EXISTS = "exists; use resume=True to continue it or force=True to replace it"


class OutputFiles(NamedTuple):
    """The names of an output's files, and what the name OUT says about how lines are written."""

    path: str

    @property
    def is_stream(self) -> bool:
        """Whether it is stdout (`-`), a pipe or a device such as /dev/null: it has no other files."""
        return self.path == "-" or _is_device(self.path)

    @property
    def is_parquet(self) -> bool:
        """Whether it is a Parquet file, which is made from its lines at the end."""
        return self.path.endswith(".parquet") and not self.is_stream

    @property
    def packing(self) -> str:
        """How lines are packed: "gz", "xz", "bz2", "zst", or "" for not at all."""
        return "" if self.is_stream else packing_of(self.path)

    @property
    def lines(self) -> str:
        """Where lines are written: OUT, or OUT.part while there is no Parquet file yet."""
        return self.path + ".part" if self.is_parquet else self.path

    @property
    def replacement(self) -> str:
        """Where lines are written that will replace those of an older run."""
        return os.path.realpath(self.lines) + TEMPORARY

    @property
    def errors(self) -> str:
        """The file of records set aside."""
        return errors_path(self.path)

    @property
    def run_file(self) -> str:
        """The file with the settings of the run."""
        return self.path + SUFFIX

    @property
    def exists(self) -> bool:
        """Whether there is an output, finished or not."""
        return os.path.exists(self.path) or os.path.exists(self.lines)

    @property
    def is_finished_parquet(self) -> bool:
        """Whether the Parquet file is there, and no run is writing another one."""
        return self.is_parquet and os.path.exists(self.path) and not os.path.exists(self.lines)

    def refuse_existing(self) -> None:
        """Refuse an output that exists, finished or not: early, before anything slow."""
        if not self.is_stream and self.exists:
            raise UserError(f"{self.path}: {EXISTS}")


def errors_path(output: str) -> str:
    """The file of the records that an output, a file or a folder of shards, set aside."""
    return output + ".errors.jsonl"


def _is_device(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path)
    except OSError:
        return False
