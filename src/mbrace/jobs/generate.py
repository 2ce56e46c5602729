"""Generating candidate files: `GenerateJob`, its worker, and `generate_file` for a caller in Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from mbrace.errors import LARGEST, Parameter, SettingError, check_whole
from mbrace.io.candidates import Bad, Item, Row, bad_from
from mbrace.io.reading import json_line
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, RunOptions, Summary, items_of, run_job
from mbrace.jobs.translate import AnyModel, check_sampling, describe_model, load_model, source_item
from mbrace.records import Record
from mbrace.sampler import Draws
from mbrace.setting_fields import settings_from
from mbrace.settings import Sampling, SamplingOptions
from mbrace.windows import in_groups, run_group

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mbrace.models.hypotheses import CandidateModel
    from mbrace.servers.server import Server

Candidates: TypeAlias = "tuple[Draws | None, Draws | None]"  # hypotheses and pseudo-references of a source
MakeCandidates: TypeAlias = "Callable[[Sequence[str], Sequence[str | int]], Iterable[Candidates]]"  # of sources and ids


def generate_file(
    sources: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    model: AnyModel = "bundled",
    sample: int = 1024,
    seed: int = 0,
    logprobs: bool = False,
    prefix: str = "",
    window: int | None = None,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
    candidates: Sampling | None = None,
    **settings: Unpack[SamplingOptions],
) -> Summary:
    """Write the candidates of every source to `output`, as `mbrace generate` does, with any model.

    `model`, `candidates` and the fields of `Sampling` as keywords are as for `translate_file`: the model makes `beam`
    hypotheses and `sample` pseudo-references per source (0: none), `window` sources at a time (None: 32, or 4 with a
    model on a CPU). `sources` has one per line, or is a .tsv with references in its second column, or .jsonl. Ids are
    `prefix` and the line number, from 1. The rest is as for `decode_file`.
    """
    made = settings_from(Sampling, candidates, settings, generate_file, name="candidates")
    job = GenerateJob(model, made, sample=sample, seed=seed, logprobs=logprobs, prefix=prefix, window=window)
    how = RunOptions(threads, resume, force, on_error)
    return run_job(job, items_of(job, sources, output), output, how, progress=progress)


@dataclass(frozen=True)
class GenerateJob:
    """Hypotheses and pseudo-references of sources."""

    model: AnyModel
    candidates: Sampling
    sample: int = 1024
    seed: int = 0
    logprobs: bool = False
    prefix: str = ""
    window: int | None = None
    text: ClassVar[bool] = False
    reads_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a job that makes nothing, and settings that have no effect."""
        check_whole("seed", self.seed)
        check_whole("sample", self.sample, least=0, most=LARGEST)
        if self.window is not None:
            check_whole("window", self.window, least=1, most=LARGEST)
        if self.candidates.beam + self.sample == 0:
            raise SettingError(
                "sample", 0, f"makes nothing with {Parameter('beam', 0)}; give how many, of one at least"
            )
        if self.logprobs and not self.sample:
            raise SettingError(
                "logprobs", ..., f"only valid with pseudo-references; give {Parameter('sample', 1)} or more"
            )
        check_sampling(self.model, self.candidates)

    def describe(self) -> dict[str, Any]:
        """What candidates depend on."""
        more = {"seed": self.seed, "sample": self.sample, "logprobs": self.logprobs, "prefix": self.prefix}
        return {
            "command": "generate",
            **describe_model(self.model, self.candidates),
            **self.candidates.describe(),
            **more,
        }

    def start(self, threads: int) -> GenerateWorker:
        """Load the model."""
        from mbrace.servers.server import Server

        model = load_model(self.model, threads, self.candidates, seed=self.seed, logprobs=self.logprobs)
        server = model if isinstance(model, Server) else None
        # few on a CPU, where each takes long, so that finished ones are written soon
        window = 32 if isinstance(model, Server) or model.device.type == "cuda" else 4
        return GenerateWorker(candidates_of(model, self), self.logprobs, self.window or window, server)

    def item(self, row: Row, file: str, number: int, prefix: str) -> Item:
        """A source, and its reference if the file has two columns."""
        return source_item(row, file, number, self.prefix + prefix)


def candidates_of(model: CandidateModel | Server, job: GenerateJob) -> MakeCandidates:
    """Makes hypotheses and pseudo-references with a model, or with a server, which yields them as they arrive."""
    from mbrace.servers.server import Server

    made, sample = job.candidates, job.sample

    def make(sources: Sequence[str], ids: Sequence[str | int]) -> Iterable[Candidates]:
        hypotheses: Iterable[Draws | None] = repeat(None)
        draws: Iterable[Draws | None] = repeat(None)
        if isinstance(model, Server):
            if made.beam:
                hypotheses = model.hypotheses(sources, made.beam, ids=ids)
            if sample:
                draws = model.stream(sources, sample, ids=ids)
        else:
            if made.beam:
                hypotheses = [Draws(found.texts) for found in model.beam(sources, **made.beam_options())]
            if sample:
                draws = model.sample(sources, sample, ids=ids, seed=job.seed, **made.options())
        return zip(hypotheses, draws)  # noqa: B905  (one may be endless)

    return make


@dataclass
class GenerateWorker:
    """Makes the candidates of `window` sources at a time, and turns them into lines."""

    make: MakeCandidates
    logprobs: bool = False
    window: int = 32
    server: Server | None = None  # the one that makes them
    summary: Summary = field(default_factory=Summary)

    def interrupt(self) -> None:
        if self.server is not None:
            self.server.interrupt()

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        for group in in_groups(items, self.window):
            made = run_group([item for item in group if isinstance(item, Record)], self._lines)
            for item in group:
                outcome = _outcome(item, None if isinstance(item, Bad) else next(made))
                if outcome[1] is not None and not skip:
                    raise outcome[1].error()
                self.summary.sentences += outcome[1] is None
                if self.server is not None:
                    self.summary.cut, self.summary.blank = self.server.cut, self.server.blank
                yield outcome

    def _lines(self, records: Sequence[Record]) -> Iterator[bytes | Exception]:
        made = self.make([record.source or "" for record in records], [record.id for record in records])
        for record, both in zip(records, made, strict=True):
            failures = [draws.failure for draws in both if draws is not None and draws.failure is not None]
            yield failures[0] if failures else candidate_line(record, *both, logprobs=self.logprobs)


def _outcome(item: Item, result: bytes | Exception | None) -> Outcome:
    if isinstance(item, Bad):
        return None, item
    if isinstance(result, ImportError):  # a missing package is not the record's fault
        raise result
    return (None, bad_from(item, result)) if isinstance(result, Exception) else (result, None)


def candidate_line(record: Record, hypotheses: Draws | None, draws: Draws | None, *, logprobs: bool = False) -> bytes:
    """A line of a candidate file."""
    fields: dict[str, Any] = {"id": record.id, "source": record.source}
    if record.reference is not None:
        fields["reference"] = record.reference
    if hypotheses is not None:
        fields["hypotheses"] = list(hypotheses.texts)
    if draws is not None:  # without hypotheses, one list is both
        fields["samples" if hypotheses is None else "pseudo_references"] = list(draws.texts)
        if logprobs and draws.logprobs is not None:
            fields["logprobs"] = [round(value, 4) for value in draws.logprobs]
    return json_line(fields)
