"""Folders of output: shards and their manifest; tables of utilities and their index."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mbrace.errors import FORCE, RESUME, UserError
from mbrace.io.atomic import TEMPORARY, AnyPath, lock, make_folder, open_folder, replace_file
from mbrace.io.reading import json_line, parse_json
from mbrace.result import UtilityTable
from mbrace.utilities.replay import INDEX, NAME, file_name, table_bytes

MANIFEST = "manifest.json"
SHARD = re.compile(r"part-\d{5,}-\d{5,}\.(jsonl|txt)(\.gz)?|part-\d{5,}-\d{5,}\.parquet")
ABOUT_EXISTING = f"has utilities of another run; use {RESUME} to continue it or {FORCE} to replace them"


class Shard(NamedTuple):
    """One file of the output, and the lines of the input it answers."""

    file: str
    input: str
    first_line: int
    lines: int
    answers: int
    skipped: int
    bytes: int
    sha256: str
    input_digest: str = ""  # of the input lines it answers; "" in manifests of early versions


@dataclass
class Manifest:
    """`manifest.json` of an output folder. `work` is what the shards were made with, `complete` whether all exist."""

    folder: AnyPath
    work: dict[str, Any]
    inputs: list[str]
    complete: bool = False
    shards: list[Shard] = field(default_factory=list)
    options: dict[str, Any] | None = None  # those that the command line was given, for `--config`

    def write(self) -> None:
        """Replace `manifest.json` in one step."""
        fields = {
            "format": 1,
            "complete": self.complete,
            "answers": sum(shard.answers for shard in self.shards),
            "skipped": sum(shard.skipped for shard in self.shards),
            "inputs": self.inputs,
            "work": self.work,
            **({} if self.options is None else {"options": self.options}),
            "shards": [shard._asdict() for shard in self.shards],
        }
        replace_file(os.path.join(self.folder, MANIFEST), json_line(fields))

    @classmethod
    def read(cls, folder: AnyPath) -> Manifest:
        """The manifest of `folder`, checked so that no shard in it is a file outside the folder."""
        path = os.path.join(folder, MANIFEST)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise UserError(
                f"{path}: {error.strerror}; give a file, or a folder of shards that a cluster wrote"
            ) from error
        fields = parse_json(data, path)
        try:
            shards = [Shard(**shard) for shard in fields["shards"]]
            manifest = cls(folder, fields["work"], list(fields["inputs"]), fields["complete"] is True, shards)
            if fields["format"] != 1:
                raise UserError(
                    f"{path}: format: {fields['format']!r} is not known to this version of mbrace; update it"
                )
        except (TypeError, KeyError) as error:
            raise UserError(f"{path}: not a manifest of mbrace ({error}); give a folder that a cluster wrote") from None
        for shard in shards:
            check_name(shard.file, path)
        return manifest

    def paths(self, *, complete: bool = False) -> Iterator[str]:
        """The files of the shards, in input order; with `complete`, refused while the run is not finished."""
        if complete and not self.complete:
            raise UserError(f"{self.folder}: the run that writes it is not finished; continue it with {RESUME}")
        for shard in self.shards:
            check_name(shard.file, os.path.join(self.folder, MANIFEST))
            path = os.path.join(self.folder, shard.file)
            if os.path.islink(path):
                raise UserError(f"{path}: is a link; a shard must be a file in the folder")
            yield path


def check_name(name: object, where: AnyPath) -> None:
    """Refuse a shard that is not a plain name such as part-00000-00000.jsonl: a path could lead out of the folder."""
    if not isinstance(name, str) or not SHARD.fullmatch(name):
        raise UserError(f"{where}: shards: {name!r} is not the name of a shard; give a folder that a cluster wrote")


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
                f"{self.path}: {RESUME}: no table of record {identity!r}, which is answered; "
                f"give the folder of that run, or {FORCE} to start over"
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
            raise UserError(
                f"{self.path / name}: {error.strerror}; free disk space and continue with {RESUME}"
            ) from error


def refuse_existing_tables(path: str) -> None:
    """Refuse a folder that already holds tables: early, before anything slow."""
    if os.path.isdir(path) and _ours(Path(path)):
        raise UserError(f"{path}: {ABOUT_EXISTING}")


def _ours(folder: Path) -> list[Path]:
    """The files of such a folder that this module writes."""
    names = [entry.name for entry in os.scandir(folder)]
    return [folder / name for name in names if name == INDEX or NAME.fullmatch(name.removesuffix(TEMPORARY))]
