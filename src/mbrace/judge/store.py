"""The ratings file: SQLite in WAL mode. A rating is on disk before it is acknowledged, and counts once."""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from mbrace.errors import UserError
from mbrace.io.resume import refuse_other_settings
from mbrace.judge.items import PredictionPair, arrange

RatingOutcome = Literal["saved", "repeated", "stale", "ahead"]

_APPLICATION = 0x6D62726A  # "mbrj", marks the file as ours
_VERSION = 1
_SCHEMA = """
CREATE TABLE study (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE item (item INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL, a TEXT NOT NULL,
    b TEXT NOT NULL);
CREATE TABLE rater (rater INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE);
CREATE TABLE turn (rater INTEGER NOT NULL REFERENCES rater, position INTEGER NOT NULL, item INTEGER NOT NULL REFERENCES
    item, a_left INTEGER NOT NULL CHECK (a_left IN (0, 1)), PRIMARY KEY (rater, position), UNIQUE (rater, item));
CREATE TABLE rating (rater INTEGER NOT NULL, position INTEGER NOT NULL, choice TEXT NOT NULL CHECK (choice IN
    ('A', 'B', 'tie', 'skip')), comment TEXT NOT NULL, at TEXT NOT NULL, PRIMARY KEY (rater, position),
    FOREIGN KEY (rater, position) REFERENCES turn);
-- every request that had an effect, in order: keeps what was undone and recognises a request that is sent again
CREATE TABLE event (event INTEGER PRIMARY KEY, rater INTEGER NOT NULL, position INTEGER NOT NULL, action TEXT NOT NULL
    CHECK (action IN ('rate', 'undo')), choice TEXT, comment TEXT, request TEXT NOT NULL, at TEXT NOT NULL,
    UNIQUE (rater, request));
"""


@dataclass(frozen=True)
class Turn:
    """A rater's progress: `position` items are done; `item` is the next one (None: all are done)."""

    position: int
    total: int
    item: PredictionPair | None
    a_left: bool
    comment: str = ""  # from an answer to this item that was undone


class Store:
    """The ratings file, opened by a server. Thread-safe; the turns of a rater come in order."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA foreign_keys=ON")
        self.tokens: dict[int, str] = dict(self._connection.execute("SELECT rater, token FROM rater").fetchall())

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def rater(self, token: str) -> int | None:
        """The rater with this token. Every token is compared in full, so that the timing reveals nothing."""
        found = None
        for rater, known in self.tokens.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                found = rater
        return found

    def turn(self, rater: int) -> Turn:
        with self._lock:
            position = self._position(rater)
            total = self._connection.execute("SELECT count(*) FROM turn WHERE rater = ?", (rater,)).fetchone()[0]
            row = self._connection.execute(
                "SELECT id, source, a, b, a_left FROM turn JOIN item USING (item) WHERE rater = ? AND position = ?",
                (rater, position),
            ).fetchone()
            undone = self._connection.execute(
                "SELECT comment FROM event WHERE rater = ? AND position = ? AND action = 'rate' ORDER BY event DESC",
                (rater, position),
            ).fetchone()
        if row is None:
            return Turn(position, total, None, False)
        return Turn(position, total, PredictionPair(*row[:4]), bool(row[4]), undone[0] if undone else "")

    def rate(self, rater: int, position: int, side: str, *, comment: str = "", request: str) -> RatingOutcome:
        """Save "left", "right", "tie" or "skip" for the rater's item at `position`; on disk when this returns."""
        with self._transaction() as sql:
            outcome = self._outcome(rater, position, request, expected=self._position(rater))
            if outcome == "saved":
                query = "SELECT a_left FROM turn WHERE rater = ? AND position = ?"
                row = sql.execute(query, (rater, position)).fetchone()
                if row is None:
                    return "ahead"  # all items are done
                choice, at = _choice(side, bool(row[0])), _now()
                sql.execute("INSERT INTO rating VALUES (?, ?, ?, ?, ?)", (rater, position, choice, comment, at))
                self._log(rater, position, "rate", choice, comment, request, at)
        return outcome

    def undo(self, rater: int, position: int, *, request: str) -> RatingOutcome:
        """Take back the rating at `position`, which must be the rater's last one."""
        with self._transaction() as sql:
            outcome = self._outcome(rater, position, request, expected=self._position(rater) - 1)
            if outcome == "saved":
                sql.execute("DELETE FROM rating WHERE rater = ? AND position = ?", (rater, position))
                self._log(rater, position, "undo", None, None, request, _now())
        return outcome

    def _position(self, rater: int) -> int:
        # Only the next position can be rated and only the last one undone, so positions 0 .. count-1 are done.
        count: int = self._connection.execute("SELECT count(*) FROM rating WHERE rater = ?", (rater,)).fetchone()[0]
        return count

    def _outcome(self, rater: int, position: int, request: str, *, expected: int) -> RatingOutcome:
        query = "SELECT 1 FROM event WHERE rater = ? AND request = ?"
        if self._connection.execute(query, (rater, request)).fetchone():
            return "repeated"
        if position == expected:
            return "saved"
        return "stale" if position < expected else "ahead"

    def _log(self, rater: int, position: int, action: str, choice: str | None, comment: str | None, request: str,
             at: str) -> None:  # fmt: skip
        self._connection.execute(
            "INSERT INTO event (rater, position, action, choice, comment, request, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (rater, position, action, choice, comment, request, at),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself rolls back after some errors, such as a full disk
                    self._connection.execute("ROLLBACK")
                raise


def open_study(
    path: str,
    items: Sequence[PredictionPair],
    *,
    facts: Mapping[str, str],
    about: Mapping[str, str],
    seed: int,
    raters: int,
) -> Store:
    """Open the ratings file, or create it; an existing one must have the same `facts`.

    `facts` identify the study (digests of the inputs, seed, number of items); `about` is kept for the report (names,
    counts). Raters are added up to `raters`, never removed.
    """
    try:  # tokens are secret: only the owner may read a new file (SQLite gives -wal and -shm the same mode)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        sql = sqlite3.connect(path, isolation_level=None, timeout=30)
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"{path}: cannot be opened: {error}; give a file that can be written") from error
    try:
        sql.execute("BEGIN IMMEDIATE")
        if sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            _create(sql, items, {**facts, **about})
        else:
            check_ours(sql, path)
            known = dict(sql.execute("SELECT key, value FROM study"))
            made, remedy = "holds ratings of a study", "give the files and options it was begun with, or another output"
            before = {name: value for name, value in known.items() if name in facts}
            refuse_other_settings(before, facts, file=path, made=made, data=("A", "B", "source"), remedy=remedy)
        _add_raters(sql, len(items), seed, raters)
        sql.execute("COMMIT")
    except sqlite3.Error as error:
        raise UserError(f"{path}: {error}; is it a ratings file of `mbrace judge`?") from error
    finally:
        sql.close()
    return Store(path)


def check_ours(sql: sqlite3.Connection, path: str) -> None:
    """Refuse a database that `mbrace judge` did not write."""
    try:
        application = sql.execute("PRAGMA application_id").fetchone()[0]
        version = sql.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise UserError(f"{path}: {error}; expected a ratings file of `mbrace judge`") from error
    if application != _APPLICATION:
        raise UserError(f"{path}: not a ratings file of `mbrace judge`; name another file")
    if version != _VERSION:
        raise UserError(f"{path}: ratings format {version}, but this mbrace reads format {_VERSION}; update mbrace")


def _create(sql: sqlite3.Connection, items: Sequence[PredictionPair], study: Mapping[str, str]) -> None:
    for statement in _SCHEMA.split(";\n"):
        sql.execute(statement)
    sql.execute(f"PRAGMA application_id={_APPLICATION}")
    sql.execute(f"PRAGMA user_version={_VERSION}")
    sql.executemany("INSERT INTO study VALUES (?, ?)", study.items())
    rows = [(number, item.id, item.source, item.a, item.b) for number, item in enumerate(items)]
    sql.executemany("INSERT INTO item VALUES (?, ?, ?, ?, ?)", rows)


def _add_raters(sql: sqlite3.Connection, items: int, seed: int, raters: int) -> None:
    known: int = sql.execute("SELECT count(*) FROM rater").fetchone()[0]
    for rater in range(known + 1, raters + 1):
        sql.execute("INSERT INTO rater VALUES (?, ?)", (rater, secrets.token_urlsafe(24)))
        turns = enumerate(arrange(items, seed, rater))
        rows = [(rater, position, item, a_left) for position, (item, a_left) in turns]
        sql.executemany("INSERT INTO turn VALUES (?, ?, ?, ?)", rows)


def _choice(side: str, a_left: bool) -> str:
    left, right = ("A", "B") if a_left else ("B", "A")
    return {"left": left, "right": right, "tie": "tie", "skip": "skip"}[side]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
