"""What a job is, and how it runs on one machine: items in, lines written as they come, a summary of the cost."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args

from mbrace.errors import FORCE, MOST_THREADS, RESUME, ServiceError, SettingError, UserError, check_whole
from mbrace.io.candidates import Bad, Item, Paths, Row, bad_from, expand, location_of, read_items
from mbrace.io.output import Output, OutputFiles, check_inputs
from mbrace.io.reading import parse_json
from mbrace.jobs.terminal import Stop, progress_bar
from mbrace.records import Location, Record
from mbrace.result import Phases
from mbrace.setting_fields import REMOVED_VALUES, nearest
from mbrace.windows import OnError

Found = TypeVar("Found")
Outcome: TypeAlias = "tuple[bytes | None, Bad | None]"  # the line to write, and why an item was set aside
ErrorPolicy: TypeAlias = Literal["stop", "skip"]
Progress: TypeAlias = "Callable[[int], None] | bool"


@dataclass
class Summary:
    """What a run did: sentences, calls against those standard MBR would make, seconds by phase."""

    sentences: int = 0
    kept: int = 0  # answers found in the output on resume
    skipped: int = 0  # records set aside, those of earlier runs included
    utility_calls: int = 0
    pairs_scored: int = 0
    strings: int = 0  # distinct strings encoded, summed over sentences
    standard_calls: int = 0  # |H| x |R| with the sizes the schedule allows
    quality_calls: int = 0  # hypotheses whose quality was estimated without a reference
    truncated: int = 0  # strings over a neural utility's length limit, cut there
    requests: int = 0  # answered by the utility's server; the next three are those of `mbrace.utility.Cost`
    kept_answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    drawn: int = 0  # pseudo-references drawn from a live model
    cut: int = 0  # outputs of a server that ended at max_tokens, and blank ones: they are no candidates
    blank: int = 0
    # of answers: their draws, out of this many at most; those without a match of a vote's pattern, and what they cost
    draws: int = 0
    most_draws: int = 0
    unmatched: int = 0
    draw_requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    untold: int = 0  # requests whose answers did not say their tokens
    probe_tokens: int = 0  # to find out what the server does
    stopped_by_regret: int = 0  # prompts, by why no more draws were made
    stopped_by_vote: int = 0
    stopped_by_one_text: int = 0
    stopped_by_all_draws: int = 0
    stopped_by_cost: int = 0
    hypothesis_seconds: float = 0.0  # spent on hypotheses of a live model
    seconds: float = 0.0
    phases: Phases = field(default_factory=Phases)
    signal: int | None = None  # the one that ended the run early


@dataclass(frozen=True)
class RunOptions:
    """What every run may be told, on one machine or on a cluster.

    `threads` are those of the utility and of the model (0: all cores). `resume` continues after the answers in the
    output, `force` replaces them. `on_error="skip"` sets a bad record aside in OUTPUT.errors.jsonl.
    """

    threads: int = 0
    resume: bool = False
    force: bool = False
    on_error: ErrorPolicy = "stop"

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        if self.on_error not in get_args(ErrorPolicy):
            removed = REMOVED_VALUES.get(("on_error", self.on_error))
            reason = removed or f"unknown{nearest(self.on_error, get_args(ErrorPolicy))}"
            raise SettingError("on_error", self.on_error, reason)
        check_whole("threads", self.threads, least=0, most=MOST_THREADS)
        if self.resume and self.force:
            raise UserError(f"{RESUME} and {FORCE}: give one of them")


class Worker(Protocol):
    """Turns items into lines, one outcome per item, in order. A bad item is an error, or set aside with `skip`.

    One that may wait for a server has `interrupt()`, which may be called at any time and ends those waits with a
    ServiceError; one that saves utilities has them in `utility_folder` before it yields the line of an answer.
    """

    @property
    def summary(self) -> Summary:
        """What it did so far."""

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """The outcomes, as they come."""
        ...


class Job(Protocol):
    """What a run does: settings that can be sent to another machine, where `start` loads what is heavy.

    One that can save the utilities of records has `save_utilities`, the folder for them (None: it does not).
    """

    @property
    def text(self) -> bool:
        """Whether its lines are plain text."""

    @property
    def reads_records(self) -> bool:
        """Whether an input line is a record; blank lines at the end of a file are then left out."""

    def describe(self) -> dict[str, Any]:
        """What the output depends on, as JSON values: a run is resumed only with the same ones."""
        ...

    def start(self, threads: int) -> Worker:
        """Load what is needed, to be run with `threads` threads (0: all cores)."""
        ...

    def item(self, row: Row, file: str, number: int, prefix: str) -> Item:
        """The item of an input line; `prefix` is for its default id."""
        ...


def items_of(job: Job, inputs: Paths, output: str | os.PathLike[str], *, others: Sequence[str] = ()) -> Iterable[Item]:
    """The items of a job's input files, once those and the `others` that it reads are seen to be there."""
    paths = expand(inputs)
    check_inputs([*paths, *others], os.fspath(output))
    return read_items(paths, job.item, records=job.reads_records)


def run_job(
    job: Job,
    items: Iterable[Item],
    output: str | os.PathLike[str],
    how: RunOptions = RunOptions(),
    *,
    handle_signals: bool = False,
    progress: Progress = False,
    total: int | None = None,
    options: dict[str, Any] | None = None,
) -> Summary:
    """Run a job over `items` into the file `output` on this machine.

    With `handle_signals`, SIGINT and SIGTERM end the run after the current window. `progress` is a function called with
    the number of items done since its last call, or True for a bar on stderr, where `total` is the number of items.
    `options` are those of the command line, saved in OUTPUT.run.json.
    """
    output = os.fspath(output)
    if not (how.resume or how.force):
        OutputFiles(output).refuse_existing()
        if folder := getattr(job, "save_utilities", None):
            from mbrace.io.folders import refuse_existing_tables

            refuse_existing_tables(folder)
    worker = job.start(how.threads)
    with ExitStack() as stack:
        stop = stack.enter_context(Stop(getattr(worker, "interrupt", None))) if handle_signals else None
        settings = job.describe()
        tables = getattr(worker, "utility_folder", None)
        out = stack.enter_context(
            Output(output, how.resume, how.force, text=job.text, settings=settings, tables=tables, options=options)
        )
        if isinstance(progress, bool):
            progress = progress and not (output == "-" and sys.stdout.isatty())  # not both on one terminal
            progress = stack.enter_context(progress_bar(settings.get("command", "running"), total, shown=progress))
        return run_worker(worker, items, out, skip=how.on_error == "skip", stop=stop, advance=progress)


def run_worker(
    worker: Worker,
    items: Iterable[Item],
    output: Output,
    *,
    skip: bool = False,
    stop: Stop | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Summary:
    """Give `items` to a worker and write its lines, after those that `output` already has."""
    summary = worker.summary
    started = time.perf_counter()
    rest = skip_answered(items, output)
    if stop is not None:
        rest = iter(partial(stop.read, rest), None)  # the items until a signal arrives
    output.start()
    summary.kept = output.written.kept
    advance(summary.kept)
    pending: deque[Item] = deque()  # read, and still without an outcome
    if stop is not None:
        stop.under_way = lambda: len(pending)

    def read() -> Iterator[Item]:
        for item in rest:
            pending.append(item)
            yield item

    try:
        for line, bad in worker(read(), skip=skip):
            item = pending.popleft()
            output.add(line, bad)
            if bad is None and isinstance(item, Record):
                output.expect(item, pending)
                output.note_answered(item)
            output.flush()
            advance(1)
    except ServiceError:
        if stop is None or stop.signal is None:  # a signal may end a wait for a server, which is no error
            raise
    summary = worker.summary
    summary.signal = None if stop is None else stop.signal
    output.interrupted = summary.signal is not None
    summary.skipped = output.skipped
    summary.seconds = time.perf_counter() - started
    return summary


def skip_answered(items: Iterable[Item], output: Output) -> Iterator[Item]:
    """The items after those that an earlier run answered or set aside; the files must match the input, in order."""
    source = iter(items)
    answers, errors = output.written, output.written_errors
    if answers.line is None and errors.line is None:
        return source
    for item in source:
        is_aside = errors.line is not None and _location(errors.line, output) == location_of(item)
        if is_aside and not output.text:
            errors.keep()
            continue
        if answers.line is None:  # the run was perhaps killed before it wrote the empty line of a record set aside
            return itertools.chain([item], source)
        if is_aside:
            errors.keep()
            answers.keep()
            continue
        _check_same(item, answers.line, answers.kept + 1, output)
        if isinstance(item, Record) and not output.note_answered(item):
            raise UserError(
                f"{item.where}: {RESUME}: {output.path} was made from other records up to here, with the same "
                f"ids but another content; give the input the output was made from, or {FORCE} to start over"
            )
        answers.keep()
    if answers.line is not None:
        raise UserError(
            f"{output.path}: {RESUME}: has more answers than the input has records; "
            f"give the input it was made from, or {FORCE} to start over"
        )
    return source


def _check_same(item: Item, line: bytes, number: int, output: Output) -> None:
    if output.text and isinstance(item, Record):
        return
    where = f"{output.path}:{number}"
    fields = {} if output.text else parse_json(line, where)
    identity = fields.get("id") if isinstance(fields, dict) else None
    if not output.text and not isinstance(identity, (str, int)):
        raise UserError(f"{where}: {RESUME}: not an answer of mbrace; use {FORCE} to replace the file")
    theirs = item.id if isinstance(item, Record) else None
    if identity != theirs and not (output.path.endswith(".parquet") and str(identity) == str(theirs)):
        raise UserError(
            f"{location_of(item)}: {RESUME}: {where} answers record {identity!r} where the input has "
            f"{'a bad record' if isinstance(item, Bad) else repr(theirs)}; "
            f"give the input the output was made from, or {FORCE} to start over"
        )
    says_sources = "source" in fields and "text" not in fields  # only candidate files do
    made_of = (fields["source"], fields.get("reference")) if says_sources else None
    if made_of is not None and isinstance(item, Record) and made_of != (item.source, item.reference):
        raise UserError(f"{where}: {RESUME}: not made of {item.where}; give the same sources, or {FORCE} to start over")


def _location(line: bytes, output: Output) -> Location:
    where = output.files.errors
    fields = parse_json(line, where)
    if not isinstance(fields, dict):
        raise UserError(f"{where}: {RESUME}: not written by mbrace; use {FORCE} to start over")
    return Location(str(fields.get("file")), int(fields.get("line") or 0))


def answer_items(
    items: Iterable[Item],
    answer: Callable[[Iterable[Record], OnError], Iterable[Found]],
    line: Callable[[Record, Found], bytes],
    *,
    skip: bool,
    text: bool,
) -> Iterator[Outcome]:
    """One outcome per item: `answer` decodes the records, `line` turns an answer into a line.

    A bad item is an error, or set aside with `skip`; with `text` it then leaves an empty line.
    """
    line_of_bad = b"\n" if text else None  # text has one line per source
    pending: deque[tuple[int, Item]] = deque()  # positions and items that were read and have no outcome yet
    failed: dict[int, Bad] = {}  # by position

    def read() -> Iterator[Record]:
        for number, item in enumerate(items):
            if isinstance(item, Bad):
                if not skip:
                    raise item.error()
                failed[number] = item
            pending.append((number, item))
            if isinstance(item, Record):
                yield item

    def on_error(record: Record, error: Exception) -> None:
        bad = bad_from(record, error)
        if not skip or isinstance(error, ImportError):  # a missing package is not the record's fault
            raise bad.error() if record.location is not None else error
        failed[next(number for number, item in pending if item is record and number not in failed)] = bad

    def outcomes_of_failed() -> Iterator[Outcome]:
        while pending and pending[0][0] in failed:
            yield line_of_bad, failed.pop(pending.popleft()[0])

    for found in answer(read(), on_error):
        yield from outcomes_of_failed()
        _, record = pending.popleft()
        assert isinstance(record, Record)
        yield line(record, found), None
    yield from outcomes_of_failed()
