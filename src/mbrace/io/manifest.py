"""The manifest of a sharded output: which shards there are, in input order, and what each holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mbrace.errors import UserError
from mbrace.io.atomic import AnyPath, replace_file
from mbrace.io.jsonl import json_line, parse_json

NAME = "manifest.json"
SHARD = re.compile(r"part-\d{5,}-\d{5,}\.(jsonl|txt)(\.gz)?|part-\d{5,}-\d{5,}\.parquet")


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
        replace_file(os.path.join(self.folder, NAME), json_line(fields))

    @classmethod
    def read(cls, folder: AnyPath) -> Manifest:
        """The manifest of `folder`, checked so that no shard in it is a file outside the folder."""
        path = os.path.join(folder, NAME)
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
            raise UserError(f"{self.folder}: the run that writes it is not finished; continue it with resume=True")
        for shard in self.shards:
            check_name(shard.file, os.path.join(self.folder, NAME))
            path = os.path.join(self.folder, shard.file)
            if os.path.islink(path):
                raise UserError(f"{path}: is a link; a shard must be a file in the folder")
            yield path


def check_name(name: object, where: AnyPath) -> None:
    """Refuse a shard that is not a plain name such as part-00000-00000.jsonl: a path could lead out of the folder."""
    if not isinstance(name, str) or not SHARD.fullmatch(name):
        raise UserError(f"{where}: shards: {name!r} is not the name of a shard; give a folder that a cluster wrote")
