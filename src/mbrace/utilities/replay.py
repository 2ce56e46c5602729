"""Stored utilities: tables as files (docs/formats.md), one `.npz` per record named after its id, in a folder; and
`Replay`, which makes a utility of them, so that races with other settings need no scoring."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import Parameter, RecordError, UserError
from mbrace.result import UtilityTable
from mbrace.utility import Ask, Sentence

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


class StoredTable(Protocol):
    """The utilities of one record by its strings, (rows, columns); NaN where a pair was not scored."""

    @property
    def id(self) -> str | int:
        """The id of the record."""

    @property
    def rows(self) -> Mapping[str, int]:
        """Row of each hypothesis."""

    @property
    def columns(self) -> Mapping[str, int]:
        """Column of each pseudo-reference."""

    @property
    def utilities(self) -> NDArray[np.floating]:
        """(rows, columns); NaN where a pair was not scored."""


Tables: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str] | StoredTable]"


class Replay:
    """Stored utilities as a utility: those of a folder that `save_utilities` wrote, of some of its files, or of tables
    such as `Decoded.utilities`. A record is found by its id, a pair by its strings.

    Its name and schedule are those of the utility that scored, unless given.
    """

    needs_source = False

    def __init__(self, tables: Tables, *, name: str | None = None, schedule: Sequence[int] | None = None) -> None:
        self._folder: Path | None = None
        self._tables: dict[str | int, StoredTable] = {}
        if isinstance(tables, str | os.PathLike):
            self._folder = Path(tables)
            first: StoredTable | None = next(self._read_all(), None)
            if first is None:
                raise UserError(f"{self._folder}: no table of utilities in it; give a folder that save_utilities wrote")
        else:
            for each in tables:
                table = read_table(Path(each)) if isinstance(each, str | os.PathLike) else each
                self._tables[table.id] = table
            first = next(iter(self._tables.values()), None)
        known = first if isinstance(first, UtilityTable) else None
        if known is None and (name is None or schedule is None):
            raise UserError("Replay: give tables of utilities, or a name and a schedule")
        self._signature = None if known is None or name is not None else known.utility
        self.name: str = known.utility if name is None and known is not None else str(name)
        own = known.schedule if schedule is None and known is not None else schedule
        self.schedule: tuple[int, ...] = tuple(own or ())
        for table in self._tables.values():
            self._checked(table)

    def start(self, sentences: Sequence[Sentence]) -> _ReplayScorer:
        """Begin the races of a window."""
        stored = [_StoredSentence(self.name, sentence, self.table(sentence.id)) for sentence in sentences]
        return _ReplayScorer(stored)

    def table(self, identity: str | int) -> StoredTable:
        """The table of a record."""
        if self._folder is None:
            if identity in self._tables:
                return self._tables[identity]
        elif (path := self._folder / file_name(identity)).exists():
            return self._checked(read_table(path))
        stored = "among the tables given" if self._folder is None else f"in {self._folder}"
        raise RecordError(
            f"record {identity!r}",
            f"utility {self.name}: no utilities of id {identity!r} are stored {stored}; "
            "decode this record with save_utilities, or leave it out",
        )

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.floating]:
        """Stored utilities of aligned pairs, (pairs,), from whichever record has the pair."""
        found = np.full(len(hypotheses), np.nan)
        left = list(enumerate(zip(hypotheses, references, strict=True)))
        for table in self._read_all() if self._folder is not None else self._tables.values():
            for position, (hypothesis, reference) in left:
                row, column = table.rows.get(hypothesis), table.columns.get(reference)
                if row is not None and column is not None:
                    found[position] = table.utilities[row, column]
            left = [each for each in left if np.isnan(found[each[0]])]
            if not left:
                break
        for _, (hypothesis, reference) in left:
            raise UserError(f"utility {self.name}: no stored value for {hypothesis[:60]!r} and {reference[:60]!r}")
        return found

    def _read_all(self) -> Iterator[UtilityTable]:
        """The tables of the folder."""
        assert self._folder is not None
        try:
            names = sorted(entry.name for entry in os.scandir(self._folder) if NAME.fullmatch(entry.name))
        except OSError as error:
            raise UserError(f"{self._folder}: {error.strerror}; give a folder that save_utilities wrote") from error
        return (read_table(self._folder / name) for name in names)

    def _checked(self, table: StoredTable) -> StoredTable:
        """Refuse a table of another utility: numbers of two kinds would be compared."""
        if self._signature is not None and isinstance(table, UtilityTable) and table.utility != self._signature:
            raise RecordError(
                f"record {table.id!r}",
                f"its stored utilities are those of {table.utility}, others of {self._signature}; "
                "give tables of one utility",
            )
        return table


class _ReplayScorer:
    encode_seconds = 0.0

    def __init__(self, sentences: Sequence[_StoredSentence]) -> None:
        self._sentences = sentences

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.floating]]:
        return [self._sentences[ask.sentence].score(ask) for ask in asks]


class _StoredSentence:
    """One sentence of the window and its table."""

    def __init__(self, name: str, sentence: Sentence, table: StoredTable) -> None:
        self._name, self._sentence, self._table = name, sentence, table
        self._utilities = np.asarray(table.utilities)
        self._rows = np.empty(0, dtype=np.int64)  # the row of each of the sentence's hypotheses so far

    def score(self, ask: Ask) -> NDArray[np.floating]:
        new: Iterable[str] = self._sentence.hypotheses[len(self._rows) :]  # may have joined since the last call
        self._rows = np.append(self._rows, [self._table.rows.get(text, -1) for text in new]).astype(np.int64)
        rows = self._rows[ask.hypotheses]
        columns = [self._table.columns.get(text, -1) for text in ask.references]
        if (len(rows) and rows.min() < 0) or (columns and min(columns) < 0):
            raise self._unknown(ask, rows, columns)
        # faster than indexing rows and columns in one step
        values: NDArray[np.floating] = self._utilities[rows].take(columns, axis=1)
        # a sum is faster than checking each value, and is NaN if one of them is
        if np.isnan(values.sum()) and (missing := np.isnan(values)).any():
            row, column = np.argwhere(missing)[0].tolist()
            hypothesis = self._sentence.hypotheses[ask.hypotheses[row]]
            raise self._error(
                f"hypothesis {hypothesis[:60]!r} and pseudo-reference {ask.references[column][:60]!r} were not scored: "
                "the hypothesis had been pruned; save the utilities of a race without pruning to have every pair"
            )
        return values

    def _unknown(self, ask: Ask, rows: NDArray[np.int64], columns: Sequence[int]) -> RecordError:
        """The error for a string that is not in the table."""
        if len(rows) and rows.min() < 0:
            what = f"hypothesis {self._sentence.hypotheses[ask.hypotheses[int(np.argmin(rows))]][:60]!r}"
            remedy = (
                f"give the candidates that the utilities were saved from, saved with {Parameter('forecast', 0)} to "
                "have every one (of a model: with the same options of its beam search)"
            )
        else:
            what = f"pseudo-reference {ask.references[columns.index(-1)][:60]!r}"
            every = Parameter("schedule", "all")
            remedy = f"save the utilities of the same candidates and seed, with {every} to have every one"
        return self._error(f"{what} is not in its table of stored utilities; {remedy}")

    def _error(self, reason: str) -> RecordError:
        return RecordError(f"record {self._sentence.id!r}", f"utility {self._name}: {reason}")
