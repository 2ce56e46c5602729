"""Requests that only vLLM's servers understand: epsilon sampling, by our logits processor, and beam search.

Other servers may ignore a field that they do not know, so support is recognised by its effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mbrace.errors import ServiceError
from mbrace.servers.vllm_epsilon import ARGUMENT

PROBES = 8
SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "logprobs",
    "vllm_xargs",
    "seed",
)  # fields that a request for beam search must not have


def with_epsilon(options: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """The options of requests, with epsilon sampling."""
    return options | {"vllm_xargs": {**options.get("vllm_xargs", {}), ARGUMENT: epsilon}}


def epsilon_probe(body: dict[str, Any]) -> dict[str, Any]:
    """A request whose samples are all the same if epsilon sampling works: only the most probable tokens are left."""
    short = {"n": PROBES, "seed": 0, "temperature": 2.0, "max_tokens": 8}
    plain = {name: value for name, value in body.items() if name not in ("top_k", "top_p", "min_p")}
    return with_epsilon(plain | short, 1.0)


def check_epsilon(texts: Sequence[str], url: str) -> None:
    """Refuse a server whose answers to the probe differ; a few may, as a server's arithmetic depends on the batch."""
    most = max(texts.count(text) for text in texts)
    if 2 * most <= len(texts):
        raise ServiceError(
            f"{url}: epsilon has no effect there; start vLLM in an environment in which mbrace is installed too, "
            "or leave epsilon out and give min_p"
        )


def beam_request(body: dict[str, Any], count: int, length_penalty: float) -> dict[str, Any]:
    """A request for the `count` best outputs of beam search."""
    kept = {name: value for name, value in body.items() if name not in SAMPLING}
    return kept | {"n": count, "use_beam_search": True, "temperature": 0.0, "length_penalty": length_penalty}


def check_beams(texts: Sequence[str], count: int, url: str) -> None:
    """Refuse a server that has no beam search: it gives the one most probable output again and again, or fewer."""
    if len(texts) < count or (count >= 4 and len(set(texts)) == 1 and texts[0]):
        raise ServiceError(
            f"{url}: asked for {count} outputs of beam search, got {len(set(texts))} different of {len(texts)}; vLLM "
            "knows use_beam_search, other servers may not: leave beam_search out"
        )
