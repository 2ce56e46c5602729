"""A judge as a utility: a language model on an OpenAI-compatible server scores a pair, or a hypothesis alone.

Equal questions are asked once. Answers are kept in memory, and in a file if one is given, so that a run that is resumed
or repeated pays for no answer twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import RESUME, ServiceError, UserError, check_number, check_whole
from mbrace.sampler import doubling
from mbrace.servers.answer_file import AnswerFile, key_of
from mbrace.servers.chat import Choice, chat_messages, choices_of, cost_of
from mbrace.servers.failures import RequestError
from mbrace.servers.http import Client
from mbrace.setting_fields import known_settings
from mbrace.settings import Connection, ConnectionOptions
from mbrace.utility import Ask, Cost, Pairwise, Scorer, Sentence

if TYPE_CHECKING:
    from typing_extensions import Unpack

PROMPT = (  # of translations, summaries and answers alike
    "Score the text below from 0 to 100 for how well it says what the reference says, where 0 is nothing of it and "
    "100 is all of it and nothing else. Answer with the number only.\n\n"
    "Reference: {reference}\n\nText: {hypothesis}\n\nScore:"
)
COMPARE = (
    "Which of these two answers is better? Answer with the letter A or B only.\n\n"
    "A: {hypothesis}\n\nB: {reference}\n\nBetter:"
)
FIELDS = ("source", "hypothesis", "reference")
CHECKED = 20  # questions before the share of unreadable answers is judged
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")


class Judge:
    """The number that a model answers to `prompt`, which has `{hypothesis}` and may have `{reference}` and `{source}`.

    `url` is the server's, with or without /v1; `model` is the model's name there. An answer must be one number from
    `lowest` to `highest` and nothing else; with `pattern`, a regular expression with one group, the number is what the
    group matches in the only match. After any other answer the model is told what was wrong and asked again, up to
    `attempts` times in all. An answer that is unreadable even then is left out: the mean of a hypothesis' other scores
    stands for it. More than the share `most_unreadable` of such answers end the run, and the error quotes one.

    With `structured`, answers are JSON of a schema where the server knows `response_format`. With `expected`, a score
    is the mean over the numbers that the model might have answered, weighted by their probabilities, where the server
    gives log-probabilities and the number is one token (use a scale such as 1 to 5). With `compare`, the model says
    which of hypothesis and reference is better, asked in both orders: 1, 0, or 0.5 where it contradicts itself.

    `answers` is a file that keeps answers by request. `budget` is the most requests; the run then ends, and can be
    resumed. `options` go into every request unchanged; the other keywords are those of `Server`.
    """

    schedule = doubling(8, 256)

    def __init__(
        self,
        url: str,
        model: str,
        *,
        prompt: str | None = None,
        system_prompt: str | None = None,
        lowest: float = 0.0,
        highest: float = 100.0,
        pattern: str | None = None,
        attempts: int = 3,
        structured: bool = False,
        expected: bool = False,
        compare: bool = False,
        most_unreadable: float = 0.05,
        budget: int | None = None,
        answers: str | Path | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = 16,
        api_key: str | None = None,
        options: Mapping[str, Any] | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        known_settings(Connection, connection, Judge)
        prompt = (COMPARE if compare else PROMPT) if prompt is None else prompt
        _check_prompt(prompt)
        if compare and "{reference}" not in prompt:
            raise UserError("compare: the prompt needs {reference}, the answer to compare with")
        if compare and (structured or expected or pattern is not None):
            raise UserError("compare: only valid without structured, expected and pattern; the answer is A or B")
        check_number("most_unreadable", most_unreadable, least=0, most=1)
        if budget is not None:
            check_whole("budget", budget, least=1)
        if not -math.inf < lowest < highest < math.inf:
            raise UserError(f"lowest {lowest}, highest {highest}: must be finite, the first below the second")
        check_whole("attempts", attempts, least=1)
        self._model, self._prompt, self._system = model, prompt, system_prompt
        self._lowest, self._highest, self._attempts = lowest, highest, attempts
        self._pattern = None if pattern is None else _compile(pattern)
        self._compare, self._expected, self._structured = compare, expected, structured
        self._most_unreadable, self._budget = most_unreadable, budget
        self._asked, self._unreadable, self._last = 0, 0, ""
        self._has_schema: bool | None = None if structured else False  # None: not known before the first question
        given = {"temperature": temperature, "max_tokens": max_tokens}
        if expected:
            given |= {"logprobs": True, "top_logprobs": 20}
        self._options = {name: value for name, value in given.items() if value is not None} | dict(options or {})
        self._client = Client(url, "/chat/completions", Connection(**connection), api_key=api_key)
        self._file = None if answers is None else AnswerFile(answers)
        self._scores: dict[bytes, float] = {}
        self.cost = Cost()  # the requests so far, and how many answers were kept from before
        self.needs_source = "{source}" in prompt
        digest = hashlib.sha256(f"{system_prompt or ''}\0{prompt}".encode()).hexdigest()[:8]
        kind = "|compare" if compare else "|expected" if expected else ""
        self.name = f"judge|{model}|prompt:{digest}|from:{lowest:g}|to:{highest:g}{kind}"

    def start(self, sentences: Sequence[Sentence]) -> Scorer:
        """Begin the races of a window."""
        return _JudgeScorer(
            self, Pairwise(cast(Any, self.readable), batch=True, source=self.needs_source).start(sentences)
        )

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Scores (pairs,) of hypothesis i against reference i (and source i); equal questions are asked once. For those
        without a readable answer, the mean of the others."""
        found = self.readable(hypotheses, references, sources)
        return self.filled(found[None, :])[0] if len(found) else found

    def filled(self, table: NDArray[np.floating]) -> NDArray[np.float32]:
        """Scores (hypotheses, references) with the mean of a hypothesis' others for those that are not readable."""
        missing = np.isnan(table)
        if not missing.any():
            return table.astype(np.float32)
        if missing.all():  # a record without a score is at fault, not the service
            raise UserError(self._unreadable_words())
        means = [np.nanmean(row) if not np.isnan(row).all() else np.nanmean(table) for row in table]
        return np.where(missing, np.array(means, dtype=np.float32)[:, None], table)

    def readable(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """The same, NaN without a readable answer."""
        if self.needs_source and sources is None:
            raise UserError(f"{self.name} scores with the source: give sources")
        given = sources if self.needs_source and sources is not None else [""] * len(hypotheses)
        if not len(hypotheses) == len(references) == len(given):
            raise UserError(f"pairs: lists of different lengths ({len(hypotheses)}, {len(references)}, {len(given)})")
        texts = list(zip(given, hypotheses, references, strict=True))
        scores = self._scores_of([self._body(*each) for each in texts])
        if not self._compare:
            return scores
        swapped = self._scores_of([self._body(source, second, first) for source, first, second in texts])
        equal = np.array([first == second for _, first, second in texts], dtype=np.bool_)
        return np.where(equal, np.float32(0.5), (scores + 1 - swapped) / 2).astype(np.float32)

    def _scores_of(self, bodies: Sequence[dict[str, Any]]) -> NDArray[np.float32]:
        keys = [key_of(body) for body in bodies]
        self._ask({key: body for key, body in zip(keys, bodies, strict=True) if key not in self._scores})
        return np.array([self._scores[key] for key in keys], dtype=np.float32)

    def interrupt(self) -> None:
        """End all requests and waits: they fail with a ServiceError."""
        self._client.interrupt()

    def close(self) -> None:
        """Cancel requests, and close the connections and the file."""
        self._client.close()
        if self._file is not None:
            self._file.close()

    def _ask(self, bodies: Mapping[bytes, dict[str, Any]]) -> None:
        """Score questions that were not asked yet. After a failure no request is started; answers that arrive are
        kept."""
        if self._has_schema is None and bodies:
            self._has_schema = self._client.gather([self._knows_schema(next(iter(bodies.values())))])[0]
        self._client.gather(self._score(key, body) for key, body in bodies.items())

    async def _score(self, key: bytes, body: dict[str, Any]) -> None:
        kept = None if self._file is None else self._file.get(key, self._kept)
        if kept is not None:
            self.cost += Cost(kept_answers=1)
            self._scores[key] = kept
            return
        text, schema = "", self._schema() if self._has_schema else {}
        for attempt in range(self._attempts):
            question = (self._again(body, text) if attempt else body) | schema
            choice, scores, cost = await self._client.ask(question, _read, before=self._pay)
            self.cost += cost
            text = choice.text
            score = self._number(text, is_cut=choice.is_cut)
            if score is not None and self._expected:
                score = self._expectation(scores, score)
            if score is not None:
                self._scores[key] = score
                if self._file is not None:
                    self._file.put(key, {"text": text} | ({"score": score} if self._expected else {}))
                return
        self._leave_out(key, text)

    def _kept(self, answer: dict[str, Any]) -> float | None:
        """The score of a kept answer; None if it has none."""
        score = answer.get("score")
        score = self._number(str(answer.get("text"))) if score is None else float(score)
        return score if score is not None and math.isfinite(score) else None

    def _pay(self) -> None:
        """Note a request, unless the budget is spent."""
        if self._budget is not None and self._asked >= self._budget:
            raise ServiceError(
                f"{self._client.url}: the judge's budget of {self._budget} requests is spent; "
                f"give a larger one and {RESUME}"
            )
        self._asked += 1

    def _leave_out(self, key: bytes, text: str) -> None:
        """Count an unreadable answer; too many of them end the run."""
        self._scores[key] = math.nan
        self._unreadable, self._last = self._unreadable + 1, text
        if len(self._scores) >= CHECKED and self._unreadable / len(self._scores) > self._most_unreadable:
            raise ServiceError(self._unreadable_words())

    def _unreadable_words(self) -> str:
        wanted = "A or B" if self._compare else f"a number from {self._lowest:g} to {self._highest:g}"
        times = "once" if self._attempts == 1 else f"{self._attempts} times"
        return (
            f"{self._client.url}: {self._unreadable} of {len(self._scores)} answers are unreadable; asked {times} for "
            f"{wanted}, the model answered {self._last[:200]!r}; ask for that alone in prompt, give structured or "
            "pattern, or allow more max_tokens"
        )

    async def _knows_schema(self, body: dict[str, Any]) -> bool:
        """Whether the server answers in the form of a schema: by its effect, as it may ignore the field."""
        try:
            question = body | self._schema() | {"max_tokens": 64}
            choice, _, cost = await self._client.ask(question, _read, before=self._pay)
            self.cost += cost
            return isinstance(json.loads(choice.text).get("score"), int | float)
        except (RequestError, ValueError, AttributeError, RecursionError):
            return False

    def _schema(self) -> dict[str, Any]:
        number = {"type": "number", "minimum": self._lowest, "maximum": self._highest}
        schema: dict[str, Any] = {"type": "object", "properties": {"score": number}, "required": ["score"]}
        schema["additionalProperties"] = False
        wanted = {"name": "score", "strict": True, "schema": schema}
        tokens = max(64, int(self._options.get("max_tokens") or 0))
        return {"response_format": {"type": "json_schema", "json_schema": wanted}, "max_tokens": tokens}

    def _expectation(self, scores: Sequence[tuple[str, Mapping[str, float]]], answered: float) -> float:
        """The mean of the numbers that the model might have answered in place of the one that it did, weighted by their
        probabilities; that one itself where it is no single token."""
        for token, others in scores:
            if not _NUMBER.fullmatch(token.strip()) or float(token) != answered:
                continue
            found = {text: math.exp(min(0.0, value)) for text, value in others.items()}
            numbers = {text: self._number(text) for text in found}
            weights = {text: found[text] for text, number in numbers.items() if number is not None}
            total = math.fsum(weights.values())
            if total > 0:
                return math.fsum(weight * (numbers[text] or 0.0) for text, weight in weights.items()) / total
        return answered

    def _number(self, text: str, *, is_cut: bool = False) -> float | None:
        """The number in an answer; None if it is not a single number, is out of range, or may lack its last digits."""
        answer = text
        if self._compare:
            letter = re.match(r"\W*([AB])\b(?![ \t]+\w)", text)  # "A better answer is B" is not A
            return None if letter is None else float(letter[1] == "A")
        if self._has_schema and text.lstrip().startswith("{"):
            try:
                text = str(json.loads(text)["score"])
            except (ValueError, KeyError, TypeError, RecursionError):
                return None
        if self._pattern is not None:
            found = self._pattern.findall(text)
            if len(found) != 1:
                return None
            (text,) = found
        if not _NUMBER.fullmatch(text.strip()):
            return None
        number = float(text)
        most = max(abs(self._lowest), abs(self._highest))
        if is_cut and answer.endswith(text) and 0 < 10 * abs(number) <= most:  # many tokenizers split digits
            return None
        return number if self._lowest <= number <= self._highest else None

    def _body(self, source: str, hypothesis: str, reference: str) -> dict[str, Any]:
        texts = {"{source}": source, "{hypothesis}": hypothesis, "{reference}": reference}
        # In one pass: a text that holds "{reference}" itself stays as it is.
        content = re.sub(r"\{(?:source|hypothesis|reference)\}", lambda field: texts[field.group()], self._prompt)
        return {"model": self._model, **self._options, "messages": chat_messages(content, self._system)}

    def _again(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        """The question, the answer that was not a number, and what was wrong with it."""
        wrong = "That is not A or B alone. Answer again." if self._compare else ""
        wrong = wrong or f"That is not a number from {self._lowest:g} to {self._highest:g} as asked for. Answer again."
        more = [{"role": "assistant", "content": text}, {"role": "user", "content": wrong}]
        return body | {"messages": [*body["messages"], *more]}


class _JudgeScorer:
    """Scores a window's pairs, with the mean of a hypothesis' others for what is not readable."""

    encode_seconds = 0.0

    def __init__(self, judge: Judge, readable: Scorer) -> None:
        self._judge, self._readable = judge, readable

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float32]]:
        """One table per ask."""
        return [self._judge.filled(table) for table in self._readable.score(asks)]


def _read(answer: Any) -> tuple[Choice, list[tuple[str, dict[str, float]]], Cost]:
    """The first choice of an answer, each token with those that were likely in its place, and what it cost."""
    scores: list[tuple[str, dict[str, float]]] = []
    found = answer["choices"][0].get("logprobs") if isinstance(answer, dict) and answer.get("choices") else None
    if isinstance(found, dict) and isinstance(found.get("content"), list):
        for token in found["content"]:
            likely = {str(each["token"]): float(each["logprob"]) for each in token.get("top_logprobs") or ()}
            scores.append((str(token["token"]), likely))
    return choices_of(answer, chat=True)[0], scores, cost_of(answer)


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
