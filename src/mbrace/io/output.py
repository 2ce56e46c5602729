"""Writes answers so that none is lost: in input order, complete lines only; resuming gives the same bytes."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mbrace.errors import FORCE, LARGEST, RESUME, Parameter, SettingError, UserError, check_whole, require, warn
from mbrace.io.atomic import OPEN, OPEN_OWN, TEMPORARY, lock, replacing, write_all
from mbrace.io.candidates import Bad, check_stdin, lines_of
from mbrace.io.compression import PACKED, check_packing, in_members, packing_of
from mbrace.io.folders import UtilityFolder
from mbrace.io.parquet import write_parquet
from mbrace.io.reading import byte_lines, json_line, open_input, valid_unicode
from mbrace.io.resume import SUFFIX, RunFile, WrittenLines, begins_like_our_output, whole_lines
from mbrace.records import Record
from mbrace.result import Decoded

EXISTS = f"exists; use {RESUME} to continue it or {FORCE} to replace it"


def answer_line(answer: Decoded, *, text: bool, nbest: int) -> bytes:
    """One output line: the text alone, or a JSON object."""
    if text:
        line = answer.text.replace("\r", " ").replace("\n", " ")
        if line != answer.text:
            warn(
                f"plain text has one line per answer: line breaks become spaces; {Parameter('text', False)} keeps them"
            )
        return valid_unicode(line, "Plain text").encode() + b"\n"
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


def check_lines(top: int | None, *, nbest: int, text: bool) -> None:
    """Refuse forms of output that cannot be combined: plain text, n-best lists, candidate records of the `top` best."""
    if top is None:
        if text and nbest > 1:
            remedy = f"give {Parameter('text', False)} for JSON Lines"
            raise SettingError("nbest", nbest, f"plain text has one line per source; {remedy}")
        return
    check_whole("top", top, least=1, most=LARGEST)
    if nbest != 1 or text:
        other = Parameter("text" if text else "nbest")
        raise SettingError("top", ..., f"only valid without {other}: it writes candidate records instead of answers")


def best_candidates_line(record: Record, answer: Decoded) -> bytes:
    """A candidate record that `mbrace decode` reads: the hypotheses of the answer's n-best list, in the order given,
    and all pseudo-references and other fields of the record."""
    fields: dict[str, Any] = {"id": record.id, "source": record.source, "reference": record.reference}
    indices = sorted(best.index for best in answer.nbest if best.index is not None)
    fields["hypotheses"] = [record.hypotheses[index] for index in indices]
    fields |= {"pseudo_references": record.listed(), "logprobs": record.logprobs, **(record.others or {})}
    return json_line({name: value for name, value in fields.items() if value is not None})


class OutputFiles:
    """The files that make up an output, and what the name OUT says about how lines are written.

    A symbolic link as OUT is written through, also one that leads to nothing yet. One in the place of another file is
    refused or replaced.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_stream = path == "-" or _is_device(path)  # stdout, a pipe, /dev/null: it has no other files
        self.is_parquet = path.endswith(".parquet") and not self.is_stream
        self.packing = "" if self.is_stream else packing_of(path)
        self.is_made_of_lines = self.is_parquet or bool(self.packing)  # in one step, when all of them are written
        self.target = os.path.realpath(path)
        self.lines = self.target + ".part" * self.is_made_of_lines  # where lines are written
        self.replacement = self.lines + TEMPORARY  # where those are written that will replace an older run's
        self.errors = errors_path(path)  # the records set aside
        self.run_file = path + SUFFIX

    @property
    def exists(self) -> bool:
        """Whether there is an output, finished or not."""
        return os.path.exists(self.path) or os.path.exists(self.lines)

    def refuse_existing(self) -> None:
        """Refuse an output that exists, finished or not, or of which only the errors are left: early, before anything
        slow."""
        existing = self.path if self.exists else self.errors
        if not self.is_stream and (self.exists or os.path.exists(existing)):
            raise UserError(f"{existing}: {EXISTS}")


def check_inputs(paths: Sequence[str], output: str) -> None:
    """Before the output is made, refuse a file that cannot be read, and one that is a file of the output."""
    check_stdin(paths)
    files = OutputFiles(output)
    own = [output] if files.is_stream else [output, files.lines, files.replacement, files.errors, files.run_file]
    for path in paths:
        if path == "-" or "://" in path:
            continue
        if os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path):
            with open_input(path):  # any file but a pipe, which can be opened only once
                pass
        for file in filter(os.path.exists, own):
            if os.path.samefile(path, file):
                raise UserError(f"{file}: is an input too; give another output")


def errors_path(output: str) -> str:
    """The file of the records that an output, a file or a folder of shards, set aside."""
    return output + ".errors.jsonl"


def _is_device(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path)
    except OSError:
        return False


class Output:
    """A file of answers: `-` is stdout, `.gz`, `.xz`, `.bz2` and `.zst` are packed, `.parquet` is a table.

    On resume, the caller first keeps those lines of `written` and `written_errors` that answer the input, then calls
    `start`. After that, for each outcome, it calls `add`, for an answer `expect` and `note_answered`, and `flush`.
    Records that failed are written to OUT.errors.jsonl as they are added, before any line that follows them is in OUT,
    so that after a crash the two files tell how far the run had come. A packed or Parquet file is never half written:
    its lines are collected in OUT.part, and the file appears when the run is complete.

    The `settings`, and digests of the records answered, are in OUT.run.json before the first answer: only a run with
    the same ones can continue it. The `options` of the command line are there for people, and for `--config`. With
    `force`, an older output stays until there is something to replace it with. `tables` is the folder with the
    utilities of the records answered.
    """

    def __init__(
        self,
        path: str,
        resume: bool = False,
        force: bool = False,
        *,
        text: bool = False,
        settings: dict[str, Any] | None = None,
        tables: UtilityFolder | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.path, self.text = path, text
        self.written = self.written_errors = WrittenLines()
        self.skipped = 0  # records set aside, those of the runs before included
        self.interrupted = False  # set when a run ends early without an error
        self.files = files = OutputFiles(path)
        self._run_file = None if settings is None or files.is_stream else RunFile(path, settings, options)
        self._lines: list[bytes] = []  # not written yet
        self._failed = False  # whether a write has failed
        self._is_new = False  # whether this run has created the file of lines
        self._is_copy = False  # whether that holds the lines of OUT, and none of this run yet
        self._continues = False  # whether there is something of an earlier run to continue
        self._has_started = False  # `start` was called
        self._has_begun = True  # False while an older output is still there in full
        self._descriptor = self._errors = self._replaced = -1
        self._tables: UtilityFolder | None = None
        try:
            if files.is_stream:
                self._open_stream(resume)
            else:
                self._open_files(resume, force)
                self._check_run_file()
            if tables is not None:
                tables.open(resume=resume, force=force)
                self._tables = tables
        except BaseException:
            self.close(complete=False)
            raise

    def _open_stream(self, resume: bool) -> None:
        name = "standard output" if self.path == "-" else self.path
        if resume:
            raise UserError(f"{RESUME}: cannot continue {name}; give an output file")
        if self.path != "-":
            self._descriptor = self._open(self.path, os.O_WRONLY | OPEN)
        elif sys.stdout is None or not sys.stdout.writable():
            raise UserError(f"{name}: is closed; give an output file")

    def _open_files(self, resume: bool, force: bool) -> None:
        """Open and lock the files, and on resume read what they hold."""
        files, exists = self.files, self.files.exists
        check_packing(self.path, (*PACKED, ".parquet"))
        if files.is_parquet:
            require("pyarrow.parquet", extra="parquet")
            if self.text:
                raise UserError(
                    f"{self.path}: {Parameter('text', True)} writes plain text; give a .txt file, or no Parquet"
                )
        if not (resume or force):
            files.refuse_existing()
        self._has_begun = not (exists and force)
        if force and os.path.exists(files.lines):
            self._replaced = self._open(files.lines, os.O_RDWR | OPEN_OWN)
            lock(self._replaced, self.path)
            self._descriptor = self._open(files.replacement, os.O_RDWR | os.O_CREAT | os.O_TRUNC | OPEN_OWN)
            lock(self._descriptor, self.path)
        else:
            self._is_new = not os.path.exists(files.lines)
            self._descriptor = self._open(files.lines, os.O_RDWR | os.O_CREAT | OPEN_OWN | (0 if exists else os.O_EXCL))
            lock(self._descriptor, self.path)
            if resume:
                self._read_lines()
        if os.path.exists(files.errors):
            if resume:
                self._open_errors()
                self.written_errors = WrittenLines(self._errors)
                self._continues |= self.written_errors.line is not None
            elif self._has_begun:
                os.unlink(files.errors)

    def _read_lines(self) -> None:
        """The lines of the run that is continued; a file that is not ours is refused."""
        has_lines = os.fstat(self._descriptor).st_size > 0
        if self.files.is_made_of_lines and not has_lines and os.path.exists(self.path) and os.path.getsize(self.path):
            self._is_copy = True
            for line in whole_lines(self.path):
                write_all(self._descriptor, line)
        if not begins_like_our_output(self._descriptor, text=self.text):
            raise UserError(f"{self.path}:1: not an answer of mbrace; use {FORCE} to replace the file")
        self.written = WrittenLines(self._descriptor)
        # part of a first line of JSON is known to be ours by its beginning; plain text could come from another program
        is_text = self.text and os.fstat(self._descriptor).st_size > 0
        self._continues = is_text or self.written.line is not None

    def _check_run_file(self) -> None:
        """Compare the settings with those of the run that is continued, or save them for the next run."""
        if self._run_file is None:
            return
        try:
            if self._continues:
                self._run_file.check()
            elif self._has_begun:
                self._run_file.save()
        except OSError as error:
            path = self._run_file.path
            raise UserError(f"{path}: {error.strerror}; give an output in a folder that can be written") from error

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags, 0o666)
        except FileExistsError:
            raise UserError(f"{path}: {EXISTS}") from None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; give an output file that can be written") from error

    def _open_errors(self) -> None:
        if self.files.is_stream:
            raise UserError(
                f"{Parameter('on_error', 'skip')}: failed records go to OUT.errors.jsonl; give an output file"
            )
        self._errors = self._open(self.files.errors, os.O_RDWR | os.O_CREAT | os.O_APPEND | OPEN_OWN)

    def start(self) -> None:
        """Drop the lines of `written` and `written_errors` that were not kept; new lines follow those that were."""
        self._has_started = True
        self.written.drop_rest()
        self.written_errors.drop_rest()
        self.skipped = self.written_errors.kept
        if self._errors >= 0 and not self.skipped:
            os.close(self._errors)
            os.unlink(self.files.errors)
            self._errors = -1
        if self._run_file is not None and self._continues:
            with self._write_errors(self._run_file.path):
                self._run_file.save(durable=False)

    def expect(self, record: Record, following: Iterable[object]) -> None:
        """Before the answer to `record` is written, save its digest, and those of the items read after it."""
        if self._run_file is None or self._run_file.inputs.expects(record):
            return
        self._run_file.inputs.expect([record, *(item for item in following if isinstance(item, Record))])
        if self._has_begun and not self._failed:
            with self._write_errors(self._run_file.path):
                self._run_file.save(durable=False)

    def note_answered(self, record: Record) -> bool:
        """Note that a record is answered; False if an earlier run answered a record with this id but other content."""
        is_same = self._run_file is None or self._run_file.inputs.add(record)
        if is_same and self._tables is not None:
            self._tables.note(record.id)
        return is_same

    def add(self, line: bytes | None, bad: Bad | None = None) -> None:
        """Add the next line, a record that failed, or both (text output has an empty line for a failed record)."""
        if bad is not None:
            if self._errors < 0:
                self._write(self._descriptor, b"", self.path)  # replaces an older output and deletes its errors
                self._open_errors()
            self._write(self._errors, bad.to_line(), self.files.errors)
            self.skipped += 1
        if line is not None:
            self._lines.append(line)

    def flush(self) -> None:
        """Write the lines added so far."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._write(self._descriptor, b"".join(lines), self.path)

    def _write(self, descriptor: int, data: bytes, path: str) -> None:
        if self._failed:
            return
        with self._write_errors(path):
            if self.path == "-":
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                write_all(descriptor, data)
            self._is_copy = False
            self._begin()

    @contextlib.contextmanager
    def _write_errors(self, path: str) -> Iterator[None]:
        """Says of a write that fails what is left, and what the user can do."""
        try:
            yield
        except BrokenPipeError:
            self._failed = True
            raise
        except OSError as error:
            self._failed = True
            if self.files.is_stream:
                kept = ""
            elif not self._has_begun:
                kept = "; the older file is kept as it was: free disk space and run again"
            elif self._is_empty():
                kept = "; no answer was written: free disk space and run again"
            else:
                kept = f"; answers written before are kept: free disk space and continue with {RESUME}"
            name = "standard output" if path == "-" else path
            raise UserError(f"{name}: {error.strerror}{kept}") from error

    def _begin(self) -> None:
        """Replace the older output, if one is still there, in one step, now that there is something new.

        OUT.run.json goes first and comes last, so that it is never next to an output that it does not describe.
        """
        if self._has_begun:
            return
        self._has_begun = True
        for path in (self.files.errors, self.files.run_file):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        if self._replaced >= 0:
            os.fsync(self._descriptor)
            os.replace(self.files.replacement, self.files.lines)
            os.close(self._replaced)
            self._replaced = -1
        if self._run_file is not None:
            self._run_file.save()

    def _is_empty(self) -> bool:
        """Whether there is nothing to continue: no complete line, and no record set aside."""
        return self._errors < 0 and WrittenLines(self._descriptor).line is None

    def close(self, *, complete: bool = True) -> None:
        """Write what is left and close the file; a `complete` packed or Parquet file gets its name."""
        try:
            if not self._failed:
                self.flush()
            if self._descriptor >= 0 and not self.files.is_stream:
                os.fsync(self._descriptor)
                self._finish(complete and not self._failed)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise UserError(f"{self.path}: {error.strerror}; free disk space and continue with {RESUME}") from error
        finally:
            for descriptor in (self._descriptor, self._errors, self._replaced):
                if descriptor >= 0:
                    os.close(descriptor)
            self._descriptor = self._errors = self._replaced = -1
            if self._tables is not None:
                self._tables.finish()

    def _finish(self, complete: bool) -> None:
        """Make a complete packed or Parquet file; delete files that are not needed any more, or were never used."""
        if complete:
            self._begin()
            if self.files.is_made_of_lines:
                self._make_of_lines()
                os.unlink(self.files.lines)
        never_used = not complete and self._is_empty()
        if self._replaced >= 0:
            os.unlink(self.files.replacement)
        elif (never_used and self._is_new) or (self._is_copy and not complete):
            os.unlink(self.files.lines)
        if self._run_file is None or not self._has_begun:
            return
        if never_used and self._is_new:
            if self._run_file.is_ours:
                os.unlink(self._run_file.path)
        elif self._has_started and not self._failed:
            self._run_file.inputs.finish()
            self._run_file.save()

    def _make_of_lines(self) -> None:
        """Write the packed or Parquet file that holds the lines."""
        if self.files.is_parquet:
            write_parquet(lambda: lines_of(self.files.lines), self.files.target)
            return
        with replacing(self.files.target) as temporary, open(temporary, "wb") as file:
            file.writelines(in_members(byte_lines(self.files.lines), self.files.packing))

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(complete=kind is None and not self.interrupted)
