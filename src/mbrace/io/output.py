"""Writing answers so that none is lost: in input order, complete lines only, and continued byte for byte on resume."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from mbrace.errors import UserError, require
from mbrace.io.files import Bad, parse_json, to_json, valid_unicode
from mbrace.io.resume import Kept, KeptLines, KeptMembers, KeptRows, Nothing, is_ours
from mbrace.race import Decoded

PACKINGS = (".gz", ".xz", ".bz2", ".zst", ".zip")
LINES_PER_MEMBER = 64  # packed output is a row of gzip members (xz streams) of so many lines, whatever the window


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
        "pseudo_references": answer.pseudo_references,
        "survivors": [step.survivors for step in answer.steps],
    }
    if nbest > 1:
        fields["nbest"] = [{"text": c.text, "index": c.index, "utility": c.utility} for c in answer.nbest]
    return to_json(fields) + b"\n"


def pack(lines: list[bytes], packing: str = "gz") -> bytes:
    """Lines as one gzip member or xz stream, the same bytes whenever and wherever it is made."""
    if packing == "xz":
        return lzma.compress(b"".join(lines))
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(b"".join(lines)) + packer.flush()


def pack_all(lines: list[bytes]) -> bytes:
    """Lines as a row of members, as `Output` writes them."""
    starts = range(0, len(lines), LINES_PER_MEMBER) if lines else [0]
    return b"".join(pack(lines[start : start + LINES_PER_MEMBER]) for start in starts)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte (a system call may take fewer)."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def lock(descriptor: int, path: str) -> None:
    """Refuse a second run on the same output. The system lets go of the lock when the process ends, however it ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise UserError(f"{path}: another mbrace run is writing it; wait for it, or give another output") from None
        # a file system without locks: go on without one


class Output:
    """A file of answers, `-` for stdout, `.gz` or `.xz` packed, `.parquet` a table; what is set aside goes beside it.

    Lines collect in memory until `flush`. Before a line is set aside in OUT.errors.jsonl nothing after it can have been
    written to OUT, so that after a crash the two files tell how far the run had come. A Parquet file has no torn state:
    its rows collect as JSON Lines in OUT.part, and the file appears when the run is over. As long as a run is not over,
    its `settings` are in OUT.run.json: only a run with the same may go on with it. With `settings_stay` they are there
    for good, and a file without them is not continued.
    """

    def __init__(
        self,
        path: str,
        *,
        resume: bool = False,
        force: bool = False,
        text: bool = False,
        settings: dict[str, Any] | None = None,
        settings_stay: bool = False,
    ) -> None:
        self.path, self.text = path, text
        self._settings_stay = settings_stay
        self.kept: Kept = Nothing()
        self.kept_errors: Kept = Nothing()
        self.skipped = 0
        self._stream = path == "-" or _is_device(path)
        self._packed = "" if self._stream else {".gz": "gz", ".xz": "xz"}.get(path[-3:], "")
        self._table = path.endswith(".parquet") and not self._stream
        if not self._stream:
            check_packing(path, (".gz", ".xz", ".parquet"))
        self.interrupted = False  # set when a run ends early without an error
        self._buffer: list[bytes] = []
        self._written = 0
        self._failed = self._finished = self._created = self._goes_on = False
        self._descriptor = self._errors = -1
        self._errors_path = path + ".errors.jsonl"
        self._run_path: str | None = None
        if self._stream:
            if resume:
                raise UserError(f"--resume: cannot continue {_stream_name(path)}; give a file with -o")
            if path != "-":
                self._descriptor = self._open(path, os.O_WRONLY)
            return
        if self._table:
            require("pyarrow.parquet", extra="parquet")
            if text:
                raise UserError(f"{path}: --text writes plain text; give a .txt file, or leave --text out for Parquet")
        self._begin(resume, force)
        if settings is not None:
            self._keep_settings(settings)
            self._run_path = path + ".run.json"

    def _begin(self, resume: bool, force: bool) -> None:
        """Open, lock, and on resume look at what is there."""
        target = self.path + ".part" if self._table else self.path
        known = os.path.exists(self.path) or os.path.exists(target)
        if known and not (resume or force):
            raise UserError(f"{self.path}: exists; use --resume to continue it or --force to replace it")
        self._finished = self._table and resume and os.path.exists(self.path) and not os.path.exists(target)
        if self._finished:
            self.kept, self._goes_on = KeptRows(self.path), True
        else:
            self._created = not os.path.exists(target)
            self._descriptor = self._open(target, os.O_RDWR | os.O_CREAT | (0 if known else os.O_EXCL))
            lock(self._descriptor, self.path)
            if resume:
                if not is_ours(self._descriptor, packing=self._packed, text=self.text):
                    os.close(self._descriptor)
                    where = f"{self.path}:1: --resume"
                    raise UserError(f"{where}: not an answer of mbrace; use --force to replace the file")
                packed = KeptMembers(self._descriptor, self._packed) if self._packed else None
                self.kept = packed or KeptLines(self._descriptor)
                self._goes_on = os.fstat(self._descriptor).st_size > 0
            else:
                os.ftruncate(self._descriptor, 0)
        if os.path.exists(self._errors_path):
            if resume:
                self._open_errors()
                self.kept_errors = KeptLines(self._errors)
                self._goes_on |= self.kept_errors.line is not None
            else:
                os.unlink(self._errors_path)

    def _keep_settings(self, settings: dict[str, Any]) -> None:
        path = self.path + ".run.json"
        try:
            if self._goes_on and os.path.exists(path):
                with open(path, "rb") as file:
                    compare_settings(parse_json(file.read(), path), settings, self.path)
            elif self._goes_on and self._settings_stay:
                raise UserError(f"{path}: missing, so {self.path} cannot be continued; use --force to start over")
            elif not self._finished:
                with open(path, "wb") as file:
                    file.write(to_json(settings) + b"\n")
        except (OSError, UserError) as error:
            self.close(complete=False)
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: {error.strerror}; give an output beside which it can be written") from error

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise UserError(f"{path}: exists; use --resume to continue it or --force to replace it") from None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; give an output file that can be written") from error

    def _open_errors(self) -> None:
        if self._stream:
            raise UserError("--on-error skip: what is set aside goes beside the output; give a file with -o")
        self._errors = self._open(self._errors_path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def go_on(self) -> None:
        """Drop what was not taken from `kept` and `kept_errors`, and write after the rest from here on."""
        self._buffer = self.kept.cut()
        self.kept_errors.cut()
        self.skipped = self.kept_errors.taken
        if self._errors >= 0 and not self.skipped:
            os.close(self._errors)
            os.unlink(self._errors_path)
            self._errors = -1

    def put(self, line: bytes | None, bad: Bad | None = None) -> None:
        """The next line, a record set aside, or both (text output has an empty line for it)."""
        if self._finished:
            raise UserError(f"{self.path}: is finished, but the input has more records; use --force to start over")
        if bad is not None:
            if self._errors < 0:
                self._open_errors()
            self._write(self._errors, bad.to_line(), self._errors_path)
            self.skipped += 1
        if line is not None:
            self._buffer.append(line)

    def flush(self) -> None:
        """Hand complete lines to the system; packed output, complete members."""
        if not self._packed:
            lines, self._buffer = self._buffer, []
            if lines:
                self._write(self._descriptor, b"".join(lines), self.path)
        while self._packed and len(self._buffer) >= LINES_PER_MEMBER:
            self._write(self._descriptor, pack(self._buffer[:LINES_PER_MEMBER], self._packed), self.path)
            del self._buffer[:LINES_PER_MEMBER]

    def _write(self, descriptor: int, data: bytes, path: str) -> None:
        if self._failed:
            return
        try:
            if self.path == "-":
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                write_all(descriptor, data)
            self._written += len(data)
        except BrokenPipeError:
            self._failed = True
            raise
        except OSError as error:
            self._failed = True
            remedy = "" if self._stream else "; answers written before are kept: make room and go on with --resume"
            raise UserError(f"{path}: {error.strerror}{remedy}") from error

    def close(self, *, complete: bool = True) -> None:
        """Write what is left and let go of the file; a `complete` Parquet file gets its name."""
        try:
            if not self._failed:
                self.flush()
                if self._packed and (self._buffer or (complete and os.lseek(self._descriptor, 0, os.SEEK_CUR) == 0)):
                    self._write(self._descriptor, pack(self._buffer, self._packed), self.path)
                    self._buffer = []
            if self._descriptor >= 0 and not self._stream:
                os.fsync(self._descriptor)
                self._finish(complete)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise UserError(f"{self.path}: {error.strerror}; make room and go on with --resume") from error
        finally:
            for descriptor in (self._descriptor, self._errors):
                if descriptor >= 0:
                    os.close(descriptor)
            self._descriptor = self._errors = -1

    def _finish(self, complete: bool) -> None:
        if self._table and complete and not self._failed:
            from mbrace.io.storage import to_parquet

            to_parquet(self.path + ".part", self.path)
            os.unlink(self.path + ".part")
        never_began = self._created and not complete and not self._written
        if never_began:  # leaves no file behind
            os.unlink(self.path + ".part" if self._table else self.path)
        over = complete and not self._failed and not self._settings_stay
        if self._run_path is not None and (never_began or over):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._run_path)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(complete=kind is None and not self.interrupted)


def check_packing(output: str, known: Sequence[str]) -> None:
    """Refuse a name that promises a packing which is not one of those known."""
    if output.endswith(PACKINGS) and not output.endswith(tuple(known)):
        names = f"{', '.join(known[:-1])} or {known[-1]}"
        raise UserError(f"{output}: cannot be packed so; give a name that ends in {names}, or in none of them")


def compare_settings(before: Any, settings: dict[str, Any], output: str) -> None:
    """Refuse to go on with `output` if it was made with other settings."""
    for name, value in parse_json(to_json(settings), output).items():
        if not isinstance(before, dict) or before.get(name) != value:
            old = before.get(name) if isinstance(before, dict) else before
            raise UserError(
                f"{output}: --resume: was made with {name.replace('_', '-')} {old!r}, not {value!r}; "
                "give the same options, another output, or --force to start over"
            )


def _is_device(path: str) -> bool:
    """A pipe or a device such as /dev/null, which is written as a stream."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path)
    except OSError:
        return False


def _stream_name(path: str) -> str:
    return "standard output" if path == "-" else path
