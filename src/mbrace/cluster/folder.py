"""The output folder of a sharded run: shards that are whole or not there, and a journal of those that are.

Only the driver writes here, so the workers need no file system in common with it. A shard is written beside its name
and renamed; then a line in `journal.jsonl` says that it is done. Whatever happens between the two, the block runs again
and the same bytes take the same name. The manifest replaces the journal when the run is over.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.cluster.shards import Result
from mbrace.errors import UserError, require
from mbrace.io.files import Bad, parse_json, rows_of, to_json
from mbrace.io.manifest import NAME, SHARD, Manifest, Shard, check_name, replace_file
from mbrace.io.output import check_packing, lock, pack_all, write_all
from mbrace.io.resume import KeptLines
from mbrace.io.storage import to_parquet
from mbrace.jobs.job import Work
from mbrace.records import Location

JOURNAL = "journal.jsonl"
ROOM = "finished shards are kept: make room and go on with --resume"


class Done:
    """A finished shard, with what the manifest leaves out."""

    def __init__(self, shard: Shard, ids: bytes, errors: list[Any]) -> None:
        self.shard, self.errors = shard, errors
        self.ids: NDArray[np.uint64] = np.frombuffer(ids, dtype=np.uint64)


class Folder:
    """The state of a run on disk. `done` maps (input, block number) to its shard."""

    def __init__(
        self, output: str, work: Work, inputs: list[str], *, size: int, resume: bool, force: bool, text: bool
    ) -> None:
        self.path = Path(output)
        self.errors_path = Path(str(self.path) + ".errors.jsonl")
        self.done: dict[tuple[int, int], Done] = {}
        self.text = text
        self.suffix = _suffix(output, text)
        self._work, self._inputs = work, inputs
        self._plan = {
            "inputs": [[path, os.path.getsize(path) if os.path.exists(path) else None] for path in inputs],
            "shard_size": size,
            "work": {**work.describe(), "text": text},
        }
        self._journal = -1
        self._lock = self._open_folder(resume, force)
        try:
            self.complete = self._begin(resume, force)
        except BaseException:
            self.close()
            raise

    def _open_folder(self, resume: bool, force: bool) -> int:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file, but --ray writes a folder of shards; give another output")
        if self.path.is_dir() and any(self.path.iterdir()) and not (resume or force):
            raise UserError(f"{self.path}: exists; use --resume to continue it or --force to replace it")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}; give an output folder that can be written") from error
        try:
            lock(descriptor, str(self.path))
        except UserError:
            os.close(descriptor)
            raise
        return descriptor

    def _begin(self, resume: bool, force: bool) -> bool:
        """Read or start the journal; whether the run is over already."""
        if force:
            for path in self.path.iterdir():
                if SHARD.fullmatch(path.name.removesuffix(".tmp")) or path.name in (NAME, JOURNAL):
                    path.unlink()
            self.errors_path.unlink(missing_ok=True)
        if (self.path / NAME).exists():
            self._check_plan(Manifest.read(self.path).work, self.path / NAME)
            return True
        try:
            self._journal = os.open(self.path / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}; give an output folder that can be written") from error
        kept = KeptLines(self._journal)
        if kept.line is not None:
            self._check_plan(parse_json(kept.line, str(self.path / JOURNAL)), self.path / JOURNAL)
            kept.take()
            while kept.line is not None:
                self._read_done(kept.line)
                kept.take()
        kept.cut()
        if not kept.taken:
            self._append(self._plan)
        return False

    def _check_plan(self, theirs: Any, where: Path) -> None:
        if not isinstance(theirs, dict):
            raise UserError(f"{where}: not written by mbrace; use --force to start over")
        ours = parse_json(to_json(self._plan), "plan")
        for field in ours:
            if theirs.get(field) != ours[field]:
                raise UserError(
                    f"{where}: --resume: the run was begun with other {field.replace('_', ' ')} "
                    f"({to_json(theirs.get(field)).decode()[:200]}); give the same, or --force to start over"
                )

    def _read_done(self, line: bytes) -> None:
        where = self.path / JOURNAL
        fields = parse_json(line, str(where))
        try:
            shard, place = Shard(**fields["shard"]), (int(fields["place"][0]), int(fields["place"][1]))
            done = Done(shard, base64.b64decode(fields["ids"], validate=True), list(fields["errors"]))
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise UserError(f"{where}: not a journal of mbrace ({error}); use --force to start over") from None
        check_name(shard.file, where)
        path = self.path / shard.file
        if path.exists() and path.stat().st_size == shard.bytes:  # else the block runs again
            self.done[place] = done

    def add(self, result: Result) -> None:
        """Write a shard; one that is there already changes nothing."""
        place = (result.input, result.number)
        if place in self.done:
            return
        lines = result.lines.split(b"\n")[:-1]
        errors = [parse_json(line, "errors") for line in result.errors.splitlines()]
        self._write(place, result.first_line, result.count, [line + b"\n" for line in lines], errors, result.ids)

    def _write(
        self, place: tuple[int, int], first: int, count: int, lines: list[bytes], errors: list[Any], ids: bytes
    ) -> None:
        name = f"part-{place[0]:05d}-{place[1]:06d}{self.suffix}"
        path = self.path / name
        try:
            if self.suffix == ".parquet":
                rows = self.path / (name + ".tmp")
                replace_file(rows, b"".join(lines))
                to_parquet(str(rows), str(path))
                rows.unlink()
                data = path.read_bytes()
            else:
                data = pack_all(lines) if self.suffix.endswith(".gz") else b"".join(lines)
                replace_file(path, data)
            digest = hashlib.sha256(data).hexdigest()
            answers = count - len(errors)
            source = self._inputs[place[0]]
            shard = Shard(name, source, first, count, answers, len(errors), len(data), digest)
            ids64 = base64.b64encode(ids).decode()
            self._append({"place": place, "shard": vars(shard), "ids": ids64, "errors": errors})
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; {ROOM}") from error
        self.done[place] = Done(shard, ids, errors)

    def _append(self, fields: Any) -> None:
        write_all(self._journal, to_json(fields) + b"\n")
        os.fsync(self._journal)

    def duplicates(self) -> list[tuple[tuple[int, int], int]]:
        """(shard, position in it) of every record whose id was there before, in input order."""
        places = sorted(self.done)
        if not places:
            return []
        ids = np.concatenate([self.done[place].ids for place in places])
        order = np.argsort(ids, kind="stable")
        again = np.flatnonzero((ids[order][1:] == ids[order][:-1]) & (ids[order][1:] != 0)) + 1
        starts = np.cumsum([0] + [len(self.done[place].ids) for place in places])
        found = []
        for position in np.sort(order[again]).tolist():
            shard = int(np.searchsorted(starts, position, side="right")) - 1
            found.append((places[shard], position - int(starts[shard])))
        return found

    def set_duplicates_aside(self, prefixes: list[str], *, skip: bool) -> None:
        """Treat repeated ids as a run on one machine does: an error, or the later records set aside."""
        for place, position in self.duplicates():
            done = self.done[place]
            line = done.shard.first_line + position
            bad = self._repeated(done.shard, line, prefixes[place[0]])
            if not skip:
                raise bad.error()
            fields = parse_json(bad.to_line(), "errors")
            known = [error["line"] for error in done.errors]
            errors = sorted(
                [error for error in done.errors if error["line"] != line] + [fields], key=lambda e: e["line"]
            )
            lines = self._lines_of(done.shard)
            if self.text:
                lines[position] = b"\n"
            elif line not in known:
                del lines[position - sum(other < line for other in known)]
            ids = done.ids.copy()
            ids[position] = 0
            self._write(place, done.shard.first_line, done.shard.lines, lines, errors, ids.tobytes())

    def _repeated(self, shard: Shard, line: int, prefix: str) -> Bad:
        for number, row in enumerate(rows_of(shard.input), 1):
            if number == line:
                raw = row if isinstance(row, bytes) else to_json(row)
                item = self._work.item(raw, shard.input, line, prefix)
                return Bad(
                    Location(shard.input, line), item.id, f"id: {item.id!r} is not unique; give each record its own id"
                )
        raise UserError(f"{shard.input}: changed while the run was reading it; start over with --force")

    def _lines_of(self, shard: Shard) -> list[bytes]:
        rows = rows_of(str(self.path / shard.file))
        return [row if isinstance(row, bytes) else to_json(row) + b"\n" for row in rows]

    def write_errors(self) -> int:
        """Write OUT.errors.jsonl from the finished shards, in input order; how many records were set aside."""
        errors = [error for place in sorted(self.done) for error in self.done[place].errors]
        try:
            if errors:
                replace_file(self.errors_path, b"".join(to_json(error) + b"\n" for error in errors))
            else:
                self.errors_path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{self.errors_path}: {error.strerror}; {ROOM}") from error
        return len(errors)

    def finish(self) -> None:
        """Every block is done: the manifest takes the journal's place."""
        shards = [self.done[place].shard for place in sorted(self.done)]
        try:
            Manifest(self.path, self._plan, list(self._inputs), complete=True, shards=shards).write()
            (self.path / JOURNAL).unlink()
        except OSError as error:
            raise UserError(f"{self.path / NAME}: {error.strerror}; {ROOM}") from error

    def close(self) -> None:
        """Let go of the folder."""
        for descriptor in (self._journal, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._journal = self._lock = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _suffix(output: str, text: bool) -> str:
    if output.endswith(".parquet"):
        require("pyarrow.parquet", extra="parquet")
        if text:
            raise UserError(f"{output}: --text writes plain text; leave --text out for Parquet")
        return ".parquet"
    check_packing(output, (".gz", ".parquet"))
    return (".txt" if text else ".jsonl") + (".gz" if output.endswith(".gz") else "")
