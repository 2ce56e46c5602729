"""Answering files of prompts: `AnswerJob` and its worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from mbrace.answers import Answer, Answering, Prompt, answers, prompt_of
from mbrace.errors import Parameter, RecordError, SettingError, UserError, check_whole, counted
from mbrace.io.candidates import Bad, Item, Row
from mbrace.io.reading import decode_line, is_json_line, json_line, parse_json
from mbrace.jobs.decode import UtilitySettings
from mbrace.jobs.run import Outcome, Summary, answer_items
from mbrace.jobs.translate import describe_model, load_model
from mbrace.records import Location, Record, record_from
from mbrace.sampler import Sampler
from mbrace.settings import ModelSettings, Sampling
from mbrace.utility import Utility, as_utility, interrupt_utility, truncated_texts, utility_cost
from mbrace.windows import OnError

if TYPE_CHECKING:
    from mbrace.servers.server import Server

PROMPT = "{source}"  # what is asked is the whole prompt
OF_ANSWERS = ("cut", "blank", "unmatched", "nbest")  # fields of some answers, which no field of the input stands for
NOT_FOR_ANSWERS = (  # settings of translators and of beam search
    *("prompt", "source_language", "target_language", "source_prefix", "beam_search"),
    *("beam", "length_penalty", "epsilon", "sampling"),
)


@dataclass(frozen=True)
class AnswerJob:
    """Consensus answers to prompts."""

    model: ModelSettings
    utility: UtilitySettings
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
        of_server = {"save_draws": self.save_draws, "max_cost_tokens": self.max_cost_tokens}
        for name, value in (of_server | {"logprobs": self.settings.logprobs or None}).items():
            if value is not None and self.model.server is None:
                raise SettingError(name, ..., f"only valid with {Parameter('server')}")
        votes = self.utility.name == "exact"
        unused = "regret" if votes and not self.settings.logprobs else "" if votes else "confidence"
        if unused in self.settings.chosen():
            other = Parameter("confidence") if votes else Parameter("regret")
            which = "votes stop" if votes else "only votes have it, others stop"
            raise SettingError(unused, getattr(self.settings, unused), f"{which} by {other}")

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        left_out = {*NOT_FOR_ANSWERS, *(("model", "kind") if self.model.server is not None else ())}
        model = describe_model(self.model, self.candidates) | self.candidates.describe()
        model = {name: value for name, value in model.items() if name not in left_out}
        return {"command": "answer", **model, **self.utility.describe(), **self.settings.describe()}

    def start(self, threads: int) -> AnswerWorker:
        """Load the utility and the model."""
        utility = as_utility(self.utility.load(threads))
        of_server = {"save_draws": self.save_draws, "max_cost_tokens": self.max_cost_tokens}
        source = load_source(self.model, threads, self.candidates, self.settings, **of_server)
        return AnswerWorker(self, utility, source, None if self.model.server is None else cast("Server", source))

    def item(self, row: Row, file: str, number: int, prefix: str) -> Item:
        """A prompt: a line of text, or of JSON with `prompt` or `messages`."""
        location, name = Location(file, number), f"{prefix}{number}" if prefix else number
        try:
            if not isinstance(row, bytes) or is_json_line(row, file, ("prompt", "messages")):
                return _prompt_from(parse_json(row, location) if isinstance(row, bytes) else row, location, name)
            text = decode_line(row, location).removesuffix("\n").removesuffix("\r")
            return _prompt_from({"prompt": text}, location, name)
        except RecordError as error:
            return Bad(location, None, error.reason)


def check_answering(model: ModelSettings, candidates: Sampling) -> None:
    """Refuse a model and sampling that have no consensus to find."""
    if candidates.temperature == 0:
        raise SettingError(
            "temperature", 0, "all draws would be the same text, which agrees with itself; give 0.7, say"
        )
    if model.beam_search:
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
class AnswerWorker:
    """Answers prompts and turns the answers into lines."""

    job: AnswerJob
    utility: Utility
    source: Sampler
    server: Server | None  # that source, where it is one
    summary: Summary = field(default_factory=Summary)

    def interrupt(self) -> None:
        if self.server is not None:
            self.server.interrupt()
        interrupt_utility(self.utility)

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        return answer_items(items, self._answers, self._line, skip=skip, text=False)

    def _answers(self, records: Iterable[Record], on_error: OnError) -> Iterator[Answer]:
        return answers(
            records, self.source, self.job.settings, utility=self.utility, phases=self.summary.phases,
            on_error=on_error,
        )  # fmt: skip

    def _line(self, record: Record, answer: Answer) -> bytes:
        self._count(answer)
        asked = {"prompt": record.source}
        if isinstance(record, Prompt) and record.messages is not None:
            asked = {"messages": list(record.messages)}  # type: ignore[dict-item]
        theirs = {name: value for name, value in (record.others or {}).items() if name not in OF_ANSWERS}
        fields = {"id": record.id, **asked, **theirs, **answer.fields()}
        if self.job.settings.nbest > 1:
            fields["nbest"] = [{"text": each.text, "utility": each.utility} for each in answer.nbest]
        return json_line(fields)

    def _count(self, answer: Answer) -> None:
        summary, cost, decoded = self.summary, answer.receipt, answer.decoded
        costs = ("draws", "unmatched", "cut", "blank", "tokens_in", "tokens_out", "untold")
        spent = {name: getattr(cost, name) for name in costs}
        spent |= {f"stopped_by_{answer.stopped.replace(' ', '_')}": 1}
        spent |= {"sentences": 1, "most_draws": self.job.settings.n, "draw_requests": cost.requests}
        spent |= {name: getattr(decoded, name) for name in ("utility_calls", "pairs_scored", "strings")}
        for name, count in spent.items():
            setattr(summary, name, getattr(summary, name) + count)
        summary.probe_tokens = 0 if self.server is None else self.server.probe_tokens
        summary.truncated = truncated_texts(self.utility)
        for name, count in asdict(utility_cost(self.utility)).items():
            setattr(summary, name, count)


def bound(job: AnswerJob, prompts: int | None) -> str:
    """The most that a run may cost, for a person, before it starts."""
    n, tokens = job.settings.n, job.model.max_tokens
    each = f"at most {counted(n, 'draw')} of {counted(tokens, 'token')} per prompt"
    if prompts is not None:
        each += (
            f": {counted(prompts * n, 'draw')}, {prompts * n * tokens:,} tokens out for {counted(prompts, 'prompt')}"
        )
    if job.model.server is None:
        return each
    if job.max_cost_tokens is not None:
        return f"{each}; at most {counted(job.max_cost_tokens, 'token')} in all, in and out"
    return f"{each}; tokens in, and a few to find out what the server does, are not in these numbers"
