"""Candidates from any server with OpenAI's protocol (vLLM, llama.cpp, Ollama, transformers serve).

Exactly the draws that a race wants are requested. The seed of a request depends only on (seed, record id, number of its
first draw), so a race with the same schedule gets the same draws from a server that honours seeds. If a request fails,
the others are kept.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mbrace.answers import DRAWS, Answer, Message, Prompt, answers, prompt_of
from mbrace.errors import ServiceError, UserError, check_whole
from mbrace.randomness import key
from mbrace.records import Record
from mbrace.sampler import Draws, Receipt, Want, ids_of, source_of
from mbrace.servers.abilities import Abilities, Probe, beam_request, check_beams
from mbrace.servers.answer_file import AnswerFile, key_of
from mbrace.servers.chat import Choice, chat_messages, choices_of, cost_of
from mbrace.servers.http import Client, RequestError, StatusError
from mbrace.utility import Cost, PairFunction, Utility

Blocks = tuple[str | int, str, int, int]  # record id, stream, first draw, count


class Server:
    """A server that makes candidates: `candidates(sources, n)`, or as the `sampler` of `decode_corpus`.

    `url` is the server's, with or without /v1; `model` is the model's name there. `prompt` has `{source}` where the
    source goes; it is the user's message of a chat, or with `chat=False` the text to complete. `logprobs` asks for
    log-probabilities and gives them to the race, which then weights draws by the model. `timeout` is in seconds per
    answer; a failed request is tried `retries` more times. `per_request` is the most choices per request; a server
    that gives fewer is asked more often. `options` go into every request unchanged.

    Before the first sample, a few short requests find out what the server does (`abilities`). One that does not sample,
    or on which an option has no effect, is refused. `epsilon` needs vLLM with mbrace installed next to it, or
    transformers serve; `beam_search`, scored log p / length ** `length_penalty`, needs vLLM.

    Outputs that were cut at `max_tokens` or are empty use up draws and are no candidates; `receipts` counts them. Any
    reasoning before an answer (`reasoning_content`, <think>) is left out. `save_draws` is a file that keeps all paid
    answers by request, so that none is paid for twice.

    A request that still fails after all retries is a ServiceError, which ends a run, unless the server answers a plain
    request: then the source is at fault, and the next one can be tried.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        prompt: str | None = None,
        chat: bool = True,
        system: str | None = None,
        stop: str | Sequence[str] | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        epsilon: float | None = None,
        beam_search: bool = False,
        length_penalty: float = 1.0,
        max_tokens: int = 512,
        logprobs: bool = False,
        seed: int = 0,
        per_request: int = 16,
        concurrency: int = 8,
        retries: int = 6,
        timeout: float = 120.0,
        api_key: str | None = None,
        options: Mapping[str, Any] | None = None,
        save_draws: str | Path | None = None,
        max_cost_tokens: int | None = None,
    ) -> None:
        if prompt is not None and "{source}" not in prompt:
            raise UserError("prompt: has no {source}; put it where the source goes")
        check_whole("per_request", per_request, least=1)
        if not 0 <= temperature < math.inf:
            raise UserError(f"temperature {temperature}: must be 0 or more, and finite")
        if temperature == 0 and not beam_search:
            raise UserError(
                "temperature 0: all samples would be the same text, which agrees with itself; give more, such as 0.7"
            )
        for name, value in (("top_p", top_p), ("min_p", min_p), ("epsilon", epsilon)):
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"{name} {value}: must be from 0 to 1")
        if top_k is not None and top_k < 0:
            raise UserError(f"top_k {top_k}: must be 1 or more, or 0 for all")
        if max_tokens < 1:
            raise UserError(f"max_tokens {max_tokens}: must be 1 or more")
        self._model, self._prompt, self._chat, self._system = model, prompt, chat, system
        self._seed, self._per_request, self._logprobs, self._epsilon = seed, per_request, logprobs, epsilon
        given: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        given |= {"stop": stop}
        self._options = {name: value for name, value in given.items() if value is not None} | dict(options or {})
        self._max_tokens = max_tokens
        self._beam_search, self._length_penalty = beam_search, length_penalty
        endpoint = "/chat/completions" if chat else "/completions"
        self._client = Client(url, endpoint, api_key=api_key, concurrency=concurrency, retries=retries, timeout=timeout)
        self._file = None if save_draws is None else AnswerFile(save_draws)
        self._kept: dict[Blocks, Future[Drawn]] = {}  # of a window that failed
        self._lock, self._probing = threading.Lock(), threading.Lock()
        self._abilities: Abilities | None = None
        self._has_sampled = False
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
            if self._abilities is None:
                probe = Probe(
                    self._client,
                    self._with_text,
                    self._options,
                    chat=self._chat,
                    logprobs=self._logprobs,
                    epsilon=self._epsilon,
                    most=self._per_request,
                )
                self._abilities = self._client.start(probe.run()).result()
            return self._abilities

    def candidates(
        self, sources: Sequence[str], n: int, *, ids: Sequence[str | int] | None = None, stream: str = "draw"
    ) -> list[Draws]:
        """`n` draws per source; ids are 0, 1, ... unless given; `stream` names the random stream."""
        return list(self.stream(sources, n, ids=ids, stream=stream))

    def stream(
        self, sources: Sequence[str], n: int, *, ids: Sequence[str | int] | None = None, stream: str = "draw"
    ) -> Iterator[Draws]:
        """Like `candidates`; a source's draws are yielded as soon as they and those before them have arrived."""
        named = zip(ids_of(sources, ids), sources, strict=True)
        records = [Record([], id=name, source=source) for name, source in named]
        drawer = ServerDrawer(self, records, stream)
        for want in drawer.request([Want(i, 0, n) for i in range(len(records))]):
            draws = drawer.get(want)
            if n and not draws.texts:
                raise records[want.sentence].error(
                    f"none of {n} outputs is a whole answer (cut at max_tokens, or empty); allow more max_tokens"
                )
            yield draws

    def hypotheses(
        self, sources: Sequence[str], n: int, *, ids: Sequence[str | int] | None = None
    ) -> Iterator[Sequence[str]]:
        """`n` hypotheses per source, as soon as they have arrived: by beam search if the server was made to, otherwise
        samples of a random stream of their own."""
        if not self._beam_search:
            return (draws.texts for draws in self.stream(sources, n, ids=ids, stream="hypothesis"))
        asked = [self._client.start(self._beams(source, n)) for source in sources]
        return (future.result() for future in asked)

    def start(self, records: Sequence[Record]) -> ServerDrawer:
        """Begin a window of races."""
        for record in records:
            source_of(record)
        return ServerDrawer(self, records, "draw")

    def start_counted(self, records: Sequence[Record], receipts: dict[str | int, Receipt]) -> ServerDrawer:
        """Begin a window of races, whose costs are added to `receipts`."""
        return ServerDrawer(self, records, "draw", receipts)

    def answer(
        self,
        prompts: str | Sequence[str | Sequence[Message]],
        *,
        n: int = DRAWS,
        utility: Utility | PairFunction | None = None,
        ids: Sequence[str | int] | None = None,
        **options: Any,
    ) -> Any:
        """The consensus answers to prompts: texts, or lists of messages; an `Answer` for each, or one for one text.

        At most `n` draws are made for each, in steps while the race between them is open. `options` are those of
        `mbrace.answers.answers`: `regret`, `confidence`, `nbest`, `seed`, `window`.
        """
        if isinstance(prompts, str):
            return self.answer([prompts], n=n, utility=utility, ids=ids, **options)[0]
        names = [*range(len(prompts))] if ids is None else [*ids]
        records = [prompt_of(prompt, name) for prompt, name in zip(prompts, names, strict=True)]
        return list(answers(records, self, n=n, utility=utility, weighted=self._logprobs, **options))

    async def answer_async(self, prompt: str | Sequence[Message], **options: Any) -> Answer:
        """Like `answer`, for one prompt, in a service. Cancelling it cancels its requests."""
        ongoing = Ongoing(self)
        options = {"weighted": self._logprobs, "id": 0} | options
        record = prompt_of(prompt, options.pop("id"))
        try:
            return await asyncio.to_thread(lambda: next(answers([record], ongoing, **options)))
        except asyncio.CancelledError:
            ongoing.cancel()
            raise

    def close(self) -> None:
        """Cancel all requests, and close the connections and the file."""
        self._client.close()
        if self._file is not None:
            self._file.close()

    def interrupt(self) -> None:
        """End all requests and waits: they fail with a ServiceError."""
        self._client.interrupt()

    def finish(self, requested: Iterable[Future[Drawn]]) -> None:
        """Start no request, and wait for those under way, whose answers are paid for."""
        self._client.finish(requested)

    # the draws of one want

    def submit(self, record: Record, stream: str, first: int, count: int) -> Future[Drawn]:
        """Ask for draws number `first` to `first + count - 1` in the background."""
        with self._lock:
            kept = self._kept.pop((record.id, stream, first, count), None)
        if kept is not None and not (kept.cancelled() or (kept.done() and kept.exception() is not None)):
            return kept
        abilities = self.abilities() if (record.source or "").strip() else Abilities()
        return self._client.start(self._draw(record, stream, first, count, abilities))

    def keep(self, record: Record, stream: str, first: int, count: int, drawn: Future[Drawn]) -> None:
        """Keep draws that have arrived, or still may, for the next time they are requested."""
        with self._lock:
            self._kept[record.id, stream, first, count] = drawn

    async def _draw(self, record: Record, stream: str, first: int, count: int, abilities: Abilities) -> Drawn:
        """The draws, in as few requests as the server allows, at the same time."""
        if not (record.source or "").strip():  # a blank source has blank outputs
            return Drawn([Choice("", 0.0)] * count, Receipt(), accepts_blank=True)
        started, size = time.monotonic(), min(self._per_request, abilities.choices)
        parts = [
            self._part(record, stream, begin, min(size, first + count - begin), abilities)
            for begin in range(first, first + count, size)
        ]
        found = await asyncio.gather(*parts)
        receipt = Receipt(seconds=time.monotonic() - started)
        for drawn in found:
            receipt += drawn.receipt
        drawn = Drawn([choice for part in found for choice in part.choices], receipt)
        self._count(drawn, stream)
        return drawn

    async def _part(self, record: Record, stream: str, first: int, count: int, abilities: Abilities) -> Drawn:
        """The draws of one request, and of others while the server gives fewer choices than requested."""
        choices: list[Choice] = []
        receipt = Receipt()
        while len(choices) < count:
            body = self.body_of(record) | dict(abilities.fields) | dict(getattr(record, "request", None) or {})
            most, seed = int(body["max_tokens"]), getattr(record, "seed", None)
            wanted = count - len(choices)
            if abilities.sends_seed:  # 31 bits, which any server takes
                body["seed"] = (
                    key(self._seed if seed is None else seed, record.id, f"{stream} {first + len(choices)}") >> 33
                )
            name = key_of([str(record.id), body | {"n": wanted}])
            kept = None if self._file is None else self._file.get(name)
            if kept is not None:
                got, cost = [Choice(**each) for each in kept["choices"]], Cost(kept_answers=1)
                receipt += Receipt(kept["tokens_in"], kept["tokens_out"])
            else:
                async with self.budget.reserve(_most_tokens(body), most, wanted) as bill:
                    if not bill.choices:  # none that the budget pays for
                        return Drawn(choices, receipt + Receipt(denied=wanted))
                    got, cost = await self._post(body | {"n": bill.choices}, bill.choices)
                    if abilities.usage_of_one and len(got) > 1:
                        cost = await self._recount(got, cost, most)
                    bill.spent = cost.prompt_tokens + cost.completion_tokens
                receipt += Receipt(cost.prompt_tokens, cost.completion_tokens, 1)
                if self._file is not None:
                    self._file.put(name, self._saved(record, stream, first + len(choices), got, cost))
                if self._logprobs and any(choice.logprob is None for choice in got):
                    raise ServiceError(f"{self.url}: gives no log-probabilities; leave logprobs out")
            self.cost += cost
            choices += got
        return Drawn(choices, receipt)

    def _saved(self, record: Record, stream: str, first: int, choices: Sequence[Choice], cost: Cost) -> dict[str, Any]:
        """The line of `save_draws`, which `decode` reads as candidates."""
        each = [{"text": choice.text, "logprob": choice.logprob, "is_cut": choice.is_cut} for choice in choices]
        return {
            "id": record.id, "source": record.source, "stream": stream, "first": first, "choices": each,
            "tokens_in": cost.prompt_tokens, "tokens_out": cost.completion_tokens,
        }  # fmt: skip

    def _count(self, drawn: Drawn, stream: str) -> None:
        if stream == "draw":
            self.drawn += len(drawn.choices)
        self.cut += drawn.receipt.cut
        self.blank += drawn.receipt.blank

    async def _recount(self, choices: Sequence[Choice], cost: Cost, most: int) -> Cost:
        """The tokens of all choices, from a server (llama.cpp) whose `usage` is that of the first one."""
        tokens = 0
        for choice in choices[1:]:
            if choice.is_cut:
                tokens += most
                continue
            found = await self._client.ask_once({"content": choice.written}, "/tokenize")
            count = len(found["tokens"]) if isinstance(found, dict) and "tokens" in found else cost.completion_tokens
            tokens += count + 1  # the token that ends it
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

    async def _post(self, body: dict[str, Any], count: int) -> tuple[list[Choice], Cost]:
        """The choices of an answer. If the request fails, a plain one tells whether the source is at fault."""

        def read(answer: Any) -> tuple[list[Choice], Cost]:
            return choices_of(answer, chat=self._chat)[:count], cost_of(answer)

        try:
            found = await self._client.ask(body, read)
        except RequestError as error:
            if error.refused and self._has_sampled:
                raise
            fields = self._options if self._abilities is None else self._abilities.fields
            seed = {"seed": 0} if "seed" in body else {}
            plain = self._with_text("a") | dict(fields) | seed | {"n": 1, "max_tokens": self._max_tokens}
            if await self._client.answers(plain, read):
                raise
            raise StatusError(str(error), error.status) from error
        self._has_sampled = True
        return found

    def body_of(self, record: Record) -> dict[str, Any]:
        """The body of a request for a record: its messages if it has some, else the prompt with its source."""
        messages = getattr(record, "messages", None)
        if messages is not None:
            return {"model": self._model, "messages": list(messages), "max_tokens": self._max_tokens}
        if self._prompt is None and isinstance(record, Prompt):
            return self._with_text(record.source or "") | {"max_tokens": self._max_tokens}
        if self._prompt is None:
            raise UserError(
                f"{self.url}: needs a prompt with {{source}} in it, such as 'Translate into English: {{source}}'"
            )
        body = self._with_text(self._prompt.replace("{source}", record.source or ""))
        return body | {"max_tokens": self._max_tokens}

    def _with_text(self, text: str) -> dict[str, Any]:
        if not self._chat:
            return {"model": self._model, "prompt": text}
        return {"model": self._model, "messages": chat_messages(text, self._system)}


@dataclass
class Drawn:
    """Choices as they came, and what they cost."""

    choices: Sequence[Choice]
    receipt: Receipt = field(default_factory=Receipt)
    accepts_blank: bool = False

    def __post_init__(self) -> None:
        if not self.accepts_blank:
            cut = sum(choice.is_cut for choice in self.choices)
            blank = sum(not choice.text and not choice.is_cut for choice in self.choices)
            self.receipt = replace(self.receipt, draws=len(self.choices), cut=cut, blank=blank)

    def draws(self, *, logprobs: bool) -> Draws:
        """Those that are whole answers."""
        usable = [choice for choice in self.choices if choice.is_usable or self.accepts_blank]
        scores = [choice.logprob or 0.0 for choice in usable] if logprobs else None
        return Draws([choice.text for choice in usable], scores, len(self.choices) - len(usable))


class Ongoing:
    """A race on a server whose draws can be cancelled from another thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._drawers: list[ServerDrawer] = []
        self.is_cancelled = False
        self.texts: list[str] = []  # all whole draws so far

    def start_counted(self, records: Sequence[Record], receipts: dict[str | int, Receipt]) -> ServerDrawer:
        """Begin a window of races, whose costs are added to `receipts`."""
        self._drawers.append(ServerDrawer(self._server, records, "draw", receipts, self))
        return self._drawers[-1]

    def cancel(self) -> None:
        """Cancel the requests that are under way, and make no others."""
        self.is_cancelled = True
        for drawer in self._drawers:
            drawer.cancel()


class ServerDrawer:
    """Draws for one window of records. `receipts` collects what each of them cost."""

    def __init__(
        self,
        server: Server,
        records: Sequence[Record],
        stream: str,
        receipts: dict[str | int, Receipt] | None = None,
        ongoing: Ongoing | None = None,
    ) -> None:
        self._server, self._records, self._stream, self._receipts = server, records, stream, receipts
        self._ongoing = ongoing
        self._wanted: dict[tuple[int, int, int], Future[Drawn]] = {}

    def request(self, wants: Sequence[Want]) -> Sequence[Want]:
        """Request what is wanted, all at the same time; returns the wants."""
        for want in wants:
            if self._ongoing is not None and self._ongoing.is_cancelled:
                raise ServiceError(f"{self._server.url}: cancelled")
            record = self._records[want.sentence]
            self._wanted[want.sentence, want.first, want.count] = self._server.submit(
                record, self._stream, want.first, want.count
            )
        return wants

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws of each want."""
        return [self.get(want) for want in self.request(wants)]

    def get(self, want: Want) -> Draws:
        """Wait for the draws of one want."""
        try:
            drawn = self._wanted[want.sentence, want.first, want.count].result()
            del self._wanted[want.sentence, want.first, want.count]
        except CancelledError:
            raise ServiceError(f"{self._server.url}: cancelled") from None
        except BaseException as error:
            self._give_up(keep=not isinstance(error, ServiceError))
            raise
        if self._receipts is not None:
            name = self._records[want.sentence].id
            self._receipts[name] = self._receipts.get(name, Receipt()) + drawn.receipt
        draws = drawn.draws(logprobs=self._server._logprobs)
        if self._ongoing is not None:
            self._ongoing.texts += draws.texts
        return draws

    def cancel(self) -> None:
        """Cancel what was requested; may be called from another thread."""
        for future in list(self._wanted.values()):
            future.cancel()

    def _give_up(self, *, keep: bool) -> None:
        """After a request has failed: keep the others for the next try; if there will be none, save what is paid."""
        if not keep:
            self._server.finish(self._wanted.values())
        for (sentence, first, count), future in self._wanted.items():
            if keep:
                self._server.keep(self._records[sentence], self._stream, first, count, future)
        self._wanted.clear()


class Budget:
    """The most tokens, in and out, that requests may cost together; None: any number. Used in one event loop."""

    def __init__(self, tokens: int | None) -> None:
        if tokens is not None:
            check_whole("max_cost_tokens", tokens, least=1)
        self.tokens, self.spent = tokens, 0
        self._reserved = 0
        self._settled: asyncio.Event | None = None
        self.is_spent = False  # whether a request was denied

    def reserve(self, prompt: int, per_choice: int, choices: int) -> Bill:
        """A request of a prompt of at most so many tokens, for up to `choices` of at most `per_choice` each."""
        return Bill(self, prompt, per_choice, choices)

    async def take(self, prompt: int, per_choice: int, choices: int) -> int:
        """Reserve as many choices as there is room for; waits for other requests while they may leave some."""
        if self.tokens is None:
            return choices
        while True:
            room = self.tokens - self.spent - self._reserved - prompt
            if room >= choices * per_choice or not self._reserved:
                paid = max(0, min(choices, room // per_choice))
                self._reserved += prompt + paid * per_choice if paid else 0
                self.is_spent = self.is_spent or paid < choices
                return paid
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()

    def settle(self, reserved: int, spent: int) -> None:
        """What a request cost in the end."""
        self.spent += spent
        if self.tokens is not None:
            self._reserved -= reserved
            if self._settled is not None:
                self._settled.set()
                self._settled = None


class Bill:
    """What one request may cost, and did."""

    def __init__(self, budget: Budget, prompt: int, per_choice: int, choices: int) -> None:
        self._budget, self._prompt, self._per_choice, self._wanted = budget, prompt, per_choice, choices
        self.choices = self.spent = 0

    async def __aenter__(self) -> Bill:
        self.choices = await self._budget.take(self._prompt, self._per_choice, self._wanted)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.choices:
            self._budget.settle(self._prompt + self.choices * self._per_choice, self.spent)


def _most_tokens(body: Mapping[str, Any]) -> int:
    """The most tokens that the prompt of a request may have: one for each byte, and some for the chat template."""
    if "prompt" in body:
        return len(str(body["prompt"]).encode("utf-8", "replace")) + 8
    return sum(len(str(message.get("content")).encode("utf-8", "replace")) + 16 for message in body["messages"]) + 64
