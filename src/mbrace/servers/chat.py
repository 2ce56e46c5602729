"""What goes into a chat request, and what an answer holds: choices (texts, log-probabilities) and its cost."""

from __future__ import annotations

import math
from typing import Any

from mbrace.utility import Cost


def chat_messages(text: str, system: str | None) -> list[dict[str, str]]:
    """The messages of a request: the user's text, after a system message if there is one."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def choices_of(answer: Any, *, chat: bool) -> list[tuple[str, float | None]]:
    """Texts and log-probabilities of an answer; ValueError if it has none."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices:
        raise ValueError("no choices in the answer")
    out = []
    for choice in choices:
        text = choice["message"].get("content") if chat else choice.get("text")
        if not isinstance(text, str):
            raise ValueError(_why_no_text(choice))
        out.append((text.strip(), _logprob(choice.get("logprobs"))))
    return out


def cost_of(answer: Any) -> Cost:
    """One request and the tokens that its answer says it took."""
    usage = answer.get("usage") or {}
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (count if isinstance(count, int) else 0 for count in counts)
    return Cost(requests=1, prompt_tokens=prompt, completion_tokens=completion)


def _logprob(found: Any) -> float | None:
    """The sum of the log-probabilities of an output's tokens, as either endpoint gives them."""
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("content"), list):
        values = [token.get("logprob") for token in found["content"]]
    else:
        values = found.get("token_logprobs") or []
    if not values or not all(isinstance(value, int | float) for value in values):
        return None
    if not math.isfinite(total := float(sum(values))):
        raise ValueError(f"log-probabilities of {total}; they must be finite numbers")
    return total


def _why_no_text(choice: dict[str, Any]) -> str:
    """What an error says about a choice without text, in the server's words."""
    message = choice.get("message") or {}
    said = [message.get("refusal"), choice.get("error"), choice.get("finish_reason")]
    words = "; ".join(" ".join(str(part).split())[:200] for part in said if part)
    return "a choice without text" + (f": {words}" if words else "")
