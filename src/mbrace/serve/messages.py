"""Requests in OpenAI's protocol, checked, and the answers to them."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mbrace.answers import Answer, Prompt, prompt_of
from mbrace.errors import UserError
from mbrace.serve.engine import ranked

PASSED_ON = ("temperature", "max_tokens", "stop", "top_p", "response_format", "frequency_penalty", "presence_penalty")
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "stream_options")
REFUSED = {
    "tools": "calls of tools have no consensus; leave tools out",
    "functions": "calls of functions have no consensus; leave functions out",
    "tool_choice": "calls of tools have no consensus; leave tool_choice out",
    "logprobs": "an answer is chosen among several, so it has no log-probability of its own; leave logprobs out",
    "top_logprobs": "an answer is chosen among several; leave top_logprobs out",
    "best_of": "use mbrace.n, the most draws",
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
    n: int
    regret: float | None
    utility: str
    stream: bool
    with_usage: bool


def asked_from(body: Any, *, chat: bool, model: str, most_draws: int, utilities: Sequence[str]) -> Asked:
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
            raise BadRequest(f"{field}: {reason}", field)
    if body.pop("model", model) not in (model, "mbrace"):
        raise BadRequest(f"model: only {model} is served here", "model", 404)
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    passed = {name: body.pop(name) for name in PASSED_ON if name in body}
    passed = {name: value for name, value in passed.items() if value is not None}
    _check_numbers(passed)
    choices, seed = body.pop("n", None) or 1, body.pop("seed", None)
    stream, options = body.pop("stream", None) or False, body.get("stream_options") or {}
    race = body.pop("mbrace", None) or {}
    for field in IGNORED:
        body.pop(field, None)
    if unknown := sorted(name for name, value in body.items() if value is not None):
        raise BadRequest(f"{unknown[0]}: is not known here", unknown[0])
    n, regret, utility = _race(race, most_draws, utilities)
    if passed.get("temperature") == 0:  # all draws would be the same
        n = 1
        passed["temperature"] = 0
    if type(choices) is not int or not 1 <= choices <= max(n, 1):
        raise BadRequest(f"n: must be from 1 to {n}, the most draws", "n")
    if seed is not None and type(seed) is not int:
        raise BadRequest("seed: must be a whole number", "seed")
    if type(stream) is not bool:
        raise BadRequest("stream: must be true or false", "stream")
    name: str | int = secrets.token_hex(8) if seed is None else 0
    try:
        prompt = prompt_of(asked, name, request=passed or None, seed=seed)
    except UserError as error:
        raise BadRequest(str(error), "messages") from None
    if not (prompt.source or "").strip():
        raise BadRequest("the last message is empty", "messages")
    with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return Asked(prompt, chat, choices, n, regret, utility, stream, with_usage)


def _race(found: Any, most_draws: int, utilities: Sequence[str]) -> tuple[int, float | None, str]:
    if not isinstance(found, dict):
        raise BadRequest('mbrace: give an object such as {"n": 8}', "mbrace")
    found = dict(found)
    n, regret, utility = found.pop("n", most_draws), found.pop("regret", None), found.pop("utility", utilities[0])
    if found:
        raise BadRequest(f"mbrace.{min(found)}: is not known; it may have n, regret, utility", "mbrace")
    if type(n) is not int or not 1 <= n <= most_draws:
        raise BadRequest(f"mbrace.n: must be from 1 to {most_draws}", "mbrace.n")
    if regret is not None and not (_is_number(regret) and 0 <= regret < math.inf):
        raise BadRequest("mbrace.regret: must be 0 or more", "mbrace.regret")
    if utility not in utilities:
        raise BadRequest(f"mbrace.utility: only {', '.join(utilities)} may be chosen here", "mbrace.utility")
    return n, regret, utility


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _check_numbers(passed: Mapping[str, Any]) -> None:
    for name, least, most in (("temperature", 0, 2), ("top_p", 0, 1), ("max_tokens", 1, 2**31)):
        value = passed.get(name)
        if value is not None and not (_is_number(value) and least <= value <= most):
            raise BadRequest(f"{name}: must be from {least} to {most}", name)
    if "max_tokens" in passed and type(passed["max_tokens"]) is not int:
        raise BadRequest("max_tokens: must be a whole number", "max_tokens")
    if not isinstance(passed.get("stop", ""), str | list):
        raise BadRequest("stop: must be a text, or a list of texts", "stop")


def reply(asked: Asked, answer: Answer, model: str) -> dict[str, Any]:
    """The answer to a request: a normal one, with what the race did in `mbrace`."""
    best = ranked(answer)
    choices: list[dict[str, Any]] = []
    for index, (text, _) in enumerate(best[: asked.choices]):
        own = {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
        choices.append({"index": index, **own, "logprobs": None, "finish_reason": "stop"})
    return {
        "id": ("chatcmpl-" if asked.chat else "cmpl-") + secrets.token_hex(12),
        "object": "chat.completion" if asked.chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage(answer),
        "mbrace": about(answer, best),
    }


def usage(answer: Answer) -> dict[str, int]:
    """The tokens of all draws."""
    cost = answer.receipt
    return {
        "prompt_tokens": cost.tokens_in,
        "completion_tokens": cost.tokens_out,
        "total_tokens": cost.tokens_in + cost.tokens_out,
    }


def about(answer: Answer, best: Sequence[tuple[str, float | None]]) -> dict[str, Any]:
    """What the race did."""
    found = answer.fields()
    del found["text"], found["tokens_in"], found["tokens_out"]
    runner_up = {"text": best[1][0], "utility": best[1][1]} if len(best) > 1 else None
    return found | {"runner_up": runner_up}


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
