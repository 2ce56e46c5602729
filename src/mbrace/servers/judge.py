"""A judge as a utility: a language model on an OpenAI-compatible server scores a pair, or a hypothesis alone.

Equal questions are asked once. Answers are kept in memory, and in a file if one is given, so that a run that is resumed
or repeated pays for no answer twice.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, check_whole
from mbrace.sampler import doubling
from mbrace.servers.answer_file import AnswerFile, key_of
from mbrace.servers.chat import chat_messages, choices_of, cost_of
from mbrace.servers.http import Client
from mbrace.utility import Cost, Pairwise, Scorer, Sentence

PROMPT = (
    "Score the translation below from 0 to 100 for how well it says what the reference says, where 0 is no meaning "
    "kept and 100 is a perfect translation. Answer with the number only.\n\n"
    "Reference: {reference}\nTranslation: {hypothesis}\nScore:"
)
FIELDS = ("source", "hypothesis", "reference")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")


class Judge:
    """The number that a model answers to `prompt`, which has `{hypothesis}` and may have `{reference}` and `{source}`.

    `url` is the server's, with or without /v1; `model` is the model's name there. An answer must be one number from
    `lowest` to `highest` and nothing else; with `pattern`, a regular expression with one group, the number is what the
    group matches in the only match. After any other answer the model is told what was wrong and asked again, up to
    `attempts` times in all; then the error quotes the answer. `answers` is a file that keeps answers by request.
    `concurrency`, `retries`, `timeout` and `api_key` are those of `Server`; `options` go into every request unchanged.
    """

    schedule = doubling(8, 256)

    def __init__(
        self,
        url: str,
        model: str,
        *,
        prompt: str = PROMPT,
        system: str | None = None,
        lowest: float = 0.0,
        highest: float = 100.0,
        pattern: str | None = None,
        attempts: int = 3,
        answers: str | Path | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = 16,
        concurrency: int = 8,
        retries: int = 6,
        timeout: float = 120.0,
        api_key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_prompt(prompt)
        if not -math.inf < lowest < highest < math.inf:
            raise UserError(f"lowest {lowest}, highest {highest}: must be finite, the first below the second")
        check_whole("attempts", attempts, least=1)
        self._model, self._prompt, self._system = model, prompt, system
        self._lowest, self._highest, self._attempts = lowest, highest, attempts
        self._pattern = None if pattern is None else _compile(pattern)
        given = {"temperature": temperature, "max_tokens": max_tokens}
        self._options = {name: value for name, value in given.items() if value is not None} | dict(options or {})
        self._client = Client(
            url, "/chat/completions", api_key=api_key, concurrency=concurrency, retries=retries, timeout=timeout
        )
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="mbrace-judge")
        self._file = None if answers is None else AnswerFile(answers)
        self._scores: dict[bytes, float] = {}
        self._lock = threading.Lock()
        self._cost = Cost()
        self.needs_source = "{source}" in prompt
        digest = hashlib.sha256(f"{system or ''}\0{prompt}".encode()).hexdigest()[:8]
        self.name = f"judge|{model}|prompt:{digest}|from:{lowest:g}|to:{highest:g}"

    @property
    def cost(self) -> Cost:
        """The requests so far, and how many answers were kept from before."""
        with self._lock:
            return self._cost

    def start(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window."""
        score: Callable[..., Any] = self.pairs
        return Pairwise(score, batch=True, source=self.needs_source, name=self.name).start(sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of hypothesis i against reference i (and source i); equal questions are asked once."""
        if self.needs_source and sources is None:
            raise UserError(f"{self.name} scores with the source: give sources")
        given = sources if self.needs_source and sources is not None else [""] * len(hypotheses)
        if not len(hypotheses) == len(references) == len(given):
            raise UserError(f"pairs: lists of different lengths ({len(hypotheses)}, {len(references)}, {len(given)})")
        bodies = [self._body(*texts) for texts in zip(given, hypotheses, references, strict=True)]
        keys = [key_of(body) for body in bodies]
        self._ask({key: body for key, body in zip(keys, bodies, strict=True) if key not in self._scores})
        return np.array([self._scores[key] for key in keys], dtype=np.float32)

    def close(self) -> None:
        """Cancel requests that have not begun, and close the connections and the file."""
        self._pool.shutdown(cancel_futures=True)
        self._client.close()
        if self._file is not None:
            self._file.close()

    def _ask(self, bodies: Mapping[bytes, dict[str, Any]]) -> None:
        """Score questions that were not asked yet. After a failure no request is started; answers that arrive are
        kept."""
        failed = threading.Event()
        futures = [self._pool.submit(self._answer, key, body, failed) for key, body in bodies.items()]
        try:
            for future in futures:
                future.result()
        except BaseException:
            failed.set()  # this thread may also have been interrupted
            wait(futures)
            raise

    def _answer(self, key: bytes, body: dict[str, Any], failed: threading.Event) -> None:
        """Ask one question, unless another failed."""
        try:
            if not failed.is_set():
                self._score(key, body)
        except BaseException:
            failed.set()
            raise

    def _score(self, key: bytes, body: dict[str, Any]) -> None:
        kept = None if self._file is None else self._file.get(key)
        if kept is not None:
            score = self._number(str(kept.get("text")))
            if score is not None:
                self._keep(key, score, Cost(kept_answers=1))
                return
        text = ""
        for attempt in range(self._attempts):
            text, cost = self._client.post(self._again(body, text) if attempt else body, _read)
            score = self._number(text)
            self._keep(key, score, cost)
            if score is not None:
                if self._file is not None:
                    self._file.put(key, {"text": text})
                return
        wanted = f"a number from {self._lowest:g} to {self._highest:g}"
        times = "once" if self._attempts == 1 else f"{self._attempts} times"
        raise UserError(
            f"{self._client.url}: asked {times} for {wanted}, the model answered {text[:200]!r}; "
            "ask for the number alone in prompt, give pattern, or allow more max_tokens"
        )

    def _keep(self, key: bytes, score: float | None, cost: Cost) -> None:
        with self._lock:
            self._cost += cost
            if score is not None:
                self._scores[key] = score

    def _number(self, text: str) -> float | None:
        """The number in an answer; None if it is not a single number, or is out of range."""
        if self._pattern is not None:
            found = self._pattern.findall(text)
            if len(found) != 1:
                return None
            (text,) = found
        if not _NUMBER.fullmatch(text.strip()):
            return None
        number = float(text)
        return number if self._lowest <= number <= self._highest else None

    def _body(self, source: str, hypothesis: str, reference: str) -> dict[str, Any]:
        texts = {"{source}": source, "{hypothesis}": hypothesis, "{reference}": reference}
        # In one pass: a text that holds "{reference}" itself stays as it is.
        content = re.sub(r"\{(?:source|hypothesis|reference)\}", lambda field: texts[field.group()], self._prompt)
        content = content.encode("utf-8", "replace").decode("utf-8")  # lone surrogates cannot be sent
        return {"model": self._model, **self._options, "messages": chat_messages(content, self._system)}

    def _again(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        """The question, the answer that was not a number, and what was wrong with it."""
        wrong = f"That is not a number from {self._lowest:g} to {self._highest:g} as asked for. Answer again."
        more = [{"role": "assistant", "content": text}, {"role": "user", "content": wrong}]
        return body | {"messages": [*body["messages"], *more]}


def _read(answer: Any) -> tuple[str, Cost]:
    """The text of an answer and what it cost; ValueError if it has none."""
    return choices_of(answer, chat=True)[0].text, cost_of(answer)


def _check_prompt(prompt: str) -> None:
    if "{hypothesis}" not in prompt:
        raise UserError("prompt: has no {hypothesis}; put it where the hypothesis goes")
    unknown = sorted(set(re.findall(r"\{([A-Za-z_]+)\}", prompt)) - set(FIELDS))
    if unknown:
        raise UserError(f"prompt: {{{unknown[0]}}} is unknown; it may have {{source}}, {{hypothesis}}, {{reference}}")


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"pattern {pattern}: is not a regular expression ({error})") from error
    if compiled.groups != 1:
        raise UserError(f"pattern {pattern}: has {compiled.groups} groups; give one, around the number")
    return compiled
