"""A whole decoding run: records in, answers written as they come, a summary of what it cost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from mbrace.decode import decode_corpus
from mbrace.errors import UserError
from mbrace.io.candidates import Bad, Item, bad_from, location_of
from mbrace.io.jsonl import parse_json
from mbrace.io.output import Output, answer_line
from mbrace.jobs.signals import Stop
from mbrace.prune import PruningFunction
from mbrace.race import Decoded, Phases
from mbrace.records import Location, Record
from mbrace.sampler import Sampler
from mbrace.schedule import Schedule
from mbrace.utility import Utility, truncated_texts

Outcome: TypeAlias = "tuple[bytes | None, Bad | None]"  # the line to write, and why an item was set aside


@dataclass
class Summary:
    """What a run did: sentences, calls against those standard MBR would make, seconds by phase."""

    sentences: int = 0
    kept: int = 0  # answers found in the output on resume
    skipped: int = 0  # records set aside, those of the runs before included
    utility_calls: int = 0
    pairs_scored: int = 0
    standard_calls: int = 0  # |H| x |R| with the sizes the schedule allows
    truncated: int = 0  # strings over a neural utility's length limit, cut there
    seconds: float = 0.0
    phases: Phases = field(default_factory=Phases)
    signal: int | None = None  # that ended the run early


class Worker(Protocol):
    """Turns items into lines, one outcome an item, in order. A bad item is an error, or set aside with `skip`."""

    summary: Summary

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """The outcomes."""
        ...


class Work(Protocol):
    """What a run does, in a form that can be sent to another machine; the heavy parts are made there, by `start`."""

    def describe(self) -> dict[str, Any]:
        """What the output depends on, as JSON values: a run is resumed only with the same."""
        ...

    def start(self, threads: int) -> Worker:
        """Load what is needed; `threads` are this worker's share of its machine."""
        ...

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        """The item of an input line."""
        ...


@dataclass
class Decoder:
    """The worker of `mbrace decode`: the races, and answers as lines."""

    utility: Utility
    prune: PruningFunction | None
    schedule: Schedule = None
    seed: int = 0
    nbest: int = 1
    window: int = 64
    sampler: Sampler | None = None
    shuffle: bool = True
    text: bool = False
    summary: Summary = field(default_factory=Summary)

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome an item."""
        aside = b"\n" if self.text else None  # a line of text belongs to each source
        pending: deque[Item] = deque()
        failed: dict[int, Bad] = {}  # by the identity of the pending record

        def pull() -> Iterator[Record]:
            for item in items:
                if isinstance(item, Record):
                    pending.append(item)
                    yield item
                elif skip:
                    pending.append(item)
                else:
                    raise item.error()

        def on_error(record: Record, error: Exception) -> None:
            failed[id(record)] = bad_from(record, error)
            if not skip or isinstance(error, ImportError):  # a missing package is not the record's fault
                raise failed[id(record)].error() if record.location is not None else error

        def settle() -> Iterator[Outcome]:
            while pending and (isinstance(pending[0], Bad) or id(pending[0]) in failed):
                item = pending.popleft()
                yield aside, item if isinstance(item, Bad) else failed.pop(id(item))

        answers = decode_corpus(
            pull(),
            utility=self.utility,
            prune=self.prune,
            schedule=self.schedule,
            seed=self.seed,
            nbest=self.nbest,
            window=self.window,
            sampler=self.sampler,
            shuffle=self.shuffle,
            phases=self.summary.phases,
            on_error=on_error,
        )
        for answer in answers:
            yield from settle()
            record = pending.popleft()
            assert isinstance(record, Record)
            self._count(record, answer)
            yield answer_line(answer, text=self.text, nbest=self.nbest), None
        yield from settle()

    def _count(self, record: Record, answer: Decoded) -> None:
        self.summary.sentences += 1
        self.summary.utility_calls += answer.utility_calls
        self.summary.pairs_scored += answer.pairs_scored
        self.summary.truncated = truncated_texts(self.utility)
        self.summary.standard_calls += _standard_calls(record, answer, self.schedule, self.utility)


def _standard_calls(record: Record, answer: Decoded, schedule: Schedule, utility: Utility) -> int:
    given, hypotheses = record.pseudo_references, 1  # equal ones are one to the paper too
    if answer.steps:
        hypotheses = answer.steps[0].utility_calls // answer.steps[0].pseudo_references  # all of them in the first step
    listed = len(given) if isinstance(given, Sequence) else None
    if schedule == "all":
        return hypotheses * (listed or 0)
    last = list(utility.schedule if schedule is None else schedule)[-1]
    return hypotheses * (last if listed is None else min(last, listed))


def run_job(
    worker: Worker,
    items: Iterable[Item],
    output: Output,
    *,
    skip: bool = False,
    stop: Stop | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Summary:
    """Work through `items` into `output`, going on after what it holds; `stop` ends it after the window at work."""
    summary = worker.summary
    started = time.perf_counter()
    rest = unanswered(items, output)
    output.start()
    summary.kept = output.written.kept
    advance(summary.kept)

    def pull() -> Iterator[Item]:
        while True:
            output.flush()  # asked for more: every answer of the window before has come
            try:
                item = next(rest, None) if stop is None else stop.read(rest)
            except BaseException:
                output.flush()
                raise
            if item is None:
                return
            yield item

    for line, bad in worker(pull(), skip=skip):
        output.add(line, bad)
        advance(1)
    output.flush()
    summary.signal = None if stop is None else stop.signal
    output.interrupted = summary.signal is not None
    summary.skipped = output.skipped
    summary.seconds = time.perf_counter() - started
    return summary


def unanswered(items: Iterable[Item], output: Output) -> Iterator[Item]:
    """The items after those an earlier run answered or set aside; the files must agree with the input, in order."""
    source = iter(items)
    answers, errors = output.written, output.written_errors
    if answers.line is None and errors.line is None:
        return source
    for item in source:
        if errors.line is not None and _location(errors.line, output) == location_of(item):
            if output.text and answers.line is None:
                return _after(item, source)
            errors.keep()
            if output.text:
                answers.keep()
        elif answers.line is None:
            return _after(item, source)
        else:
            _check_same(item, answers.line, answers.kept + 1, output)
            answers.keep()
    if answers.line is not None:
        raise UserError(
            f"{output.path}: --resume: has more answers than the input has records; "
            "give the input it was made from, or --force to start over"
        )
    return source


def _after(item: Item, source: Iterator[Item]) -> Iterator[Item]:
    yield item
    yield from source


def _check_same(item: Item, line: bytes, number: int, output: Output) -> None:
    if output.text and isinstance(item, Record):
        return
    where = f"{output.path}:{number}"
    fields = {} if output.text else parse_json(line, where)
    identity = fields.get("id") if isinstance(fields, dict) else None
    if not output.text and not isinstance(identity, (str, int)):
        raise UserError(f"{where}: --resume: not an answer of mbrace; use --force to replace the file")
    theirs = item.id if isinstance(item, Record) else None
    if identity != theirs and not (output.path.endswith(".parquet") and str(identity) == str(theirs)):
        raise UserError(
            f"{location_of(item)}: --resume: {where} answers record {identity!r} where the input has "
            f"{'a bad record' if isinstance(item, Bad) else repr(theirs)}; "
            "give the input the output was made from, or --force to start over"
        )


def _location(line: bytes, output: Output) -> Location:
    where = f"{output.path}.errors.jsonl"
    fields = parse_json(line, where)
    if not isinstance(fields, dict):
        raise UserError(f"{where}: --resume: not written by mbrace; use --force to start over")
    return Location(str(fields.get("file")), int(fields.get("line") or 0))
