"""Answering files of prompts: `AnswerJob`, its worker, and `answer_file` for a caller in Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from mbrace.answers import Answer, Answering, Prompt, answers, prompt_of
from mbrace.errors import RESUME, Parameter, RecordError, ServiceError, SettingError, UserError, check_whole, counted
from mbrace.io.candidates import Bad, Item, Row
from mbrace.io.reading import decode_line, json_line, parse_json
from mbrace.jobs.decode import AnyUtility, describe_utility, load_utility
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, RunOptions, Summary, answer_items, items_of, run_job
from mbrace.jobs.translate import describe_model, load_model
from mbrace.metrics.exact_match import ExactMatch
from mbrace.records import Location, Record, record_from
from mbrace.sampler import Sampler
from mbrace.setting_fields import settings_from, split
from mbrace.settings import LOCAL, ModelSettings, Sampling
from mbrace.utility import Utility, as_utility, truncated_texts, utility_cost
from mbrace.windows import OnError

if TYPE_CHECKING:
    from mbrace.servers.server import Server

PROMPT = "{source}"  # what is asked is the whole prompt
NOT_FOR_ANSWERS = (  # settings of translators and of beam search
    *("prompt", "source_language", "target_language", "source_prefix", "beam_search"),
    *("beam", "length_penalty", "epsilon", "sampling"),
)


def answer_file(
    prompts: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    model: ModelSettings | Sampler | None = None,
    utility: AnyUtility = "chrf++",
    save_draws: str | None = None,
    max_cost_tokens: int | None = None,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
    **settings: Any,
) -> Summary:
    """Answer a file of prompts, as `mbrace answer` does, with any model and utility.

    `prompts` has one prompt per line, or ends in .jsonl with a `prompt` or `messages` per line. `model` is a `Server`,
    or settings of one; None is SmolLM2 in this process. `settings` are fields of `mbrace.answers.Answering` and, unless
    the model is a `Server`, of `Sampling`. The rest is as for `decode_file`.
    """
    of_answers, of_sampling = split(settings, Answering, Sampling)
    made, sampling = settings_from(Answering, None, of_answers), settings_from(Sampling, None, of_sampling)
    source = ModelSettings(server=LOCAL, prompt=PROMPT) if model is None else model
    job = AnswerJob(source, utility, made, sampling, save_draws, max_cost_tokens)
    how = RunOptions(threads, resume, force, on_error)
    return run_job(job, items_of(job, prompts, output), output, how, progress=progress)


@dataclass(frozen=True)
class AnswerJob:
    """Consensus answers to prompts."""

    model: ModelSettings | Sampler
    utility: AnyUtility
    settings: Answering
    candidates: Sampling
    save_draws: str | None = None
    max_cost_tokens: int | None = None
    text: ClassVar[bool] = False
    reads_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings that make no sense, before anything is loaded."""
        if self.max_cost_tokens is not None:
            check_whole("max_cost_tokens", self.max_cost_tokens, least=1)
        check_answering(self.model, self.candidates)
        served = not isinstance(self.model, ModelSettings) or self.model.server is not None
        for name in ("save_draws", "max_cost_tokens"):
            if getattr(self, name) is not None and not (isinstance(self.model, ModelSettings) and served):
                raise SettingError(name, ..., f"only valid with {Parameter('server')}")
        if self.settings.logprobs and not served:
            raise SettingError("logprobs", ..., f"only valid with {Parameter('server')}")
        votes = "exact" in (self.utility, getattr(self.utility, "name", None)) or isinstance(self.utility, ExactMatch)
        unused = "regret" if votes and not self.settings.logprobs else "" if votes else "confidence"
        if unused in self.settings.chosen():
            other = Parameter("confidence") if votes else Parameter("regret")
            which = "votes stop" if votes else "only votes have it, others stop"
            raise SettingError(unused, getattr(self.settings, unused), f"{which} by {other}")

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        model = describe_model(self.model, self.candidates) | self.candidates.describe()  # type: ignore[arg-type]
        model = {name: value for name, value in model.items() if name not in NOT_FOR_ANSWERS}
        return {"command": "answer", **model, **describe_utility(self.utility), **self.settings.describe()}

    def start(self, threads: int) -> AnswerWorker:
        """Load the utility and the model."""
        utility, source = as_utility(load_utility(self.utility, threads)), self.model
        if isinstance(source, ModelSettings):
            of_server = {"save_draws": self.save_draws, "max_cost_tokens": self.max_cost_tokens}
            source = load_source(source, threads, self.candidates, self.settings, **of_server)
        return AnswerWorker(self, utility, source)

    def item(self, row: Row, file: str, number: int, prefix: str) -> Item:
        """A prompt: a line of text, or of JSON with `prompt` or `messages`."""
        location, name = Location(file, number), f"{prefix}{number}" if prefix else number
        try:
            if not isinstance(row, bytes) or {".jsonl", ".ndjson", ".parquet"} & set(Path(file).suffixes):
                return _prompt_from(parse_json(row, location) if isinstance(row, bytes) else row, location, name)
            text = decode_line(row, location).removesuffix("\n").removesuffix("\r")
            return _prompt_from({"prompt": text}, location, name)
        except RecordError as error:
            return Bad(location, None, error.reason)


def check_answering(model: object, candidates: Sampling) -> None:
    """Refuse a model and sampling that have no consensus to find."""
    if candidates.temperature == 0:
        raise SettingError(
            "temperature", 0, "all draws would be the same text, which agrees with itself; give 0.7, say"
        )
    if isinstance(model, ModelSettings) and model.beam_search:
        raise SettingError("beam_search", ..., "not for answers, which are drawn", group="server")


def load_source(
    model: ModelSettings, threads: int, candidates: Sampling, settings: Answering, **of_server: Any
) -> Sampler:
    """The server, or the model here, that answers are drawn from."""
    seed = settings.seed
    loaded = load_model(model, threads, candidates, seed=seed, logprobs=settings.logprobs, **of_server)
    if model.server is not None:
        return cast(Sampler, loaded)
    from mbrace.models.causal import CausalLM, PromptDraws

    assert isinstance(loaded, CausalLM)
    sampling = {name: getattr(candidates, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return PromptDraws(loaded, max_tokens=model.max_tokens, seed=seed, epsilon=None, **sampling)


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
        return prompt_of(asked, known.id, location=location, others=others or None)
    except UserError as error:
        raise RecordError(location, str(error)) from None


@dataclass
class AnswerSummary(Summary):
    """What a run of answers did, why its races stopped, and the tokens that finding out what the server does took."""

    probe_tokens: int = 0
    stopped: dict[str, int] = field(default_factory=dict)


@dataclass
class AnswerWorker:
    """Answers prompts and turns the answers into lines."""

    job: AnswerJob
    utility: Utility
    source: Sampler
    summary: AnswerSummary = field(default_factory=AnswerSummary)

    def interrupt(self) -> None:
        if self._server is not None:
            self._server.interrupt()

    @property
    def _server(self) -> Server | None:
        from mbrace.servers.server import Server

        return self.source if isinstance(self.source, Server) else None

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        return answer_items(items, self._answers, self._line, skip=skip, text=False)

    def _answers(self, records: Iterable[Record], on_error: OnError) -> Iterator[Answer]:
        return answers(
            records, self.source, self.job.settings, utility=self.utility, phases=self.summary.phases,
            on_error=self._passed(on_error),
        )  # fmt: skip

    def _passed(self, on_error: OnError) -> OnError:
        """The same, but a prompt that the budget left without any draw ends the run."""

        def pass_on(record: Record, error: Exception) -> None:
            server = self._server
            if server is not None and server.budget.is_spent:
                limit, spent = Parameter("max_cost_tokens", server.budget.tokens), f"{server.budget.spent:,} tokens"
                raise ServiceError(
                    f"{limit}: {spent} are spent, and {record.where} has no whole draw; "
                    f"go on with {RESUME} and more tokens"
                )
            on_error(record, error)

        return pass_on

    def _line(self, record: Record, answer: Answer) -> bytes:
        self._count(answer)
        asked = {"prompt": record.source}
        if isinstance(record, Prompt) and record.messages is not None:
            asked = {"messages": list(record.messages)}  # type: ignore[dict-item]
        fields = {**(record.others or {}), "id": record.id, **asked, **answer.fields()}
        if self.job.settings.nbest > 1:
            fields["nbest"] = [{"text": each.text, "utility": each.utility} for each in answer.nbest]
        return json_line(fields)

    def _count(self, answer: Answer) -> None:
        summary, cost, decoded = self.summary, answer.receipt, answer.decoded
        summary.stopped[answer.stopped] = summary.stopped.get(answer.stopped, 0) + 1
        spent = {
            name: getattr(cost, name) for name in ("draws", "unmatched", "cut", "blank", "tokens_in", "tokens_out")
        }
        spent |= {"sentences": 1, "most_draws": self.job.settings.n, "draw_requests": cost.requests}
        spent |= {name: getattr(decoded, name) for name in ("utility_calls", "pairs_scored", "strings")}
        for name, count in spent.items():
            setattr(summary, name, getattr(summary, name) + count)
        summary.probe_tokens = 0 if self._server is None else self._server.probe_tokens
        summary.truncated = truncated_texts(self.utility)
        for name, count in asdict(utility_cost(self.utility)).items():
            setattr(summary, name, count)


def bound(job: AnswerJob, prompts: int | None) -> str:
    """The most that a run may cost, for a person, before it starts."""
    n, tokens = job.settings.n, job.model.max_tokens if isinstance(job.model, ModelSettings) else 0
    each = f"at most {counted(n, 'draw')} of {counted(tokens, 'token')} per prompt"
    if prompts is not None:
        each += (
            f": {counted(prompts * n, 'draw')}, {prompts * n * tokens:,} tokens out for {counted(prompts, 'prompt')}"
        )
    limit = "" if job.max_cost_tokens is None else f"; at most {counted(job.max_cost_tokens, 'token')} in and out"
    return each + limit
