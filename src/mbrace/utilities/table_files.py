"""Tables of utilities as files (docs/formats.md): one `.npz` per record, named after its id, in a folder."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from mbrace.errors import UserError
from mbrace.utility_table import UtilityTable

FORMAT = 1
SUFFIX = ".npz"
INDEX = "index.jsonl"
NAME = re.compile(r"([a-z0-9-]{1,32}\.)?[0-9a-f]{24}\.npz")


def file_name(identity: str | int) -> str:
    """The name of a record's file: the start of its id, for people, and a digest of the id (7 and "7" differ)."""
    whole = f"{type(identity).__name__}\0{identity}".encode("utf-8", "surrogatepass")
    readable = re.sub(r"[^a-z0-9]+", "-", str(identity).lower())[:32].strip("-")
    return f"{readable + '.' if readable else ''}{hashlib.blake2b(whole, digest_size=12).hexdigest()}{SUFFIX}"


def table_bytes(table: UtilityTable) -> bytes:
    """The bytes of a file that `numpy.load` reads; equal tables give equal bytes."""
    about = {
        "format": FORMAT,
        "id": table.id,
        "utility": table.utility,
        "schedule": list(table.schedule),
        "hypotheses": list(table.hypotheses),
        "pseudo_references": list(table.pseudo_references),
    }
    text = json.dumps(about, ensure_ascii=True).encode("ascii")  # lone surrogates are written as escapes
    arrays: dict[str, Any] = {
        "utilities": table.utilities,
        "counts": table.counts,
        "left_out": table.left_out,
        "about": np.frombuffer(text, dtype=np.uint8),
    }
    if table.weights is not None:
        arrays["weights"] = table.weights
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # numpy 1.26 takes allow_pickle for another array
    return file.getvalue()


def read_table(path: Path) -> UtilityTable:
    """The table in a file that `table_bytes` made, checked."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = json.loads(arrays["about"].astype(np.uint8).tobytes())
        if about["format"] != FORMAT:
            raise UserError(f"{path}: format {about['format']!r} is not known to this version of mbrace; update it")
        table = UtilityTable(
            id=about["id"],
            utility=about["utility"],
            schedule=tuple(about["schedule"]),
            hypotheses=about["hypotheses"],
            pseudo_references=about["pseudo_references"],
            utilities=arrays["utilities"],
            counts=arrays["counts"],
            weights=arrays.get("weights"),
            left_out=arrays["left_out"],
        )
        _check(table)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: {error.strerror}; give a table that save_utilities wrote") from error
    except Exception as error:  # a damaged archive raises errors from several modules
        raise UserError(f"{path}: not a table of utilities ({error}); delete it and save it again") from error
    return table


def _check(table: UtilityTable) -> None:
    """Refuse a table that `table_bytes` cannot have written."""
    rows, columns = len(table.hypotheses), len(table.pseudo_references)
    texts = {type(text) for text in (*table.hypotheses, *table.pseudo_references, table.utility)}
    sizes = {type(size) for size in table.schedule}
    shares = table.counts if table.weights is None else table.weights
    if (
        texts != {str}
        or sizes != {int}
        or type(table.id) not in (str, int)
        or len(table.rows) < rows
        or len(table.columns) < columns
        or table.utilities.shape != (rows, columns)
        or table.utilities.dtype not in (np.float32, np.float64)
        or table.counts.shape != (columns,)
        or table.counts.dtype != np.int64
        or shares.shape != (columns,)
        or shares.dtype not in (np.int64, np.float64)
        or table.left_out.ndim != 2
        or table.left_out.shape[1] != 2
        or table.left_out.dtype != np.int64
        or (len(table.left_out) and not (table.left_out.min(axis=0) >= 0).all())
        or (len(table.left_out) and not (table.left_out.max(axis=0) < (rows, columns)).all())
    ):
        raise ValueError("its parts do not fit together")
