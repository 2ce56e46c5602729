"""The study of strings (mbrace.experiments.strings) while candidates are made: tables on the GPU, races beside it."""

from __future__ import annotations

from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import mbrace
from mbrace.experiments.strings import RACED, WAYS, StringsTable, strings_rows, strings_tables
from mbrace.experiments.strings_section import ENDING, save_rows
from mbrace.experiments.study_files import read_packed
from mbrace.records import Record

# of the pool one row stays; the others are in the tables of earlier runs
LEFT_OUT = ("standard 16 + 16", "standard 32 + 32", "regret 0.01", "regret 0.02", "regret 0.08", "regret 0.08, cover",
            "standard 256 + 32", "standard 256 + 32, cover", "forecast 0.0005, regret 0.06",
            "forecast 0.0001, regret 0.03", "forecast 0.0005, regret 0.04, small steps",
            *(f"pool from beam {beam}, regret {x}" for beam in (16, 64, 128) for x in (0.02, 0.04, 0.08)
              if (beam, x) != (64, 0.04)))  # fmt: skip
CHOSEN = tuple(way for way in WAYS if way.name not in LEFT_OUT)
Rows = list[dict[str, Any]]


class StringsStudy:
    """The study on one share of a pair's test sentences. Few processes race, so that others have processors too."""

    def __init__(self, out: Path, pair: str, shard: int, *, workers: int = 3, small: bool = False) -> None:
        self.folder, self.pair, self.raced = out / "strings" / str(shard), pair, 8 if small else RACED
        self.pool = ProcessPoolExecutor(1 if small else workers, mp_context=get_context("spawn"))
        self.waiting: list[Future[dict[tuple[str, str], Rows]]] = []

    def add(self, independent: list[Record], even: list[Record], metric: Any) -> None:
        """Score a block by the learned metric, and have it raced."""
        for first in range(0, len(independent), 8):
            for sampling, records in (("independent", independent), ("arithmetic", even)):
                tables = strings_tables(records[first : first + 8], metric, {"learned": metric}, raced=self.raced)
                tables = [of_raced(table) for table in tables]
                own = metric.name, metric.schedule
                self.waiting.append(self.pool.submit(race_block, sampling, tables, *own, self.raced))

    def finish(self) -> None:
        """Wait for the races, and save the rows of this share."""
        found: dict[tuple[str, str], Rows] = {}
        for future in self.waiting:
            for kind, rows in future.result().items():
                found.setdefault(kind, []).extend(rows)
        self.pool.shutdown()
        for (utility, sampling), rows in found.items():
            about = {"pair": self.pair, "split": "test", "utility": utility, "sampling": sampling}
            save_rows(rows, self.folder, about)


def of_raced(table: StringsTable) -> StringsTable:
    """Without the columns of the draws that are held out: what they say is in `worth`."""
    columns = {text: i for i, text in enumerate(dict.fromkeys(table.record.pseudo_references[: table.raced]))}  # type: ignore[index]
    utilities = np.ascontiguousarray(np.asarray(table.utilities)[:, [table.columns[text] for text in columns]])
    return replace(table, utilities=utilities, columns=columns)


def race_block(
    sampling: str, tables: list[StringsTable], name: str, schedule: tuple[int, ...], raced: int
) -> dict[tuple[str, str], Rows]:
    """Rows of some sentences, for the learned metric and for chrF++."""
    lexical = mbrace.ChrF(threads=1)
    records = [table.record for table in tables]
    ours = strings_tables(records, lexical, {"chrF++": lexical}, raced=raced)
    found: dict[tuple[str, str], Rows] = {("learned", sampling): [], ("chrF++", sampling): []}
    stored = mbrace.Pairwise(lambda h, r: 0.0, name=name, schedule=schedule)  # only its name and schedule are used
    for learned, own in zip(tables, ours, strict=True):
        assert learned.texts == own.texts
        human = {**learned.human, **own.human}
        for kind, table, utility in (("learned", learned, stored), ("chrF++", own, lexical)):
            found[kind, sampling] += strings_rows(replace(table, human=human), utility, CHOSEN)
    return found


def join_shares(folder: Path, out: Path) -> dict[str, int]:
    """Join the rows of all shares, ordered by sentence, in the folder that reports read; sentences by file."""
    found: dict[str, tuple[dict[str, str], Rows]] = {}
    for path in sorted(folder.glob(f"*/*{ENDING}")):
        stored = read_packed(path)
        found.setdefault(path.name, (stored["about"], []))[1].extend(stored["rows"])
    order = {way.name: number for number, way in enumerate(CHOSEN)}
    for about, rows in found.values():
        rows.sort(key=lambda row: (order[row["way"]], int(str(row["id"]).rsplit(".", 1)[1])))
        save_rows([{name: _short(value) for name, value in row.items()} for row in rows], out, about)
    return {name: len({row["id"] for row in rows}) for name, (_, rows) in found.items()}


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value
