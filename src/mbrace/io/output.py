"""Writing answers so that none is lost: in input order, complete lines only, and continued byte for byte on resume."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Any

from mbrace.errors import UserError, require
from mbrace.io.atomic import lock, replace_file, write_all
from mbrace.io.candidates import Bad, lines_of
from mbrace.io.jsonl import json_line, parse_json, valid_unicode
from mbrace.io.packing import check_packing, pack, pop_full_members
from mbrace.io.parquet import write_parquet
from mbrace.io.resume import PackedLines, ParquetLines, PlainLines, WrittenLines, begins_like_our_output
from mbrace.io.settings import refuse_other_settings
from mbrace.race import Decoded

EXISTS = "exists; use resume=True to continue it or force=True to replace it"


def answer_line(answer: Decoded, *, text: bool, nbest: int) -> bytes:
    """One output line: the text alone, or a JSON object."""
    if text:
        return valid_unicode(answer.text, "Plain text").replace("\r", " ").replace("\n", " ").encode() + b"\n"
    fields: dict[str, Any] = {
        "id": answer.id,
        "text": answer.text,
        "index": answer.index,
        "utility": answer.utility,
        "utility_calls": answer.utility_calls,
        "pairs_scored": answer.pairs_scored,
        "strings": answer.strings,
        "pseudo_references": answer.pseudo_references,
        "survivors": [step.survivors for step in answer.steps],
    }
    if answer.quality_calls is not None:
        fields["quality_calls"] = answer.quality_calls
    if nbest > 1:
        fields["nbest"] = [{"text": c.text, "index": c.index, "utility": c.utility} for c in answer.nbest]
    return json_line(fields)


class Output:
    """A file of answers: `-` is stdout, `.gz` and `.xz` are packed, `.parquet` is a table.

    On resume, the caller first keeps those lines of `written` and `written_errors` that answer the input, then calls
    `start`. After that it calls `add` for each outcome, and `flush` when a window is finished: lines collect in memory
    until then. Records that failed are written to OUT.errors.jsonl as they are added, when no line after them can be in
    OUT, so that after a crash the two files tell how far the run had come. A Parquet file has no torn state: its rows
    collect as JSON Lines in OUT.part, and the file appears when the run is complete. Until then its `settings` are in
    OUT.run.json: only a run with the same can continue it. With `keep_settings` they stay there for good, and a file
    without them is not continued.
    """

    def __init__(
        self,
        path: str,
        *,
        resume: bool = False,
        force: bool = False,
        text: bool = False,
        settings: dict[str, Any] | None = None,
        keep_settings: bool = False,
    ) -> None:
        self.path, self.text = path, text
        self.written = self.written_errors = WrittenLines()
        self.skipped = 0  # records set aside, those of the runs before included
        self.interrupted = False  # set when a run ends early without an error
        self._is_stream = path == "-" or _is_device(path)
        self._is_parquet = path.endswith(".parquet") and not self._is_stream
        self._packing = path[-2:] if path.endswith((".gz", ".xz")) and not self._is_stream else ""
        self._file = path + ".part" if self._is_parquet else path  # where lines are written
        self._errors_path, self._settings_path = path + ".errors.jsonl", path + ".run.json"
        self._keep_settings, self._has_settings = keep_settings, False
        self._lines: list[bytes] = []  # not written yet
        self._bytes_written = 0
        self._failed = self._is_finished = self._is_new = self._continues = False
        self._descriptor = self._errors = -1
        if self._is_stream:
            if resume:
                name = "standard output" if path == "-" else path
                raise UserError(f"resume=True: cannot continue {name}; give an output file")
            if path != "-":
                self._descriptor = self._open(path, os.O_WRONLY)
            return
        check_packing(path, (".gz", ".xz", ".parquet"))
        if self._is_parquet:
            require("pyarrow.parquet", extra="parquet")
            if text:
                raise UserError(f"{path}: text=True writes plain text; give a .txt file, or leave it out for Parquet")
        self._open_files(resume, force)
        if settings is not None:
            self._check_settings(settings)
            self._has_settings = True

    def _open_files(self, resume: bool, force: bool) -> None:
        """Open, lock, and on resume look at what is there."""
        exists = os.path.exists(self.path) or os.path.exists(self._file)
        if exists and not (resume or force):
            raise UserError(f"{self.path}: {EXISTS}")
        self._is_finished = self._is_parquet and resume and exists and not os.path.exists(self._file)
        if self._is_finished:
            self.written, self._continues = ParquetLines(self.path), True
        else:
            self._is_new = not os.path.exists(self._file)
            self._descriptor = self._open(self._file, os.O_RDWR | os.O_CREAT | (0 if exists else os.O_EXCL))
            lock(self._descriptor, self.path)
            if resume:
                if not begins_like_our_output(self._descriptor, packing=self._packing, text=self.text):
                    os.close(self._descriptor)
                    raise UserError(f"{self.path}:1: not an answer of mbrace; use force=True to replace the file")
                packed = PackedLines(self._descriptor, self._packing) if self._packing else None
                self.written = packed or PlainLines(self._descriptor)
                self._continues = os.fstat(self._descriptor).st_size > 0
            else:
                os.ftruncate(self._descriptor, 0)
        if os.path.exists(self._errors_path):
            if resume:
                self._open_errors()
                self.written_errors = PlainLines(self._errors)
                self._continues |= self.written_errors.line is not None
            else:
                os.unlink(self._errors_path)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        """Compare the settings with those of the run that is continued, or write them for the next."""
        path = self._settings_path
        try:
            if self._continues and os.path.exists(path):
                before = parse_json(Path(path).read_bytes(), path)
                remedy = "give the same options, another output, or force=True to start over"
                refuse_other_settings(before, settings, file=self.path, remedy=remedy)
            elif self._continues and self._keep_settings:
                raise UserError(f"{path}: missing, so {self.path} cannot be continued; use force=True to start over")
            elif not self._is_finished:
                replace_file(Path(path), json_line(settings))
        except (OSError, UserError) as error:
            self.close(complete=False)
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: {error.strerror}; give an output in a folder that can be written") from error

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise UserError(f"{path}: {EXISTS}") from None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; give an output file that can be written") from error

    def _open_errors(self) -> None:
        if self._is_stream:
            raise UserError('on_error="skip": failed records are written to OUT.errors.jsonl; give an output file')
        self._errors = self._open(self._errors_path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def start(self) -> None:
        """Drop the lines of `written` and `written_errors` that were not kept; what is added comes after the others."""
        self._lines = self.written.drop_rest()
        self.written_errors.drop_rest()
        self.skipped = self.written_errors.kept
        if self._errors >= 0 and not self.skipped:
            os.close(self._errors)
            os.unlink(self._errors_path)
            self._errors = -1

    def add(self, line: bytes | None, bad: Bad | None = None) -> None:
        """The next line, a record that failed, or both (text output has an empty line for it)."""
        if self._is_finished:
            raise UserError(f"{self.path}: is finished, but the input has more records; use force=True to start over")
        if bad is not None:
            if self._errors < 0:
                self._open_errors()
            self._write(self._errors, bad.to_line(), self._errors_path)
            self.skipped += 1
        if line is not None:
            self._lines.append(line)

    def flush(self) -> None:
        """Write the lines added so far; packed output, as far as they fill members."""
        if self._packing:
            for member in pop_full_members(self._lines, self._packing):
                self._write(self._descriptor, member, self.path)
        elif self._lines:
            lines, self._lines = self._lines, []
            self._write(self._descriptor, b"".join(lines), self.path)

    def _write(self, descriptor: int, data: bytes, path: str) -> None:
        if self._failed:
            return
        try:
            if self.path == "-":
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                write_all(descriptor, data)
            self._bytes_written += len(data)
        except BrokenPipeError:
            self._failed = True
            raise
        except OSError as error:
            self._failed = True
            remedy = "; answers written before are kept: make room and go on with resume=True"
            raise UserError(f"{path}: {error.strerror}{'' if self._is_stream else remedy}") from error

    def close(self, *, complete: bool = True) -> None:
        """Write what is left and close the file; a `complete` Parquet file gets its name."""
        try:
            if not self._failed:
                self.flush()
                if self._packing and (self._lines or (complete and os.lseek(self._descriptor, 0, os.SEEK_CUR) == 0)):
                    self._write(self._descriptor, pack(self._lines, self._packing), self.path)
                    self._lines = []
            if self._descriptor >= 0 and not self._is_stream:
                os.fsync(self._descriptor)
                self._finish(complete and not self._failed, is_empty=not complete and not self._bytes_written)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise UserError(f"{self.path}: {error.strerror}; make room and go on with resume=True") from error
        finally:
            for descriptor in (self._descriptor, self._errors):
                if descriptor >= 0:
                    os.close(descriptor)
            self._descriptor = self._errors = -1

    def _finish(self, complete: bool, *, is_empty: bool) -> None:
        """Give a complete Parquet file its name; delete what is not needed any more, or was never used."""
        if self._is_parquet and complete:
            write_parquet(lambda: lines_of(self._file), Path(self.path))
            os.unlink(self._file)
        never_used = self._is_new and is_empty
        if never_used:
            os.unlink(self._file)
        if self._has_settings and (never_used or (complete and not self._keep_settings)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._settings_path)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(complete=kind is None and not self.interrupted)


def _is_device(path: str) -> bool:
    """A pipe or a device such as /dev/null, which is written as a stream."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path)
    except OSError:
        return False
