"""Packed JSON under DIR/data: what a study measured on one candidate file, and recorded races."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mbrace.errors import UserError
from mbrace.experiments.tables import slug
from mbrace.io.atomic import replace_file

Read = TypeVar("Read")


def write_packed(path: Path, value: Mapping[str, Any], *, ensure_ascii: bool = True) -> None:
    """Write JSON in gzip, whole or not at all; the same value gives the same bytes."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0), shared=True)


def read_packed(path: Path) -> Any:
    """What `write_packed` wrote."""
    return json.loads(gzip.decompress(path.read_bytes()))


def ending(study: str) -> str:
    """How the names of a study's files end; `study` is its option of `mbrace experiment` without the hyphens."""
    return f".{study}.json.gz"


def save_study(study: str, stored: Mapping[str, Any], folder: Path, *names: str) -> Path:
    """Save what a study measured on one candidate file where the report looks for it.

    `stored["about"]` has the pair, split, utility and sampling, of which the file's name is made; `names` are added to
    it.
    """
    about = stored["about"]
    parts = [about["pair"], about["split"], slug(about["utility"]), *names]
    if about["sampling"] != "independent":
        parts.append(about["sampling"])
    path = folder / (".".join(parts) + ending(study))
    write_packed(path, stored)
    return path


def load_studies(study: str, folder: Path, read: Callable[[Any], Read]) -> list[Read]:
    """What `read` makes of each file that a study saved in a folder."""
    found = []
    for path in sorted(folder.glob("*" + ending(study))):
        try:
            found.append(read(read_packed(path)))
        except (OSError, EOFError, ValueError, TypeError, KeyError, IndexError) as error:
            raise UserError(
                f"{path}: not what `mbrace experiment --{study}` writes ({error!r}); delete it and run again"
            ) from error
    return found
