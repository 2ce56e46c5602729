"""The folder of `save_utilities`: one table per record answered, and an index of them in the order of the answers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mbrace.errors import UserError
from mbrace.io.atomic import lock, make_folder, replace_file
from mbrace.io.jsonl import json_line
from mbrace.io.system import open_folder
from mbrace.utilities.table_files import INDEX, NAME, file_name, table_bytes
from mbrace.utility_table import UtilityTable

ABOUT_EXISTING = "has utilities of another run; use resume=True to continue it or force=True to replace them"


class UtilityFolder:
    """Saves tables as they come, each whole or not at all and before its answer is written, so that after a crash every
    answer has its table. `note` is called for each record answered, in order; `finish` writes an index of them.

    With `force`, older tables stay until the first new one is saved.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._resumes = self._replaces = self._is_new = False
        self._noted: list[str | int] = []
        self._descriptor = -1

    def open(self, *, resume: bool = False, force: bool = False) -> None:
        """Make and lock the folder; refuse one with tables of another run."""
        if not (resume or force):
            refuse_existing_tables(str(self.path))
        self._is_new = not self.path.exists()
        make_folder(self.path)
        descriptor = open_folder(self.path)
        try:
            lock(descriptor, str(self.path))
        except UserError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._resumes, self._replaces, self._noted = resume, force, []

    def save(self, table: UtilityTable) -> None:
        """Write the table of one record."""
        if self._replaces:
            self._replaces = False
            for path in _ours(self.path):
                path.unlink()
        self._write(file_name(table.id), table_bytes(table))

    def note(self, identity: str | int) -> None:
        """Note the next record answered, whose table this run or the one that is continued has saved."""
        if self._resumes and not (self.path / file_name(identity)).exists():
            raise UserError(
                f"{self.path}: resume=True: no table of record {identity!r}, which is answered; "
                "give the folder of that run, or force=True to start over"
            )
        self._noted.append(identity)

    def finish(self) -> None:
        """Write the index of the records that were noted, and close the folder; a new one that is empty is removed."""
        if self._descriptor < 0:
            return
        try:
            if self._noted:
                lines = [json_line({"id": identity, "file": file_name(identity)}) for identity in self._noted]
                self._write(INDEX, b"".join(lines))
            elif self._is_new:
                with contextlib.suppress(OSError):  # it may hold tables whose answers were not written
                    self.path.rmdir()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, name: str, data: bytes) -> None:
        try:
            replace_file(self.path / name, data)
        except OSError as error:
            raise UserError(f"{self.path / name}: {error.strerror}; make room and go on with resume=True") from error


def refuse_existing_tables(path: str) -> None:
    """Refuse a folder that already holds tables: early, before anything slow."""
    if os.path.isdir(path) and _ours(Path(path)):
        raise UserError(f"{path}: {ABOUT_EXISTING}")


def _ours(folder: Path) -> list[Path]:
    """The files of such a folder that this module writes."""
    names = [entry.name for entry in os.scandir(folder)]
    return [folder / name for name in names if name == INDEX or NAME.fullmatch(name.removesuffix(".tmp"))]
