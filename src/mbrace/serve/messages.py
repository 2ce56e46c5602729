"""Requests in OpenAI's protocol, checked, and the answers to them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mbrace.answers import Answer, Answering, Prompt, prompt_of
from mbrace.errors import SettingError, UserError, plain

PASSED_ON = ("temperature", "max_tokens", "stop", "top_p", "response_format", "frequency_penalty", "presence_penalty")
RANGES = {  # of what is passed on
    "temperature": (0, 2), "top_p": (0, 1), "max_tokens": (1, 2**31), "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}  # fmt: skip
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "stream_options")
REFUSED = {
    **dict.fromkeys(("tools", "functions", "tool_choice"), "calls of tools have no consensus"),
    **dict.fromkeys(("logprobs", "top_logprobs"), "an answer is chosen among several, and has no log-probability"),
    "best_of": "mbrace.n is the most draws",
}


class BadRequest(Exception):  # noqa: N818  (HTTP's name for it)
    """A request that is refused: the message, the field, and the status."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field, self.status = field, status


@dataclass(frozen=True)
class Asked:
    """A request: its prompt, how many choices it wants, and how it races."""

    prompt: Prompt
    chat: bool
    choices: int
    settings: Answering
    utility: str
    stream: bool
    with_usage: bool


def asked_from(body: Any, *, chat: bool, model: str, settings: Answering, utilities: Sequence[str]) -> Asked:
    """A checked request; the first of `utilities` is the default."""
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    body = dict(body)
    asked = body.pop("messages" if chat else "prompt", None)
    if isinstance(asked, list) and not chat and len(asked) == 1:
        (asked,) = asked
    if not isinstance(asked, list if chat else str) or not asked:
        raise BadRequest(
            "give messages, a list of turns" if chat else "give prompt, one text", "messages" if chat else "prompt"
        )
    for field, reason in REFUSED.items():
        if body.pop(field, None) not in (None, False, [], 0):
            raise BadRequest(f"{field}: {reason}; leave it out", field)
    if body.pop("model", None) not in (None, model, "mbrace"):
        raise BadRequest(f"model: only {model} is served here", "model", 404)
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    passed = {name: body.pop(name) for name in PASSED_ON if name in body}
    passed = {name: value for name, value in passed.items() if value is not None}
    _check_passed(passed)
    choices, seed, stream = (body.pop(name, None) for name in ("n", "seed", "stream"))
    options, race = body.get("stream_options"), body.pop("mbrace", None)
    for field in IGNORED:
        body.pop(field, None)
    if unknown := sorted(name for name, value in body.items() if value is not None):
        raise BadRequest(f"{unknown[0]}: is not known here", unknown[0])
    settings, utility = _race({} if race is None else race, settings, utilities)
    if passed.get("temperature") == 0:  # all draws would be the same
        settings = settings.replace(n=1)
    choices = 1 if choices is None else choices
    if type(choices) is not int or not 1 <= choices <= settings.n:
        raise BadRequest(f"n: must be from 1 to {settings.n}, the most draws", "n")
    if seed is not None and (type(seed) is not int or abs(seed) >= 1 << 63):
        raise BadRequest("seed: must be a whole number of at most 63 bits", "seed")
    if type(stream) is not bool and stream is not None:
        raise BadRequest("stream: must be true or false", "stream")
    name: str | int = secrets.token_hex(8) if seed is None else 0
    try:
        prompt = prompt_of(asked, name, request=passed or None, seed=seed, is_continued=not chat)
    except UserError as error:
        raise BadRequest(str(error), "messages") from None
    with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    settings = settings.replace(nbest=min(settings.n, max(2, choices)))  # the runner-up is named
    return Asked(prompt, chat, choices, settings, utility, bool(stream), with_usage)


def _race(found: Any, settings: Answering, utilities: Sequence[str]) -> tuple[Answering, str]:
    """How a request races, within what the server allows, and its utility."""
    if not isinstance(found, dict):
        raise BadRequest('mbrace: give an object such as {"n": 8}', "mbrace")
    if unknown := sorted(set(found) - {"n", "regret", "utility"}):
        raise BadRequest(f"mbrace.{unknown[0]}: is not known; it may have n, regret, utility", "mbrace")
    given = {name: value for name, value in found.items() if value is not None}
    utility = given.pop("utility", utilities[0])
    if utility not in utilities:
        raise BadRequest(f"mbrace.utility: only {', '.join(utilities)} may be chosen here", "mbrace.utility")
    try:
        chosen = settings.replace(**given)
    except SettingError as error:
        field = f"mbrace.{error.parameter}"
        raise BadRequest(f"{field}: {plain(error.reason)}", field) from None
    if chosen.n > settings.n:
        raise BadRequest(f"mbrace.n: must be from 1 to {settings.n}", "mbrace.n")
    return chosen, utility


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _check_passed(passed: Mapping[str, Any]) -> None:
    """Refuse values that a server would refuse, or take to mean something else."""
    for name, (least, most) in RANGES.items():
        value = passed.get(name)
        if value is not None and not (_is_number(value) and least <= value <= most):
            raise BadRequest(f"{name}: must be from {least} to {most}", name)
    if "max_tokens" in passed and type(passed["max_tokens"]) is not int:
        raise BadRequest("max_tokens: must be a whole number", "max_tokens")
    stop = passed.get("stop", "")
    if not isinstance(stop, str) and not (isinstance(stop, list) and all(isinstance(each, str) for each in stop)):
        raise BadRequest("stop: must be a text, or a list of texts", "stop")
    if not isinstance(passed.get("response_format", {}), dict):
        raise BadRequest("response_format: must be an object", "response_format")


def reply(asked: Asked, answer: Answer, model: str) -> dict[str, Any]:
    """The answer to a request: a normal one, with what the race did in `mbrace`."""
    choices: list[dict[str, Any]] = []
    for index, each in enumerate(answer.nbest[: asked.choices]):
        own = {"message": {"role": "assistant", "content": each.text}} if asked.chat else {"text": each.text}
        choices.append({"index": index, **own, "logprobs": None, "finish_reason": "stop"})
    return {
        "id": ("chatcmpl-" if asked.chat else "cmpl-") + secrets.token_hex(12),
        "object": "chat.completion" if asked.chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage(answer),
        "mbrace": about(answer),
    }


def usage(answer: Answer) -> dict[str, int] | None:
    """The tokens of all draws; None where the server behind does not tell them."""
    cost = answer.receipt
    return (
        None
        if cost.untold
        else {
            "prompt_tokens": cost.tokens_in,
            "completion_tokens": cost.tokens_out,
            "total_tokens": cost.tokens_in + cost.tokens_out,
        }
    )


def about(answer: Answer) -> dict[str, Any]:
    """What the race did."""
    found = answer.fields()
    del found["text"], found["tokens_in"], found["tokens_out"]
    second = {"text": answer.nbest[1].text, "utility": answer.nbest[1].utility} if len(answer.nbest) > 1 else None
    return found | {"runner_up": second}


def chunks(asked: Asked, whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An answer as the parts of a stream."""
    common = {name: whole[name] for name in ("id", "created", "model")}
    common["object"] = "chat.completion.chunk" if asked.chat else "text_completion"
    parts: list[dict[str, Any]] = []
    for choice in whole["choices"]:
        index = choice["index"]
        if asked.chat:
            delta = {"role": "assistant", "content": choice["message"]["content"]}
            parts.append({"index": index, "delta": delta, "finish_reason": None})
            parts.append({"index": index, "delta": {}, "finish_reason": "stop"})
        else:
            parts.append({"index": index, "text": choice["text"], "finish_reason": "stop"})
    found = [common | {"choices": [part]} for part in parts]
    found[-1]["mbrace"] = whole["mbrace"]
    if asked.with_usage:
        found.append(common | {"choices": [], "usage": whole["usage"]})
    return found
