"""Decoded answers as training data: `ExportJob`, its worker, and `export_file` for a caller in Python."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from mbrace.errors import Parameter, RecordError, SettingError, UserError, counted
from mbrace.io.candidates import Bad, Item, Paths, Row, location_of
from mbrace.io.reading import json_line, parse_json
from mbrace.io.texts import Texts, read_texts, source_in
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, RunOptions, Summary, items_of, run_job
from mbrace.records import Location, Record, kind
from mbrace.setting_fields import Settings, known_settings

FORMATS = ("sft", "preference")
PROMPT = "{source}"
PREFERENCE = Parameter("format", "preference")
# Why an answer has no pair
NONE_WORSE = "no hypothesis with a full score is worse"


def export_file(
    answers: Paths,
    output: str | os.PathLike[str],
    *,
    format: str = "sft",
    sources: str | os.PathLike[str] | None = None,
    prompt: str = PROMPT,
    chat: bool = False,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
    **removed: object,
) -> Summary:
    """Turn what `decode_file` or `translate_file` wrote into training data, as `mbrace export` does.

    `format` "sft" has a `prompt` and a `completion`, the answer; "preference" a `prompt`, the answer as `chosen` and
    the worst hypothesis of its n-best list as `rejected`, with their utilities. A record without a worse hypothesis is
    left out and named in OUTPUT.errors.jsonl. `sources` is the candidate file, or a text file with one source per line,
    for answers that have no `source`. `prompt` is the request, with {source} in it; with `chat`, lines hold messages
    instead of strings.
    """
    known_settings(Settings, removed, export_file)
    job = ExportJob(format, None if sources is None else os.fspath(sources), prompt, chat)
    items = items_of(job, answers, output, others=job.files)
    return run_job(job, items, output, RunOptions(0, resume, force, on_error), progress=progress)


@dataclass(frozen=True)
class Answer(Record):
    """A decoded answer: its text is the first hypothesis, then comes the rest of its n-best list, with utilities."""

    utilities: Sequence[float | None] = ()
    messages: Sequence[Any] | None = None  # of the prompt, where it was a chat


@dataclass(frozen=True)
class ExportJob:
    """How answers are turned into training data."""

    format: str = "sft"
    sources: str | None = None  # a file with the sources
    prompt: str = PROMPT
    chat: bool = False
    text: ClassVar[bool] = False
    reads_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise SettingError("format", self.format, f"unknown; choose from {', '.join(FORMATS)}")
        if "{source}" not in self.prompt:
            raise SettingError("prompt", self.prompt, "has no {source}; say where the source goes")

    @property
    def files(self) -> list[str]:
        """Input files other than the answers."""
        return [] if self.sources is None else [self.sources]

    def describe(self) -> dict[str, Any]:
        """What the output depends on."""
        return {"command": "export", "format": self.format, "prompt": self.prompt, "chat": self.chat}

    def start(self, threads: int = 0) -> ExportWorker:
        """Read the sources."""
        _ = self.texts  # before the output is made
        return ExportWorker(self)

    @cached_property
    def texts(self) -> Texts | None:
        """What the file of sources has."""
        return None if self.sources is None else read_texts(self.sources, "source")

    @cached_property
    def by_id(self) -> Mapping[str, str]:
        """The sources of that file, by id, or by the number of the line in a file without ids."""
        if self.texts is None:
            return {}
        ids = self.texts.ids
        ids = [str(number) for number in range(1, len(self.texts.texts) + 1)] if ids is None else ids
        return dict(zip(ids, self.texts.texts, strict=True))

    def item(self, row: Row, file: str, number: int, prefix: str) -> Item:
        """The answer of a line."""
        location = Location(file, number)
        identity = None
        try:
            fields = parse_json(row, location) if isinstance(row, bytes) else row
            if not isinstance(fields, dict):
                raise RecordError(location, f"expected a JSON object that `mbrace decode` wrote, got {kind(fields)}")
            identity = fields.get("id")
            if type(identity) not in (str, int):
                raise RecordError(location, "id: missing; give answers that `mbrace decode` wrote, not --text")
            answer = _answer(fields, location)
            return replace(answer, source=self.by_id.get(str(answer.id))) if answer.source is None else answer
        except RecordError as error:
            return Bad(location, identity if isinstance(identity, str | int) else None, error.reason)


@dataclass
class ExportWorker:
    """Turns answers into lines."""

    job: ExportJob
    summary: Summary = field(default_factory=Summary)
    left_out: dict[str, int] = field(default_factory=dict)  # by reason: how many answers had no worse hypothesis

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        for item in items:
            found = item if isinstance(item, Bad) else self._line(item)
            if isinstance(found, bytes):
                self.summary.sentences += 1
                yield found, None
            elif skip or found.reason in self.left_out:
                yield None, found
            else:
                raise found.error()
        if self.left_out and not self.summary.sentences and not self.summary.kept:
            reason = max(self.left_out, key=lambda each: self.left_out[each])
            every = counted(sum(self.left_out.values()), "record")
            more = "records with more hypotheses that differ" if reason == NONE_WORSE else "with --nbest 2 or more"
            raise UserError(f"{PREFERENCE}: no pairs, {every} left out; {reason}: decode {more}")

    def _line(self, item: Record) -> bytes | Bad:
        """The line of an answer, or why there is none."""
        assert isinstance(item, Answer)
        if item.source is None:
            return Bad(location_of(item), item.id, f"source: missing; {self._source_remedy()}")
        if item.messages is not None and len(item.messages) > 1 and not self.job.chat:
            reason = f"messages: more than one turn; give {Parameter('chat', True)}, which writes all of them"
            return Bad(location_of(item), item.id, reason)
        prompt: Any = self.job.prompt.replace("{source}", item.source)
        if self.job.chat:
            prompt = list(item.messages or [{"role": "user", "content": prompt}])
        best = item.hypotheses[0]
        if self.job.format == "sft":
            line = {"messages": [*prompt, _turn(best)]} if self.job.chat else {"prompt": prompt, "completion": best}
            return json_line({"id": item.id, **line})
        pair = _worst(item)
        if isinstance(pair, str):
            self.left_out[pair] = self.left_out.get(pair, 0) + 1
            return Bad(location_of(item), item.id, pair)
        utility, worst, least = pair
        chosen, rejected = ([_turn(best)], [_turn(worst)]) if self.job.chat else (best, worst)
        scores = {"score_chosen": utility, "score_rejected": least}
        return json_line({"id": item.id, "prompt": prompt, "chosen": chosen, "rejected": rejected, **scores})

    def _source_remedy(self) -> str:
        if self.job.texts is None:
            return f"give the file it was decoded from by {Parameter('sources', 'FILE')}"
        if self.job.texts.ids is not None:
            return f"{self.job.sources}: has no record of this id; give the file that it was decoded from"
        return (
            f"{self.job.sources}: a text, which fits only answers whose ids are its line numbers, from 1 to "
            f"{len(self.job.by_id)}; give the candidate file that it was decoded from, which has ids"
        )


def _turn(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _worst(item: Answer) -> tuple[float, str, float] | str:
    """The utility of the answer, and the worst hypothesis with its own; or why there is none."""
    pairs = zip(item.hypotheses, item.utilities, strict=True)
    scored = [(value, text) for text, value in pairs if value is not None and math.isfinite(value)]
    if not scored or scored[0][1] != item.hypotheses[0]:
        return "its answer has no full score"
    if len(scored) < 2:
        return "no other hypothesis has a full score"
    worst, text = min(scored, key=lambda each: each[0])
    return (scored[0][0], text, worst) if scored[0][0] > worst else NONE_WORSE


def _answer(fields: Mapping[str, Any], location: Location) -> Answer:
    try:
        text, source = fields.get("text"), source_in(fields)
    except UserError as error:
        raise RecordError(location, str(error)) from None
    if not isinstance(text, str):
        raise RecordError(location, f"text: expected the decoded string, got {kind(text)}")
    if not isinstance(source, str | None):
        raise RecordError(location, f"source: expected a string, got {kind(source)}")
    texts, utilities = [text], [fields.get("utility")]
    others = fields.get("nbest")
    if others is not None and not isinstance(others, list | np.ndarray):
        raise RecordError(location, f"nbest: expected a list, got {kind(others)}")
    for position, each in enumerate(others if others is not None else ()):
        if not isinstance(each, dict) or not isinstance(each.get("text"), str):
            raise RecordError(location, f"nbest[{position}]: expected an object with a `text`")
        if each["text"] != text:
            texts.append(each["text"])
            utilities.append(each.get("utility"))
    for value in utilities:
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise RecordError(location, f"utility: expected a number, got {kind(value)}")
    messages = fields.get("messages") if fields.get("source") is None else None
    return Answer(texts, None, fields["id"], source, location=location, utilities=utilities, messages=messages)
