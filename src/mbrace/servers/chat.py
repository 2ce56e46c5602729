"""What goes into a chat request, and what an answer holds: choices, their log-probabilities, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mbrace.answers import answer_in
from mbrace.servers.failures import UselessError
from mbrace.utility import Cost

CUT = ("length", "content_filter")  # why an output that is not whole ended


@dataclass(frozen=True)
class Choice:
    """One output. `text` is the answer without any reasoning before it; `written` is all that the model wrote."""

    text: str
    logprob: float | None = None
    is_cut: bool = False  # it ended at max_tokens, or where a filter stopped it
    written: str = ""

    @property
    def continuation(self) -> str:
        """The answer with the whitespace before it."""
        return self.written[: len(self.written) - len(self.written.lstrip())] + self.text

    @property
    def is_usable(self) -> bool:
        """Whether it is a whole answer."""
        return bool(self.text) and not self.is_cut


def chat_messages(text: str, system: str | None) -> list[dict[str, str]]:
    """The messages of a request: the user's text, after a system message if there is one."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def choices_of(answer: Any, *, chat: bool) -> list[Choice]:
    """The choices of an answer; ValueError if none has a text. One without among others is blank."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices:
        raise ValueError("no choices in the answer")
    found = [_choice(choice, chat) for choice in choices]
    if not any(found):
        raise ValueError(_why_no_text(choices[0]))
    return [choice or Choice("", 0.0) for choice in found]


def _choice(choice: Mapping[str, Any], chat: bool) -> Choice | None:
    """A choice; None if it has no text and does not say that it was cut before its answer began."""
    message = choice["message"] if chat else choice
    text = message.get("content" if chat else "text")
    thoughts = message.get("reasoning_content") or message.get("reasoning") or ""
    end = choice.get("finish_reason")
    if not isinstance(text, str):
        if not (end in CUT or thoughts) or message.get("refusal"):
            return None
        text = ""
    written = f"{thoughts}{text}"
    return Choice(answer_in(text), _logprob(choice.get("logprobs"), is_blank=not text), end in CUT, written)


def cost_of(answer: Any) -> Cost:
    """One request and the tokens that its answer says it took."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (count if type(count) is int and 0 <= count < 2**53 else 0 for count in counts)
    return Cost(requests=1, prompt_tokens=prompt, completion_tokens=completion)


def _logprob(found: Any, *, is_blank: bool) -> float | None:
    """The sum of the log-probabilities of an output's tokens, in the form of either endpoint; 0 for an output without
    any."""
    values: Sequence[Any] = ()
    if isinstance(found, dict) and isinstance(found.get("content"), list):
        values = [token.get("logprob") for token in found["content"]]
    elif isinstance(found, dict):
        values = found.get("token_logprobs") or ()
    if not values:
        return 0.0 if is_blank else None
    if not all(type(value) in (int, float) for value in values):
        return None
    try:
        total = math.fsum(values)
    except (OverflowError, ValueError):
        total = -math.inf
    if not math.isfinite(total):
        raise UselessError(f"log-probabilities of {total}; they must be finite numbers")
    return total


def _why_no_text(choice: Mapping[str, Any]) -> str:
    """What an error says about a choice without text, in the server's words."""
    message = choice.get("message") or {}
    said = [message.get("refusal"), choice.get("error"), choice.get("finish_reason")]
    words = "; ".join(" ".join(str(part).split())[:200] for part in said if part)
    return "a choice without text" + (f": {words}" if words else "")
