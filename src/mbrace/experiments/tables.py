"""Utility tables: every hypothesis scored against all of R* and against the human reference, once.

On disk a table is compressed float32 (zlib over its transposed bytes), one file per sentence, so that an interrupted
run continues where it stopped. `mbrace.Replay` hands tables to the decoder's own loop as a utility.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, shown_name
from mbrace.io.atomic import replace_file
from mbrace.io.candidates import read_records
from mbrace.records import Record
from mbrace.utilities.replay import Replay
from mbrace.utility import Ask, Sentence, Utility, check_source

SPLITS = {"valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}
ENDINGS = re.compile(r"(\.jsonl|\.json)?(\.gz|\.xz|\.bz2|\.zst)?$")


@dataclass(frozen=True)
class CandidateFile:
    """A candidate file. `de-en.valid.jsonl.xz` is the "valid" split of "de-en"; without a split in its name, "all"."""

    path: str
    name: str
    split: str
    digest: str  # of the file's bytes

    @classmethod
    def from_path(cls, path: str) -> CandidateFile:
        """Take name and split from the file name."""
        words = ENDINGS.sub("", shown_name(os.path.basename(path))).split(".")
        split = next((SPLITS[word] for word in reversed(words) if word in SPLITS), "all")
        name = ".".join(word for word in words if word not in SPLITS) or "candidates"
        try:
            with open(path, "rb") as file:
                digest = hashlib.blake2b(file.read(), digest_size=16).hexdigest()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; give a candidate file that can be read") from error
        return cls(path, name, split, digest)

    def records(self, limit: int | None = None) -> list[Record]:
        """The records, each with a list of pseudo-references."""
        return list(itertools.islice(read_records(self.path), limit))

    def check_races(self, limit: int | None = None) -> None:
        """Refuse a file in which no record has two different hypotheses; reads only as far as the first that has."""
        records = itertools.islice(read_records(self.path), limit)
        if (first := next(records, None)) is None:
            raise UserError(f"{self.path}: empty; give at least one record")
        if not any(len(set(record.hypotheses)) > 1 for record in itertools.chain([first], records)):
            raise UserError(
                f"{self.path}: hypotheses: no record has two that differ, as a race needs; give more of them"
            )


@dataclass(frozen=True)
class Table:
    """The utilities of one sentence, (distinct hypotheses, distinct pseudo-references), and their index by string."""

    record: Record
    values: Path | NDArray[np.float32]  # the values, as `compute` gives them, or the file that they are stored in
    # scores by metrics that do not decode, against the human reference, (distinct hypotheses,) each
    others: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def id(self) -> str | int:
        """The id of the record."""
        return self.record.id

    @cached_property
    def hypotheses(self) -> list[str]:
        """The distinct hypotheses in the caller's order, as the race numbers them."""
        return _distinct_hypotheses(self.record)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Row of each distinct hypothesis."""
        return {text: row for row, text in enumerate(self.hypotheses)}

    @cached_property
    def columns(self) -> dict[str, int]:
        """Column of each distinct pseudo-reference."""
        return {text: column for column, text in enumerate(dict.fromkeys(self.draws))}

    @property
    def draws(self) -> Sequence[str]:
        """R*, in the order drawn."""
        return pseudo_references_of(self.record)

    @property
    def stored(self) -> NDArray[np.float32]:
        """(distinct hypotheses, distinct pseudo-references + 1): the last column is the human reference."""
        if isinstance(self.values, Path):
            return _read(self.values, (len(self.rows), len(self.columns) + 1))
        return self.values

    @property
    def utilities(self) -> NDArray[np.float32]:
        """(distinct hypotheses, distinct pseudo-references)."""
        return self.stored[:, :-1]

    @cached_property
    def human(self) -> NDArray[np.float64]:
        """(distinct hypotheses,): scores against the human reference; NaN if there is none."""
        return self.stored[:, -1].astype(np.float64)

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """(distinct hypotheses,): U(y, R*), every draw counted."""
        counts = np.bincount([self.columns[text] for text in self.draws], minlength=len(self.columns))
        means: NDArray[np.float64] = np.einsum("hr,r->h", self.utilities.astype(np.float64), counts / len(self.draws))
        return means


def tables(
    file: CandidateFile,
    records: Sequence[Record],
    utility: Utility,
    folder: Path,
    *,
    window: int = 8,
    others: Mapping[str, Utility] | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Table]:
    """The tables of the records of `file`, cached under `folder`; missing ones are computed.

    `others`: metrics that score the hypotheses against the human reference only, by the name of their scores.
    """
    identity = hashlib.blake2b(f"{file.digest}\0{utility.name}".encode(), digest_size=8).hexdigest()
    home = folder / f"{file.name}.{file.split}.{slug(utility.name)}.{identity}"
    home.mkdir(parents=True, exist_ok=True)
    paths = [home / f"{position:05d}.z" for position in range(len(records))]
    missing = [(record, path) for record, path in zip(records, paths, strict=True) if not path.exists()]
    advance(len(records) - len(missing))
    for first in range(0, len(missing), window):
        part = missing[first : first + window]
        for (_, path), values in zip(part, compute([record for record, _ in part], utility), strict=True):
            _write(path, values)
        advance(len(part))
    return [
        Table(replace(record, source=None), path, other_scores(record, others or {}))
        for record, path in zip(records, paths, strict=True)
    ]


def compute(records: Sequence[Record], utility: Utility) -> list[NDArray[np.float32]]:
    """One table per record, (distinct hypotheses, distinct pseudo-references + 1); the last column: human reference.

    Stored utilities know no human reference.
    """
    if isinstance(utility, Replay):
        records = [replace(record, reference=None) for record in records]
    hypotheses = [_distinct_hypotheses(record) for record in records]
    columns = []  # the reference with the others, so that all strings are encoded once
    for record in records:
        check_source(record, utility)
        reference = [] if record.reference is None else [record.reference]
        columns.append(list(dict.fromkeys([*pseudo_references_of(record), *reference])))
    scorer = utility.start([Sentence(r.id, r.source, texts) for r, texts in zip(records, hypotheses, strict=True)])
    asks = [Ask(p, np.arange(len(hypotheses[p])), texts) for p, texts in enumerate(columns)]
    found = []
    for record, texts, values in zip(records, columns, scorer.score(asks), strict=True):
        if not np.isfinite(values).all():
            raise record.error(f"utility {utility.name} returned a value that is not finite")
        distinct = len(set(pseudo_references_of(record)))
        table = np.full((len(values), distinct + 1), np.nan, dtype=np.float32)
        table[:, :-1] = values[:, :distinct]
        if record.reference is not None:
            table[:, -1] = values[:, texts.index(record.reference)]
        found.append(table)
    return found


def other_scores(record: Record, metrics: Mapping[str, Utility]) -> dict[str, NDArray[np.float32]]:
    """The distinct hypotheses scored against the human reference, which must be there, by each metric."""
    if metrics and record.reference is None:
        raise record.error("reference: missing; other metrics score against it")
    hypotheses = _distinct_hypotheses(record)
    references = [record.reference or ""] * len(hypotheses)
    sources = None if record.source is None else [record.source] * len(hypotheses)
    return {
        name: np.asarray(metric.pairs(hypotheses, references, sources), np.float32) for name, metric in metrics.items()
    }


def slug(name: str) -> str:
    """A utility's name as part of a file name: `chrF2++|case:mixed|...` becomes chrf2++."""
    return re.sub(r"[^a-z0-9+.-]+", "-", name.split("|")[0].lower()).strip("-") or "utility"


def _distinct_hypotheses(record: Record) -> list[str]:
    return list(dict.fromkeys(record.hypotheses))


def pseudo_references_of(record: Record) -> Sequence[str]:
    """The record's pseudo-references, which must be a list."""
    if not isinstance(record.pseudo_references, Sequence):
        raise record.error("pseudo_references: experiments need a list")
    return record.pseudo_references


def _write(path: Path, values: NDArray[np.float32]) -> None:
    """Write the file whole or not at all, so that a file that exists is complete."""
    planes = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 4).T  # bytes of equal significance are adjacent
    replace_file(path, zlib.compress(planes.tobytes(), 1), shared=True)


@lru_cache(maxsize=16)  # a race comes back to the tables of its few sentences
def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.float32]:
    try:
        planes = np.frombuffer(zlib.decompress(path.read_bytes()), dtype=np.uint8).reshape(4, -1)
        return np.ascontiguousarray(planes.T).view(np.float32).reshape(shape)
    except (zlib.error, ValueError) as error:
        raise UserError(f"{path}: damaged ({error}); delete it and run again") from error


@dataclass(frozen=True)
class Facts:
    """One sentence of a candidate file: counts, and the range of the scores of its hypotheses against the human
    reference (NaN if it has none)."""

    id: str | int
    hypotheses: int
    pseudo_references: int
    distinct: int
    lowest: float
    highest: float


def facts(table: Table) -> Facts:
    """The facts of one table."""
    human = table.human
    counts = len(table.hypotheses), len(table.draws), len(table.columns)
    return Facts(table.record.id, *counts, float(human.min()), float(human.max()))


def about_outcomes(
    file: CandidateFile,
    sentences: Sequence[Facts],
    *,
    utility: str,
    label: str,
    options: str,
    schedule: Sequence[int],
    trials: int,
    seed: int,
) -> dict[str, Any]:
    """What outcomes are of: the candidate file, the utility (its signature, its name in results and the options of
    `mbrace decode` that choose it), the trials."""
    references = all(math.isfinite(one.lowest) and math.isfinite(one.highest) for one in sentences)
    # scores between 0 and 1, give or take a little, are multiplied by 100 for display, as the paper does with COMET's
    small = references and all(one.lowest >= -0.25 and one.highest <= 1.25 for one in sentences)
    return {
        "name": file.name,
        "split": file.split,
        "file": shown_name(os.path.basename(file.path)),
        "digest": file.digest,
        "utility": utility,
        "label": label,
        "options": options,
        "schedule": list(schedule),
        "sentences": len(sentences),
        "hypotheses": round(float(np.mean([one.hypotheses for one in sentences])), 1),
        "pseudo_references": min(one.pseudo_references for one in sentences),
        "exhausted": [one.id for one in sentences if one.pseudo_references <= schedule[-1]],
        "distinct": round(float(np.mean([one.distinct / one.pseudo_references for one in sentences])), 3),
        "references": references,
        "scale": 100 if small else 1,
        "trials": trials,
        "seed": seed,
    }


def exhausted_note(about: Mapping[str, Any], most: int) -> str:
    """Which sentences have too few pseudo-references to hold any out, at most `most` by id; "" if none has."""
    ids, largest = about.get("exhausted", []), about["schedule"][-1]
    if not ids:
        return ""
    named = ", ".join(map(str, ids[:most])) + (f" and {len(ids) - most:,} more" if len(ids) > most else "")
    return (
        f"{len(ids):,} of {about['sentences']:,} sentences have no more than {largest} pseudo-references: too few to "
        f"hold any out, so that standard MBR scores 100% by construction (the paper has 1,024): {named}"
    )
