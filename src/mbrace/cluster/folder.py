"""The output folder of a sharded run: shards that are complete or absent, and a journal of the complete ones.

Only the driver writes here, so workers need not share a file system with it. A shard is written under a temporary name
and renamed; then a line is added to `journal.jsonl`. After a crash between the two, the block runs again, and the same
bytes get the same name. The manifest replaces the journal when the run is finished.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.cluster.shards import Result, blocks
from mbrace.errors import FORCE, RESUME, Parameter, UserError, require
from mbrace.io.atomic import OPEN_OWN, TEMPORARY, lock, open_folder, replace_file, write_all
from mbrace.io.candidates import Bad, lines_of, repeated_id
from mbrace.io.compression import check_packing, in_members
from mbrace.io.folders import MANIFEST, SHARD, Manifest, Shard, check_name
from mbrace.io.output import EXISTS, errors_path
from mbrace.io.parquet import write_parquet
from mbrace.io.reading import json_line, parse_json
from mbrace.io.resume import WrittenLines, refuse_other_settings
from mbrace.jobs.run import Job
from mbrace.records import Location

JOURNAL = "journal.jsonl"
MAKE_ROOM = f"finished shards are kept: free disk space and continue with {RESUME}"
BlockKey: TypeAlias = "tuple[int, int]"  # the number of the input file, and of the block in it


class FinishedShard(NamedTuple):
    """A shard, with what the manifest leaves out: 64-bit digests of its ids (0: no record), and failed records."""

    shard: Shard
    ids: NDArray[np.uint64]
    errors: list[dict[str, Any]]


class ShardFolder:
    """The state of a run on disk: `done` holds its finished shards by block."""

    def __init__(
        self,
        output: str,
        job: Job,
        inputs: list[str],
        *,
        size: int,
        resume: bool,
        force: bool,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.path = Path(output)
        self.errors_path = Path(errors_path(str(self.path)))
        self.done: dict[BlockKey, FinishedShard] = {}
        self._suffix = _suffix(output, job.text)
        self._job, self._inputs, self._size = job, inputs, size
        self._options = options  # of the command line, for the manifest
        self._plan: dict[str, Any] = {
            "inputs": [[path, os.path.getsize(path) if os.path.exists(path) else None] for path in inputs],
            "shard_size": size,
            "work": {**job.describe(), "text": job.text},
        }
        self._journal = self._lock = -1
        self._replaces = False  # an older output is there, to be replaced with the first shard
        try:
            self._open_folder(resume, force)
            self.complete = self._begin(force)
        except BaseException:
            self.close()
            raise

    def _open_folder(self, resume: bool, force: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file, but a cluster writes a folder of shards; give another output")
        if not (resume or force):
            for existing in (self.path, self.errors_path):
                if existing.is_file() or (existing.is_dir() and any(existing.iterdir())):
                    raise UserError(f"{existing}: {EXISTS}")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open_folder(self.path)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}; give an output folder that can be written") from error
        lock(self._lock, str(self.path))

    def _begin(self, force: bool) -> bool:
        """Read or start the journal; returns whether the run is finished already."""
        if force:
            self._replaces = True
            return False
        if (self.path / MANIFEST).exists():
            manifest = Manifest.read(self.path)
            self._check_plan(manifest.work, self.path / MANIFEST)
            for shard in manifest.shards:
                _, index, number = shard.file.partition(".")[0].split("-")
                self.done[int(index), int(number)] = FinishedShard(shard, np.zeros(0, np.uint64), [])
            return True
        self._open_journal()
        written = WrittenLines(self._journal)
        if written.line is not None:
            self._check_plan(parse_json(written.line, self.path / JOURNAL), self.path / JOURNAL)
            written.keep()
            while written.line is not None:
                self._read_finished(written.line)
                written.keep()
        written.drop_rest()
        if not written.kept:
            self._append(self._plan)
        return False

    def _open_journal(self) -> None:
        try:
            self._journal = os.open(self.path / JOURNAL, os.O_RDWR | os.O_CREAT | OPEN_OWN, 0o666)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}; give an output folder that can be written") from error

    def _replace(self) -> None:
        """Delete the output of an older run, now that there is something to replace it with."""
        if not self._replaces:
            return
        self._replaces = False
        for path in self.path.iterdir():
            if SHARD.fullmatch(path.name.removesuffix(TEMPORARY)) or path.name in (MANIFEST, JOURNAL):
                path.unlink()
        self.errors_path.unlink(missing_ok=True)
        self._open_journal()
        self._append(self._plan)

    def finished(self, index: int) -> dict[int, str]:
        """The finished blocks of an input file, with the digests of their lines."""
        return {number: done.shard.input_digest for (file, number), done in self.done.items() if file == index}

    def check_inputs(self) -> None:
        """Refuse inputs that are not those the finished shards were made from."""
        for index, path in enumerate(self._inputs):
            done, records = self.finished(index), self._job.reads_records
            for block in blocks(path, index, size=self._size, done=done, records=records):
                if block.failure:
                    raise UserError(block.failure)

    def _check_plan(self, before: Any, where: Path) -> None:
        remedy = f"give the same options and inputs, or {FORCE} to start over"
        plan = {name: value for name, value in self._plan.items() if name != "work"}
        refuse_other_settings(before, plan, file=where, remedy=remedy, data=("inputs",), ignored=("work",))
        refuse_other_settings(before.get("work"), self._plan["work"], file=where, remedy=remedy)

    def _read_finished(self, line: bytes) -> None:
        where = self.path / JOURNAL
        fields = parse_json(line, where)
        try:
            shard, block = Shard(**fields["shard"]), (int(fields["place"][0]), int(fields["place"][1]))
            ids = np.frombuffer(base64.b64decode(fields["ids"], validate=True), dtype=np.uint64)
            finished = FinishedShard(shard, ids, list(fields["errors"]))
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise UserError(f"{where}: not a journal of mbrace ({error}); use {FORCE} to start over") from None
        check_name(shard.file, where)
        path = self.path / shard.file
        if path.exists() and path.stat().st_size == shard.bytes:  # else the block runs again
            self.done[block] = finished

    def add(self, result: Result) -> None:
        """Write a shard; one that is there already changes nothing."""
        block = (result.input, result.number)
        if block in self.done:
            return
        lines = [line + b"\n" for line in result.lines.split(b"\n")[:-1]]
        errors = [parse_json(line, "errors") for line in result.errors.splitlines()]
        self._replace()
        name = f"part-{block[0]:05d}-{block[1]:06d}{self._suffix}"
        source = self._inputs[block[0]]
        shard = Shard(name, source, result.first_line, result.count, 0, 0, 0, "", result.digest)
        ids = np.frombuffer(result.ids, dtype=np.uint64)
        self._write(block, FinishedShard(shard, ids, errors), lines)

    def _write(self, block: BlockKey, finished: FinishedShard, lines: list[bytes]) -> None:
        """Write or replace a shard, and note it in the journal."""
        shard, ids, errors = finished
        path = self.path / shard.file
        try:
            if self._suffix == ".parquet":
                write_parquet(lambda: lines, path)
                data = path.read_bytes()
            else:
                packing = "gz" if self._suffix.endswith(".gz") else ""
                data = b"".join(in_members(lines, packing))
                replace_file(path, data)
            counts: dict[str, Any] = {"answers": shard.lines - len(errors), "skipped": len(errors), "bytes": len(data)}
            shard = shard._replace(**counts, sha256=hashlib.sha256(data).hexdigest())
            ids64 = base64.b64encode(ids.tobytes()).decode()
            self._append({"place": block, "shard": shard._asdict(), "ids": ids64, "errors": errors})
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; {MAKE_ROOM}") from error
        self.done[block] = FinishedShard(shard, ids, errors)

    def _append(self, fields: Any) -> None:
        write_all(self._journal, json_line(fields))
        os.fsync(self._journal)

    def duplicates(self) -> list[tuple[BlockKey, int]]:
        """(block, position in it) of every record whose id an earlier record has, in input order."""
        blocks = sorted(self.done)
        if not blocks:
            return []
        ids = np.concatenate([self.done[block].ids for block in blocks])
        order = np.argsort(ids, kind="stable")
        again = np.flatnonzero((ids[order][1:] == ids[order][:-1]) & (ids[order][1:] != 0)) + 1
        starts = np.cumsum([0] + [len(self.done[block].ids) for block in blocks])
        found = []
        for position in np.sort(order[again]).tolist():
            shard = int(np.searchsorted(starts, position, side="right")) - 1
            found.append((blocks[shard], position - int(starts[shard])))
        return found

    def set_duplicates_aside(self, prefixes: list[str], *, skip: bool) -> None:
        """Treat repeated ids as a run on one machine does: an error, or the later records set aside."""
        for block, position in self.duplicates():
            shard, ids, errors = self.done[block]
            line = shard.first_line + position
            bad = self._repeated(shard, line, prefixes[block[0]])
            if not skip:
                raise bad.error()
            known = [error["line"] for error in errors]
            others = [error for error in errors if error["line"] != line]
            errors = sorted([*others, parse_json(bad.to_line(), "errors")], key=lambda error: error["line"])
            lines = list(lines_of(str(self.path / shard.file)))
            if self._job.text:
                lines[position] = b"\n"
            elif line not in known:
                del lines[position - sum(other < line for other in known)]
            ids = np.where(np.arange(len(ids)) == position, np.uint64(0), ids)
            self._write(block, FinishedShard(shard, ids, errors), lines)

    def _repeated(self, shard: Shard, line: int, prefix: str) -> Bad:
        for row in itertools.islice(lines_of(shard.input), line - 1, line):
            item = self._job.item(row, shard.input, line, prefix)
            return repeated_id(Location(shard.input, line), item.id)
        raise UserError(f"{shard.input}: changed while the run was reading it; start over with {FORCE}")

    def write_errors(self) -> int:
        """Write OUT.errors.jsonl from the finished shards, in input order; returns how many records were set aside."""
        errors = [error for block in sorted(self.done) for error in self.done[block].errors]
        if self._replaces:  # nothing new: what is there belongs to the older output
            return 0
        try:
            if errors:
                replace_file(self.errors_path, b"".join(map(json_line, errors)))
            else:
                self.errors_path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{self.errors_path}: {error.strerror}; {MAKE_ROOM}") from error
        return len(errors)

    def finish(self) -> None:
        """Every block is finished: the manifest takes the journal's place."""
        shards = [self.done[block].shard for block in sorted(self.done)]
        self._replace()
        try:
            Manifest(self.path, self._plan, list(self._inputs), True, shards, self._options).write()
            (self.path / JOURNAL).unlink()
        except OSError as error:
            raise UserError(f"{self.path / MANIFEST}: {error.strerror}; {MAKE_ROOM}") from error

    def close(self) -> None:
        """Close and unlock the folder."""
        for descriptor in (self._journal, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._journal = self._lock = -1

    def __enter__(self) -> ShardFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


def _suffix(output: str, text: bool) -> str:
    if output.endswith(".parquet"):
        require("pyarrow.parquet", extra="parquet")
        if text:
            raise UserError(f"{output}: {Parameter('text', True)} writes plain text; leave it out for Parquet")
        return ".parquet"
    check_packing(output, (".gz", ".parquet"))
    return (".txt" if text else ".jsonl") + (".gz" if output.endswith(".gz") else "")
