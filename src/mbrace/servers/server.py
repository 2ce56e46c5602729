"""Candidates from any server with OpenAI's protocol (vLLM, llama.cpp, Ollama, transformers serve).

Draws are requested in blocks of `per_request`. The seed of a block depends only on (seed, record id, number of the
block), so a race gets the same draws whether step by step or all at once. If a block fails, the others are kept.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from mbrace.errors import ServiceError, UserError, check_whole
from mbrace.randomness import key
from mbrace.records import Record
from mbrace.sampler import Draws, Want, ids_of, source_of
from mbrace.servers.chat import chat_messages, choices_of
from mbrace.servers.http import Client, RequestError
from mbrace.servers.threads import RequestThreads
from mbrace.servers.vllm_requests import beam_request, check_beams, check_epsilon, epsilon_probe, with_epsilon

PROMPT = "Translate the following sentence into English. Answer with the translation only.\n\n{source}"


class Server:
    """A server that makes candidates: `candidates(sources, n)`, or as the `sampler` of `decode_corpus`.

    `url` is the server's, with or without /v1; `model` is the model's name there. `prompt` has `{source}` where the
    source goes; it is the user's message of a chat, or with `chat=False` the text to complete. `logprobs` asks for
    log-probabilities and gives them to the race, which then weights draws by the model. `timeout` is in seconds per
    answer; a failed request is tried `retries` more times. `options` go into every request unchanged.

    Two options are only for vLLM: `epsilon` samples without tokens of a lower probability, if mbrace is installed next
    to vLLM, and `beam_search` makes hypotheses by beam search, scored log p / length ** `length_penalty`. A server that
    ignores either is refused.

    A request that still fails after all retries is a ServiceError, which ends a run, unless the server answers a plain
    request: then the source is at fault, and the next one can be tried.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        prompt: str = PROMPT,
        chat: bool = True,
        system: str | None = None,
        stop: str | None = None,
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
    ) -> None:
        if "{source}" not in prompt:
            raise UserError("prompt: has no {source}; put it where the source goes")
        check_whole("per_request", per_request, least=1)
        if not 0 <= temperature < math.inf:
            raise UserError(f"temperature {temperature}: must be 0 or more, and finite")
        for name, value in (("top_p", top_p), ("min_p", min_p), ("epsilon", epsilon)):
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"{name} {value}: must be from 0 to 1")
        if top_k is not None and top_k < 0:
            raise UserError(f"top_k {top_k}: must be 1 or more, or 0 for all")
        if max_tokens < 1 or not 0 < timeout < math.inf:
            raise UserError(f"max_tokens {max_tokens}, timeout {timeout}: must be more than 0, and finite")
        self._model, self._prompt, self._chat, self._system = model, prompt, chat, system
        self._seed, self._per_request, self._logprobs = seed, per_request, logprobs
        given: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        given |= {"stop": stop, "max_tokens": max_tokens}
        self._options = {name: value for name, value in given.items() if value is not None} | dict(options or {})
        if epsilon:
            self._options = with_epsilon(self._options, epsilon)
        self._is_epsilon_checked = not epsilon
        self._beam_search, self._length_penalty = beam_search, length_penalty
        if logprobs:
            self._options["logprobs"] = True if chat else 0  # completions: the number of alternatives per token
        endpoint = "/chat/completions" if chat else "/completions"
        self._client = Client(url, endpoint, api_key=api_key, concurrency=concurrency, retries=retries, timeout=timeout)
        self._threads = RequestThreads(concurrency)
        self._kept: dict[tuple[str | int, str, int], Future[Draws]] = {}  # blocks of a window that failed
        self._lock, self._checking = threading.Lock(), threading.Lock()
        self.drawn = 0  # pseudo-references received so far (the draws of stream "draw")

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
        drawer = _ServerDrawer(self, records, stream)
        for want in drawer.request([Want(i, 0, n) for i in range(len(records))]):
            yield drawer.get(want)

    def hypotheses(
        self, sources: Sequence[str], n: int, *, ids: Sequence[str | int] | None = None
    ) -> Iterator[Sequence[str]]:
        """`n` hypotheses per source, as soon as they have arrived: by beam search if the server was made to, otherwise
        samples of a random stream of their own."""
        if not self._beam_search:
            return (draws.texts for draws in self.stream(sources, n, ids=ids, stream="hypothesis"))
        asked = [self._threads.submit(partial(self._beams, source, n)) for source in sources]
        return (future.result() for future in asked)

    def _beams(self, source: str, count: int) -> Sequence[str]:
        """The best outputs of beam search; a blank source has one blank output."""
        if not source.strip():
            return [""]
        texts = [text for text, _ in self._post(beam_request(self._body(source), count, self._length_penalty))]
        check_beams(texts, count, self._client.url)
        return texts

    def start(self, records: Sequence[Record]) -> _ServerDrawer:
        """Begin a window of races."""
        for record in records:
            source_of(record)
        return _ServerDrawer(self, records, "draw")

    def close(self) -> None:
        """Cancel requests that have not begun, and close the connections."""
        self._threads.close()
        self._client.close()

    def interrupt(self) -> None:
        """End all waits for a server that does not answer: those requests fail with a ServiceError."""
        self._client.interrupt()

    # one block of draws

    def submit(self, record: Record, stream: str, block: int) -> Future[Draws]:
        """Ask for a block in the background."""
        with self._lock:
            kept = self._kept.pop((record.id, stream, block), None)
        if kept is not None and not (kept.done() and kept.exception() is not None):
            return kept
        return self._threads.submit(lambda: self._block(record, stream, block))

    def keep(self, record: Record, stream: str, block: int, draws: Future[Draws]) -> None:
        """Keep a block that has arrived, or still may, for the next time it is requested."""
        with self._lock:
            self._kept[record.id, stream, block] = draws

    def _block(self, record: Record, stream: str, block: int) -> Draws:
        """All draws of a block. A server that answers with fewer than requested is asked again for the rest."""
        if not (record.source or "").strip():  # a blank source has blank outputs
            return Draws([""] * self._per_request, [0.0] * self._per_request if self._logprobs else None)
        self._check_epsilon()
        texts: list[str] = []
        logprobs: list[float] | None = []
        while len(texts) < self._per_request:
            seed = key(self._seed, record.id, f"{stream} {block} {len(texts)}") >> 33  # 31 bits, which any server takes
            body = self._body(record.source or "") | {"n": self._per_request - len(texts), "seed": seed}
            got = self._post(body)[: self._per_request - len(texts)]
            texts += [text for text, _ in got]
            found = [logprob for _, logprob in got if logprob is not None]
            logprobs = [*logprobs, *found] if logprobs is not None and len(found) == len(got) else None
        if stream == "draw":
            with self._lock:
                self.drawn += len(texts)
        if self._logprobs and logprobs is None:
            raise ServiceError(f"{self._client.url}: gives no log-probabilities; leave logprobs out")
        return Draws(texts, logprobs if self._logprobs else None)

    def _check_epsilon(self) -> None:
        """Before the first sample, check that the server supports epsilon sampling."""
        with self._checking:
            if not self._is_epsilon_checked:
                texts = [text for text, _ in self._post(epsilon_probe(self._body("a")))]
                check_epsilon(texts, self._client.url)
                self._is_epsilon_checked = True

    def _post(self, body: dict[str, Any]) -> list[tuple[str, float | None]]:
        """The choices of an answer. If the request fails, a plain one tells whether the source is at fault."""
        try:
            return self._client.post(body, self._choices)
        except RequestError as error:
            plain = self._body("a") | {"n": 1, "seed": 0}
            if (error.refused and self._client.has_answered) or self._client.answers(plain, self._choices):
                raise
            raise ServiceError(str(error)) from error

    def _body(self, source: str) -> dict[str, Any]:
        text = self._prompt.replace("{source}", source)
        body: dict[str, Any] = {"model": self._model, **self._options}
        if not self._chat:
            return body | {"prompt": text}
        return body | {"messages": chat_messages(text, self._system)}

    def _choices(self, answer: Any) -> list[tuple[str, float | None]]:
        """Texts and log-probabilities of an answer; ValueError if it has none."""
        return choices_of(answer, chat=self._chat)


class _ServerDrawer:
    """Draws for one window: requests blocks of draws, and takes single draws from them."""

    def __init__(self, server: Server, records: Sequence[Record], stream: str) -> None:
        self._server, self._records, self._stream = server, records, stream
        self._size = server._per_request
        self._blocks: dict[tuple[int, int], Future[Draws]] = {}

    def request(self, wants: Sequence[Want]) -> Sequence[Want]:
        """Request every block that has a part of the wants; returns the wants."""
        for want in wants:
            for block in self._blocks_of(want):
                if (want.sentence, block) not in self._blocks:
                    record = self._records[want.sentence]
                    self._blocks[want.sentence, block] = self._server.submit(record, self._stream, block)
        return wants

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws of each want."""
        return [self.get(want) for want in self.request(wants)]

    def get(self, want: Want) -> Draws:
        """Wait for the draws of one want."""
        try:
            blocks = [self._blocks[want.sentence, block].result() for block in self._blocks_of(want)]
        except BaseException:
            self._keep_blocks()
            raise
        texts = [text for draws in blocks for text in draws.texts]
        begin = want.first % self._size
        part = slice(begin, begin + want.count)
        if any(draws.logprobs is None for draws in blocks):
            return Draws(texts[part])
        return Draws(texts[part], [p for draws in blocks for p in draws.logprobs or []][part])

    def _blocks_of(self, want: Want) -> range:
        return range(want.first // self._size, -(-(want.first + want.count) // self._size))

    def _keep_blocks(self) -> None:
        """After a request has failed: cancel those that have not started, keep the others for the next try."""
        for (sentence, block), future in self._blocks.items():
            if not future.cancel():
                self._server.keep(self._records[sentence], self._stream, block, future)
