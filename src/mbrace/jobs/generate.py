"""Candidate files: hypotheses and pseudo-references of every source, written as they are made."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from mbrace.errors import RecordError, UserError
from mbrace.io.candidates import Bad, Item, bad_from
from mbrace.io.jsonl import parse_json, to_json
from mbrace.io.output import Output
from mbrace.io.reading import count_lines, decode_line, name_of, open_input, read_lines
from mbrace.jobs.job import Outcome, Summary, run_job
from mbrace.jobs.signals import Stop
from mbrace.records import Location, Record
from mbrace.sampler import Draws
from mbrace.windows import take

Source: TypeAlias = "tuple[str, str | None]"  # a source and its reference, if there is one


@dataclass(frozen=True)
class Candidates:
    """How many of what: `beam` hypotheses and `sample` pseudo-references a source (0: none)."""

    beam: int = 256
    sample: int = 1024
    epsilon: float | None = 0.02
    temperature: float = 1.0
    seed: int = 0
    alpha: float = 1.0
    logprobs: bool = False


class Maker(Protocol):
    """Makes the candidates of some sources, in order: hypotheses (or None) and draws (or None) of each."""

    def __call__(
        self, sources: Sequence[str], ids: Sequence[str | int]
    ) -> Iterable[tuple[Sequence[str] | None, Draws | None]]:
        """As they are done."""
        ...


def from_model(model: Any, options: Candidates) -> Maker:
    """Beam hypotheses and sampled pseudo-references of a live model."""

    def make(sources: Sequence[str], ids: Sequence[str | int]) -> Iterable[tuple[Sequence[str] | None, Draws | None]]:
        beams: Any = itertools.repeat(None)
        draws: Any = itertools.repeat(None)
        if options.beam:
            beams = [beam.texts for beam in model.beam(sources, k=options.beam, alpha=options.alpha)]
        if options.sample:
            settings = {"epsilon": options.epsilon, "temperature": options.temperature, "seed": options.seed}
            draws = model.sample(sources, options.sample, ids=ids, **settings)
        return zip(beams, draws)  # noqa: B905  (one may be endless)

    return make


def read_sources(path: str, references: str | None = None) -> Iterator[Source]:
    """Sources with their references: lines of text, or a TSV (by suffix) with `source TAB reference`."""
    for item in source_items(path, references):
        if isinstance(item, Bad):
            raise item.error()
        yield item.source or "", item.reference


def source_items(
    path: str, references: str | None = None, *, prefix: str = "", first: int = 0, columns: bool = True
) -> Iterator[Item]:
    """Sources as records without candidates, as they are read. Ids are `prefix` and the line's number, from `first`."""
    if references is not None and path != "-" and (ours := count_lines(path)) != (theirs := count_lines(references)):
        raise UserError(f"{references}: has {theirs} lines but {path} has {ours}; they must match")
    lines = None if references is None else read_lines(references)
    with open_input(path) as file:
        for number, row in enumerate(file, 1):
            place = number - 1 + first
            item = source_item(row, path, number, f"{prefix}{place}" if prefix else place, columns=columns)
            if lines is not None:
                reference = next(lines, None)
                if reference is None:
                    raise UserError(f"{references}: ends before line {number}, which {name_of(path)} has")
                item = item if isinstance(item, Bad) else replace(item, reference=reference)
            yield item


def source_item(row: bytes, path: str, number: int, identity: str | int, *, columns: bool = True) -> Item:
    """The source of a line; of a .tsv with `columns`, its first column, and the reference in the second."""
    location = Location(name_of(path), number)
    try:
        line = decode_line(row, location).removesuffix("\n").removesuffix("\r")
    except RecordError as error:
        return Bad(location, None, error.reason)
    source, reference = line, ""
    if columns and ".tsv" in Path(path).suffixes:
        source, reference = [*line.split("\t"), ""][:2]
    return Record((), id=identity, source=source, reference=reference or None, location=location)


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items, `size` at a time. Where reading fails, those read before are given first, then the failure is."""
    rest = iter(items)
    failure: Exception | None = None
    while failure is None:
        chunk, failure = take(rest, size)
        if not chunk:
            break
        yield chunk
    if failure is not None:
        raise failure


def generate(
    make: Maker,
    sources: Iterable[Item],
    output: str,
    options: Candidates,
    *,
    settings: dict[str, Any] | None = None,
    together: int = 32,
    minutes: float | None = None,
    resume: bool = False,
    force: bool = False,
    skip: bool = False,
    stop: Stop | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Summary:
    """Write one JSON line a source to `output` (`.gz`, `.xz`, `.parquet` by suffix; `-`), `together` at a time.

    `settings` are what candidates depend on (by default `options`). They are kept in OUTPUT.run.json: `resume` goes on
    after what is there if it was made with the same, of the same sources. Ends after `minutes`, or the chunk at work
    when `stop` had a signal.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    worker = Generator(make, options, together)
    settings = settings or asdict(options)
    with Output(output, resume=resume, force=force, settings=settings, keep_settings=True) as out:
        return run_job(worker, _checked(sources, out, end), out, skip=skip, stop=stop, advance=advance)


@dataclass
class Generator:
    """The worker of `mbrace generate`: some sources at a time into lines."""

    make: Maker
    options: Candidates
    together: int = 32
    summary: Summary = field(default_factory=Summary)

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome an item."""
        for chunk in chunks(items, self.together):
            made = self._outcomes([item for item in chunk if isinstance(item, Record)])
            for item in chunk:
                line, bad = (None, item) if isinstance(item, Bad) else next(made)
                if bad is not None and not skip:
                    raise bad.error()
                self.summary.sentences += bad is None
                yield line, bad

    def _outcomes(self, records: Sequence[Record]) -> Iterator[Outcome]:
        """As they are done. If it fails for all together, those not done are made alone: only one may be at fault."""
        done = 0
        if len(records) > 1:
            with suppress(Exception):
                for line in self._lines(records):
                    done += 1
                    yield line, None
        for record in records[done:]:
            try:
                (line,) = self._lines([record])
            except ImportError:  # a missing package is not the record's fault
                raise
            except Exception as error:
                yield None, bad_from(record, error)
            else:
                yield line, None

    def _lines(self, records: Sequence[Record]) -> Iterator[bytes]:
        made = self.make([record.source or "" for record in records], [record.id for record in records])
        for record, (hypotheses, draws) in zip(records, made, strict=True):
            yield candidate_line(record, hypotheses, draws, logprobs=self.options.logprobs)


def candidate_line(
    record: Record, hypotheses: Sequence[str] | None, draws: Draws | None, *, logprobs: bool = False
) -> bytes:
    """A line of a candidate file."""
    fields: dict[str, Any] = {"id": record.id, "source": record.source}
    if record.reference is not None:
        fields["reference"] = record.reference
    if hypotheses is not None:
        fields["hypotheses"] = list(hypotheses)
    if draws is not None:
        fields["pseudo_references"] = list(draws.texts)
        if logprobs and draws.logprobs is not None:
            fields["logprobs"] = [round(value, 4) for value in draws.logprobs]
    return to_json(fields) + b"\n"


def _checked(items: Iterable[Item], output: Output, end: float | None) -> Iterator[Item]:
    """The sources, until `end`; those whose lines `output` has must be what these were made of, not only their ids."""
    for item in items:
        line, where = output.written.line, f"{output.path}:{output.written.kept + 1}"
        if line is None and end is not None and time.monotonic() > end:
            return
        if line is not None and isinstance(item, Record) and not _made_of(item, parse_json(line, where)):
            raise UserError(
                f"{where}: --resume: not made of {item.where}; give the same sources, or --force to start over"
            )
        yield item


def _made_of(item: Record, fields: Any) -> bool:
    """False if a line has this record's id but another source or reference (a line of a Parquet file is its id)."""
    if not isinstance(fields, dict) or fields.get("id") != item.id or "source" not in fields:
        return True  # `run_job` compares the ids
    return (fields["source"], fields.get("reference")) == (item.source, item.reference)
