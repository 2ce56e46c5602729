"""Answering files of prompts: `AnswerJob`, its worker, and `answer_file` for a caller in Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mbrace.answers import DRAWS, REGRET, VOTE_CONFIDENCE, Answer, CountedSource, Prompt, answers, prompt_of
from mbrace.errors import RecordError, ServiceError, UserError
from mbrace.io.candidates import Bad, Item, checked_input
from mbrace.io.reading import json_line, parse_json
from mbrace.jobs.decode import AnyUtility, UtilitySettings, describe_utility, load_utility
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, Summary, answer_items, run_job
from mbrace.jobs.translate import source_item, source_items
from mbrace.records import Location, Record, record_from
from mbrace.sampler import Receipt
from mbrace.utility import Cost, Utility, as_utility, truncated_texts, utility_cost
from mbrace.windows import OnError
from mbrace.wording import counted

if TYPE_CHECKING:
    from mbrace.servers.server import Server


@dataclass(frozen=True)
class AnswerModel:
    """What answers: a `model` on a `server`, a `model` of Hugging Face here or, with neither, llama.cpp with SmolLM2 in
    this process."""

    server: str | None = None
    model: str | None = None
    kind: str = "chat"
    system: str | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    max_tokens: int = 512
    stop: str | None = None
    weighted: bool = False
    device: str | None = None
    dtype: str | None = None
    concurrency: int = 8
    timeout: float = 120.0
    retries: int = 6
    save_draws: str | None = None
    max_cost_tokens: int | None = None

    def describe(self) -> dict[str, Any]:
        """What answers depend on; nothing that is secret."""
        not_seen = ("device", "concurrency", "timeout", "retries", "save_draws", "max_cost_tokens")
        found = {name: value for name, value in asdict(self).items() if name not in not_seen}
        if self.server is not None:
            from mbrace.servers.http import hide_credentials

            found["server"] = hide_credentials(self.server)
        return found

    def load(self, *, threads: int, seed: int) -> CountedSource:
        """The model or the server."""
        if self.server is None and self.model is not None:
            return self._model_here(seed)
        from mbrace.servers.local import MODEL, local_server
        from mbrace.servers.server import Server

        return Server(
            self.server or local_server(threads=threads),
            self.model or MODEL,
            chat=self.kind == "chat",
            system=self.system,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            max_tokens=self.max_tokens,
            stop=self.stop,
            logprobs=self.weighted,
            seed=seed,
            concurrency=self.concurrency,
            timeout=self.timeout,
            retries=self.retries,
            save_draws=self.save_draws,
            max_cost_tokens=self.max_cost_tokens,
        )

    def _model_here(self, seed: int) -> CountedSource:
        from mbrace.models.causal import CausalLM, CountedDraws

        if self.weighted or self.save_draws is not None or self.max_cost_tokens is not None:
            raise UserError("logprobs, save_draws and max_cost_tokens: only valid with a server")
        loaded = CausalLM(self.model, system=self.system, stop=self.stop, device=self.device, dtype=self.dtype)
        sampling = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p, "epsilon": None}
        return CountedDraws(loaded, max_tokens=self.max_tokens, temperature=self.temperature, seed=seed, **sampling)


def answer_file(
    prompts: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    model: AnswerModel | CountedSource | None = None,
    n: int = DRAWS,
    utility: AnyUtility = "chrf++",
    regret: float = REGRET,
    confidence: float = VOTE_CONFIDENCE,
    nbest: int = 1,
    seed: int = 0,
    window: int = 64,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
) -> Summary:
    """Answer a file of prompts, as `mbrace answer` does, with any model and utility.

    `prompts` has one prompt per line, or ends in .jsonl with a `prompt` or `messages` per line. `model` is a `Server`,
    or settings of one; None is SmolLM2 in this process. The other options are those of `mbrace.answers.answers` and of
    `decode_file`.
    """
    job = AnswerJob(model or AnswerModel(), utility, n, regret, confidence, nbest, seed, window)
    path, out = os.fspath(prompts), os.fspath(output)
    return run_job(
        job, checked_input(lambda: source_items(path, make_item=job.item), [path], output=out), out, threads=threads,
        resume=resume, force=force, on_error=on_error, progress=progress,
    )  # fmt: skip


@dataclass(frozen=True)
class AnswerJob:
    """Consensus answers to prompts."""

    model: AnswerModel | CountedSource
    utility: AnyUtility = field(default_factory=UtilitySettings)
    n: int = DRAWS
    regret: float = REGRET
    confidence: float = VOTE_CONFIDENCE
    nbest: int = 1
    seed: int = 0
    window: int = 64
    text: ClassVar[bool] = False
    reads_records: ClassVar[bool] = True

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        model = self.model.describe() if isinstance(self.model, AnswerModel) else {"model": type(self.model).__name__}
        race = {"n": self.n, "regret": self.regret, "confidence": self.confidence, "nbest": self.nbest}
        return {"command": "answer", **model, **describe_utility(self.utility), **race, "seed": self.seed}

    def start(self, threads: int) -> AnswerWorker:
        """Load the utility and the model."""
        utility = as_utility(load_utility(self.utility, threads))
        source = self.model.load(threads=threads, seed=self.seed) if isinstance(self.model, AnswerModel) else self.model
        return AnswerWorker(self, utility, source)

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        """A prompt: a line of text, or of JSON with `prompt` or `messages`."""
        if not {".jsonl", ".ndjson"} & set(_suffixes(file)):
            item = source_item(row, file, number, prefix, columns=False)
            return item if isinstance(item, Bad) else Prompt((), id=item.id, source=item.source, location=item.location)
        location = Location(file, number)
        try:
            return _prompt_from(parse_json(row, location), location, f"{prefix}{number}" if prefix else number)
        except RecordError as error:
            return Bad(location, None, error.reason)


def _suffixes(file: str) -> list[str]:
    from pathlib import Path

    return Path(file).suffixes


def _prompt_from(fields: Any, location: Location, default_id: str | int) -> Prompt:
    """A prompt from a line of JSON; its other fields are carried through."""
    if not isinstance(fields, dict) or ("prompt" in fields) == ("messages" in fields):
        raise RecordError(location, "give `prompt`, a text, or `messages`, a list of turns, on each line")
    known = record_from({"hypotheses": [""], "id": fields.get("id")}, location=location, default_id=default_id)
    asked = fields.get("prompt", fields.get("messages"))
    if not isinstance(asked, str if "prompt" in fields else list):
        raise RecordError(location, "prompt: expected a text; messages: expected a list of turns")
    others = {name: value for name, value in fields.items() if name not in ("id", "prompt", "messages")}
    try:
        prompt = prompt_of(asked, known.id, location=location, others=others or None)
    except UserError as error:
        raise RecordError(location, str(error)) from None
    if not (prompt.source or "").strip():
        raise RecordError(location, "prompt: is empty")
    return prompt


@dataclass
class AnswerSummary(Summary):
    """What a run of answers did."""

    draws: int = 0
    most_draws: int = 0  # with all n for each prompt
    receipt: Receipt = field(default_factory=Receipt)
    stopped: dict[str, int] = field(default_factory=dict)


@dataclass
class AnswerWorker:
    """Answers prompts and turns the answers into lines."""

    job: AnswerJob
    utility: Utility
    source: CountedSource
    summary: AnswerSummary = field(default_factory=AnswerSummary)

    def interrupt(self) -> None:
        """End waits for a server."""
        if self._server is not None:
            self._server.interrupt()

    @property
    def _server(self) -> Server | None:
        from mbrace.servers.server import Server

        return self.source if isinstance(self.source, Server) else None

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome per item."""
        found: dict[str | int, Answer] = {}

        def answer(records: Iterable[Record], on_error: OnError) -> Iterator[Any]:
            for each in self._answers(records, on_error):
                found[each.id] = each
                yield each.decoded

        return answer_items(items, answer, lambda record, _: self._line(record, found.pop(record.id)), skip=skip,
                            text=False)  # fmt: skip

    def _answers(self, records: Iterable[Record], on_error: OnError) -> Iterator[Answer]:
        job = self.job
        return answers(
            records, self.source, n=job.n, utility=self.utility, regret=job.regret, confidence=job.confidence,
            nbest=job.nbest, seed=job.seed, window=job.window, phases=self.summary.phases,
            on_error=self._passed(on_error),
            weighted=isinstance(job.model, AnswerModel) and job.model.weighted,
        )  # fmt: skip

    def _passed(self, on_error: OnError) -> OnError:
        """The same, but a prompt that the budget left without any draw ends the run."""

        def pass_on(record: Record, error: Exception) -> None:
            server = self._server
            if server is not None and server.budget.is_spent:
                raise ServiceError(
                    f"max_cost_tokens {server.budget.tokens}: {server.budget.spent:,} tokens are spent, and "
                    f"{record.where} has no draw; go on with --resume and more tokens"
                )
            on_error(record, error)

        return pass_on

    def _line(self, record: Record, answer: Answer) -> bytes:
        self._count(answer)
        asked = {"prompt": record.source}
        if isinstance(record, Prompt) and record.messages is not None:
            asked = {"messages": list(record.messages)}  # type: ignore[dict-item]
        fields = {**(record.others or {}), "id": record.id, **asked, **answer.fields()}
        if self.job.nbest > 1:
            fields["nbest"] = [{"text": each.text, "utility": each.utility} for each in answer.nbest]
        return json_line(fields)

    def _count(self, answer: Answer) -> None:
        summary = self.summary
        summary.sentences += 1
        summary.draws += answer.draws
        summary.most_draws += self.job.n
        summary.receipt += answer.receipt
        summary.stopped[answer.stopped] = summary.stopped.get(answer.stopped, 0) + 1
        summary.cut, summary.blank = summary.receipt.cut, summary.receipt.blank
        if answer.decoded is not None:
            summary.utility_calls += answer.decoded.utility_calls
            summary.pairs_scored += answer.decoded.pairs_scored
            summary.strings += answer.decoded.strings
        summary.truncated = truncated_texts(self.utility)
        cost: Cost = utility_cost(self.utility)
        for name, count in asdict(cost).items():
            setattr(summary, name, count)


def bound(job: AnswerJob, prompts: int | None) -> str:
    """The most that a run may cost, for a person, before it starts."""
    model = job.model if isinstance(job.model, AnswerModel) else AnswerModel()
    each = f"at most {job.n} draws of {model.max_tokens} tokens per prompt"
    if prompts is not None:
        draws = prompts * job.n
        each += f": {draws:,} draws, {draws * model.max_tokens:,} tokens out for {counted(prompts, 'prompt')}"
    limit = "" if model.max_cost_tokens is None else f"; at most {model.max_cost_tokens:,} tokens in and out"
    return each + limit
