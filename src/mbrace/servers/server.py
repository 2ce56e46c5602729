"""Candidates from any server with OpenAI's protocol (vLLM, llama.cpp, Ollama, transformers serve).

Exactly the draws that a race wants are requested. The seed of a request depends only on (seed, record id, number of its
first draw), so a race with the same schedule gets the same draws from a server that honours seeds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mbrace.answers import Answer, Answering, Message, Prompt, Prompts, answer_all, answers, prompt_of
from mbrace.errors import ServiceError, SettingError, UserError
from mbrace.race import Watch
from mbrace.records import Record, key
from mbrace.sampler import Draws, Receipt, Want, ids_of, source_of
from mbrace.servers.abilities import Abilities, Probe, beam_request, check_beams
from mbrace.servers.answer_file import AnswerFile, key_of
from mbrace.servers.chat import Choice, chat_messages, choices_of, cost_of
from mbrace.servers.draws import Budget, Ongoing, ServerDrawer, most_tokens
from mbrace.servers.failures import RequestError, StatusError
from mbrace.servers.http import Client
from mbrace.setting_fields import known_settings
from mbrace.settings import Connection, ConnectionOptions, ModelSettings, Sampling
from mbrace.utility import Cost, PairFunction, Utility
from mbrace.windows import OnError

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_RACES = 1024  # of `answer_async` at the same time; each waits on a thread


class Server:
    """A server that makes candidates: `candidates(sources, n)`, or as the `sampler` of `decode_corpus`.

    `url` is the server's, with or without /v1; `model` is the model's name there. `prompt` has `{source}` where the
    source goes; it is the user's message of a chat, or with `kind="completions"` the text to complete. `logprobs` asks
    for log-probabilities and gives them to the race, which then weights draws by the model. A server that gives fewer
    than `samples_per_request` choices is asked more often. `options` go into every request unchanged. The other
    keywords are settings (docs/options.md), those of `mbrace.settings.Connection` included.

    Before the first sample, a few short requests find out what the server does (`abilities`). One that does not sample,
    or on which an option has no effect, is refused. `epsilon` needs vLLM with mbrace installed next to it, or
    transformers serve; `beam_search`, scored log p / length ** `length_penalty`, needs vLLM.

    Outputs that were cut at `max_tokens` or are empty use up draws and are no candidates; `Draws.receipt` counts them.
    Any reasoning before an answer (`reasoning_content`, <think>) is left out. `save_draws` is a file that keeps all
    paid answers by request, so that none is paid for twice.

    A request that still fails after all retries is a ServiceError, which ends a run, unless the server answers a plain
    request: then the source is at fault, and the next one can be tried.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        prompt: str | None = None,
        kind: str = ModelSettings.kind,
        system_prompt: str | None = None,
        stop: str | Sequence[str] | None = None,
        temperature: float = Sampling.temperature,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        epsilon: float | None = None,
        beam_search: bool = False,
        length_penalty: float = Sampling.length_penalty,
        max_tokens: int = ModelSettings.max_tokens,
        logprobs: bool = False,
        seed: int = 0,
        samples_per_request: int = ModelSettings.samples_per_request,
        api_key: str | None = None,
        options: Mapping[str, Any] | None = None,
        save_draws: str | Path | None = None,
        max_cost_tokens: int | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        known_settings(Connection, connection, Server)
        if prompt is not None and "{source}" not in prompt:
            raise UserError("prompt: has no {source}; put it where the source goes")
        self._settings = ModelSettings(
            server=url, model=model, prompt=prompt or "{source}", kind=kind, system_prompt=system_prompt,
            beam_search=beam_search, max_tokens=max_tokens, samples_per_request=samples_per_request, **connection,
        )  # fmt: skip
        # refuses their values
        Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, epsilon=epsilon)
        self._prompt, self._chat = prompt, kind == "chat"
        self._seed, self._epsilon, self.logprobs = seed, epsilon, logprobs
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "stop": stop}
        self._options = {name: value for name, value in given.items() if value is not None} | dict(options or {})
        if self._options.get("temperature") == 0 and not beam_search:
            raise SettingError(
                "temperature", 0, "all samples would be the same text, which agrees with itself; give more, such as 0.7"
            )
        self._length_penalty = length_penalty
        endpoint = "/chat/completions" if self._chat else "/completions"
        self._client = Client(url, endpoint, self._settings, api_key=api_key)
        self._file = None if save_draws is None else AnswerFile(save_draws)
        self._threads = ThreadPoolExecutor(MOST_RACES, thread_name_prefix="mbrace-answer")  # begun as needed
        self._probing = threading.Lock()
        self._probe: Future[Abilities] | None = None  # the last one, for which all callers wait
        self._abilities: Abilities | None = None
        self._has_sampled = False
        self.probe_tokens = 0  # in and out, to find out what the server does
        self.budget = Budget(max_cost_tokens)
        self.drawn = 0  # pseudo-references received so far (the draws of stream "draw")
        self.cut = self.blank = 0  # outputs so far that were no candidates
        self.cost = Cost()

    @property
    def url(self) -> str:
        """The endpoint's URL, without anything secret."""
        return self._client.url

    def abilities(self) -> Abilities:
        """What the server does, found out before the first sample; ServiceError if it cannot do what is needed."""
        with self._probing:
            if self._probe is None or (self._abilities is None and self._probe.done()):  # it failed
                self._probe = self._client.start(self._ask_abilities())
            probe = self._probe
        return probe.result()

    async def _ask_abilities(self) -> Abilities:
        probe = Probe(
            self._client, self._with_text, self._options, chat=self._chat, logprobs=self.logprobs,
            epsilon=self._epsilon, most=self._settings.samples_per_request, budget=self.budget,
        )  # fmt: skip
        try:
            self._abilities = await probe.run()
            return self._abilities
        except RequestError as error:  # no record is at fault
            raise StatusError(str(error), error.status) from error
        finally:
            self.probe_tokens = probe.tokens

    def candidates(
        self, sources: Sequence[str], n: int, *, ids: Sequence[str | int] | None = None, stream: str = "draw"
    ) -> list[Draws]:
        """`n` draws per source; ids are 0, 1, ... unless given; `stream` names the random stream."""
        found = list(self.stream(sources, n, ids=ids, stream=stream))
        for draws in found:
            if draws.failure is not None:
                raise draws.failure
        return found

    def stream(
        self, sources: Sequence[str], n: int, *, ids: Sequence[str | int] | None = None, stream: str = "draw"
    ) -> Iterator[Draws]:
        """Like `candidates`; a source's draws are yielded as soon as they and those before them have arrived. If it has
        none, their `failure` says why."""
        named = zip(ids_of(sources, ids), sources, strict=True)
        records = [Record([], id=name, source=source) for name, source in named]
        wants = [Want(index, 0, n) for index in range(len(records))]
        for record, draws in zip(records, ServerDrawer(self, records, stream).stream(wants), strict=True):
            if n and not draws.texts and draws.failure is None:
                words = f"none of {n} outputs is a whole answer (cut at max_tokens, or empty); allow more max_tokens"
                draws = draws._replace(failure=record.error(words))
            yield draws

    def hypotheses(self, sources: Sequence[str], n: int, *, ids: Sequence[str | int] | None = None) -> Iterator[Draws]:
        """`n` hypotheses per source, as `stream` yields draws: by beam search if the server was made to, otherwise
        samples of a random stream of their own."""
        if not self._settings.beam_search:
            yield from self.stream(sources, n, ids=ids, stream="hypothesis")
            return
        for future in [self._client.start(self._beams(source, n)) for source in sources]:
            try:
                yield Draws(future.result())
            except ServiceError:
                raise
            except UserError as error:
                yield Draws([], failure=error)

    def start(self, records: Sequence[Record]) -> ServerDrawer:
        """Begin a window of races."""
        for record in records:
            source_of(record)
        return ServerDrawer(self, records, "draw")

    def answer(
        self,
        prompts: Prompts,
        *,
        utility: Utility | PairFunction | None = None,
        ids: Sequence[str | int] | None = None,
        on_error: OnError | None = None,
        **options: Any,
    ) -> Any:
        """The consensus answers to prompts: texts, or lists of messages; an `Answer` for each, or one for one.

        At most `n` draws are made for each, in steps while the race between them is open. `options` are fields of
        `mbrace.answers.Answering`: `n`, `regret`, `confidence`, `nbest`, `seed`, `window`. A prompt that fails ends the
        call; with `on_error`, it is passed to that function with its error instead, and left out.
        """
        settings = self._answering(options)
        return answer_all(prompts, self, settings, ids=ids, utility=utility, on_error=on_error)

    def _answering(self, options: Mapping[str, Any]) -> Answering:
        settings = Answering(**{"logprobs": self.logprobs, **options})
        if settings.logprobs != self.logprobs:
            reason = "is a keyword of Server: it decides what is requested"
            raise SettingError("logprobs", settings.logprobs, reason)
        return settings

    async def answer_async(
        self,
        prompt: str | Sequence[Message],
        *,
        utility: Utility | PairFunction | None = None,
        id: str | int = 0,
        **options: Any,
    ) -> Answer:
        """Like `answer`, for one prompt, in a service. Cancelling it cancels its requests."""
        return await self.answer_prompt(prompt_of(prompt, id), self._answering(options), utility=utility)

    async def answer_prompt(
        self,
        prompt: Prompt,
        settings: Answering,
        *,
        utility: Utility | PairFunction | None = None,
        watch: Watch | None = None,
    ) -> Answer:
        """The answer to a prompt, by a race on a thread. Cancelling it cancels its requests."""
        ongoing = Ongoing(self)

        def race() -> Answer:
            return next(answers([prompt], ongoing, settings, utility=utility, watch=watch))

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, race)
        except asyncio.CancelledError:
            ongoing.cancel()
            raise

    def close(self) -> None:
        """Cancel all requests, and close the connections and the file."""
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._file is not None:
            self._file.close()

    def interrupt(self) -> None:
        """End all requests and waits: they fail with a ServiceError."""
        self._client.interrupt()

    def finish(self, requested: Iterable[Future[Draws]]) -> None:
        """Start no request, and wait for those under way, whose answers are paid for."""
        self._client.finish(requested)

    # the draws of one want

    def submit(self, record: Record, stream: str, first: int, count: int) -> Future[Draws]:
        """Ask for draws in the background."""
        abilities = self.abilities() if (record.source or "").strip() else Abilities()
        return self._client.start(self._draw(record, stream, first, count, abilities))

    async def _draw(self, record: Record, stream: str, first: int, count: int, abilities: Abilities) -> Draws:
        """The draws that are whole answers, in as few requests as the server allows, at the same time."""
        if not (record.source or "").strip():  # a blank source has blank outputs
            return Draws([""] * count, [0.0] * count if self.logprobs else None, receipt=Receipt())
        started, size = time.monotonic(), min(self._settings.samples_per_request, abilities.choices)

        def check() -> None:
            """Begin no request once another one of these draws has failed."""
            for part in parts:
                if part.done():
                    part.result()

        parts = [
            asyncio.ensure_future(
                self._part(record, stream, begin, min(size, first + count - begin), abilities, before=check)
            )
            for begin in range(first, first + count, size)
        ]
        await asyncio.gather(*parts, return_exceptions=True)  # those under way are paid for, even if one fails
        found = [part.result() for part in parts]
        usable = [choice for part, _ in found for choice in part if choice.is_usable]
        receipt = sum((own for _, own in found), Receipt(seconds=time.monotonic() - started))
        is_continued = getattr(record, "is_continued", False)
        return Draws(
            [choice.continuation if is_continued else choice.text for choice in usable],
            [choice.logprob or 0.0 for choice in usable] if self.logprobs else None,
            receipt.draws - len(usable),
            receipt=receipt,
        )

    async def _part(
        self,
        record: Record,
        stream: str,
        first: int,
        count: int,
        abilities: Abilities,
        *,
        before: Callable[[], None],
    ) -> tuple[list[Choice], Receipt]:
        """The draws of one request, and of others while the server gives fewer choices than requested."""
        choices: list[Choice] = []
        receipt = Receipt()
        while len(choices) < count:
            body = self.body_of(record) | dict(abilities.fields) | dict(getattr(record, "request", None) or {})
            begin, seed, wanted = first + len(choices), getattr(record, "seed", None), count - len(choices)
            if abilities.sends_seed:  # 31 bits, which any server takes
                body["seed"] = key(self._seed if seed is None else seed, record.id, f"{stream} {begin}") >> 33
            name = key_of([str(record.id), body | {"n": wanted}])
            kept = None if self._file is None else self._file.get(name, _kept)
            if kept is not None:
                got, cost = kept[0], Cost(kept_answers=1)
                receipt += kept[1]
            else:
                got, cost = await self._paid(body, wanted, abilities, before)
                if not got:  # the budget pays for none
                    return choices, receipt + Receipt(denied=wanted)
                receipt += _told(cost.prompt_tokens, cost.completion_tokens, requests=1)
                if self._file is not None:
                    self._file.put(name, _saved(record, stream, begin, got, cost))
                if self.logprobs and any(choice.logprob is None for choice in got):
                    raise ServiceError(f"{self.url}: gives no log-probabilities; leave logprobs out")
            cut = sum(choice.is_cut for choice in got)
            blank = len(got) - cut - sum(choice.is_usable for choice in got)
            receipt += Receipt(draws=len(got), cut=cut, blank=blank)
            self.cost, self.cut, self.blank = self.cost + cost, self.cut + cut, self.blank + blank
            self.drawn += len(got) if stream == "draw" else 0
            choices += got
        return choices, receipt

    async def _paid(
        self, body: dict[str, Any], wanted: int, abilities: Abilities, before: Callable[[], None]
    ) -> tuple[list[Choice], Cost]:
        """As many of the wanted choices of a request as the budget pays for, and what they cost."""
        most, prompt = int(body["max_tokens"]), most_tokens(body)
        paid, spent = await self.budget.take(prompt, most, wanted), 0
        if not paid:
            return [], Cost()
        try:
            got, cost = await self._post(body | {"n": paid}, paid, before)
            if abilities.usage_of_one and len(got) > 1:
                cost = await self._recount(got, cost, most)
            spent = cost.prompt_tokens + cost.completion_tokens or prompt + paid * most  # a server may not say it
        finally:
            self.budget.settle(prompt + paid * most, spent)
        return got, cost

    async def _recount(self, choices: Sequence[Choice], cost: Cost, most: int) -> Cost:
        """The tokens of all choices, from a server (llama.cpp) whose `usage` is that of the first one."""
        tokens = 0
        for choice in choices[1:]:
            if choice.is_cut:
                tokens += most
                continue
            asked = {"content": choice.written}
            found = await self._client.ask_once(asked, lambda answer: len(answer["tokens"]), "/tokenize")
            tokens += (cost.completion_tokens if found is None else found) + 1  # the token that ends it
        return cost + Cost(completion_tokens=tokens)

    async def _beams(self, source: str, count: int) -> Sequence[str]:
        """The best outputs of beam search; a blank source has one blank output."""
        if not source.strip():
            return [""]
        choices, cost = await self._post(
            beam_request(self.body_of(Record([], source=source)) | self._options, count, self._length_penalty), count
        )
        self.cost += cost
        check_beams([choice.text for choice in choices], count, self.url)
        return [choice.text for choice in choices if choice.is_usable]

    async def _post(
        self, body: dict[str, Any], count: int, before: Callable[[], None] = lambda: None
    ) -> tuple[list[Choice], Cost]:
        """The choices of an answer. If the request fails, a plain one tells whether the source is at fault."""

        def read(answer: Any) -> tuple[list[Choice], Cost]:
            return choices_of(answer, chat=self._chat)[:count], cost_of(answer)

        try:
            found = await self._client.ask(body, read, before=before)
        except RequestError as error:
            if error.refused and self._has_sampled:
                raise
            fields = self._options if self._abilities is None else self._abilities.fields
            seed = {"seed": 0} if "seed" in body else {}
            plain = self._with_text("a") | dict(fields) | seed | {"n": 1, "max_tokens": self._settings.max_tokens}
            if await self._client.ask_once(plain, read) is not None:
                raise
            raise StatusError(str(error), error.status) from error
        self._has_sampled = True
        return found

    def body_of(self, record: Record) -> dict[str, Any]:
        """The body of a request for a record: its messages if it has some, else the prompt with its source."""
        messages, limit = getattr(record, "messages", None), {"max_tokens": self._settings.max_tokens}
        if messages is not None:
            if not self._chat:
                raise UserError("messages: only for chats; give a prompt, the text to complete")
            system = self._settings.system_prompt
            has_system = system is None or messages[0]["role"] in ("system", "developer")
            turns = [*messages] if has_system else [{"role": "system", "content": system}, *messages]
            return {"model": self._settings.model, "messages": turns} | limit
        prompt = "{source}" if self._prompt is None and isinstance(record, Prompt) else self._prompt
        if prompt is None:
            raise UserError(
                f"{self.url}: needs a prompt with {{source}} in it, such as 'Translate into English: {{source}}'"
            )
        return self._with_text(prompt.replace("{source}", record.source or "")) | limit

    def _with_text(self, text: str) -> dict[str, Any]:
        if not self._chat:
            return {"model": self._settings.model, "prompt": text}
        return {"model": self._settings.model, "messages": chat_messages(text, self._settings.system_prompt)}


def _saved(record: Record, stream: str, first: int, choices: Sequence[Choice], cost: Cost) -> dict[str, Any]:
    """The line of `save_draws`, which `decode` reads as candidates."""
    each = [{name: value for name, value in asdict(choice).items() if name != "written"} for choice in choices]
    return {
        "id": record.id, "source": record.source, "stream": stream, "first": first, "choices": each,
        "tokens_in": cost.prompt_tokens, "tokens_out": cost.completion_tokens,
    }  # fmt: skip


def _kept(saved: dict[str, Any]) -> tuple[list[Choice], Receipt]:
    """The choices of a saved line, and what they cost."""
    choices = [
        Choice(str(each["text"]), None if each["logprob"] is None else float(each["logprob"]), bool(each["is_cut"]))
        for each in saved["choices"]
    ]
    return choices, _told(int(saved["tokens_in"]), int(saved["tokens_out"]))


def _told(tokens_in: int, tokens_out: int, *, requests: int = 0) -> Receipt:
    """What an answer says that it took; one without any tokens does not say it."""
    return Receipt(tokens_in, tokens_out, requests, untold=int(tokens_in + tokens_out == 0))
