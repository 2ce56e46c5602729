"""What a server really does with a request, found out by asking it once, before the first sample.

Servers ignore fields that they do not know, so support is recognised by its effect: how many choices come back, whether
samples differ, whether an option that leaves only the most probable token makes them equal.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mbrace.errors import Parameter, ServiceError
from mbrace.servers.chat import Choice, choices_of, cost_of
from mbrace.servers.draws import Budget, most_tokens
from mbrace.servers.failures import RequestError
from mbrace.servers.http import Client
from mbrace.servers.vllm_epsilon import ARGUMENT
from mbrace.utility import Cost

PROBE = "Write a sentence about anything."
TOKENS = 8  # of each output of a probe
SAMPLES = 4  # how many must differ, or be equal
HOT = 2.0  # the temperature at which no two samples are equal by chance
EXTREMES: dict[str, Any] = {"top_k": 1, "top_p": 1e-4, "min_p": 1.0}  # only the most probable token is left
BY_TRANSFORMERS = {"epsilon": "epsilon_cutoff", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
NOT_FOR_BEAMS = ("temperature", "top_k", "top_p", "min_p", "logprobs", "top_logprobs", "vllm_xargs", "seed")
_LIMIT = re.compile(r"(?:<=?|at most|up to|maximum(?: of| is)?|less than or equal to)\D{0,20}?(\d+)")


@dataclass(frozen=True)
class Abilities:
    """What a server does. `fields` go into every request for samples, in place of the options that were given."""

    choices: int = 1  # the most per request
    seeded: bool = False  # whether a request with the same seed gives the same texts
    sends_seed: bool = True
    usage_of_one: bool = False  # whether `usage` counts the tokens of only one choice
    fields: Mapping[str, Any] = field(default_factory=dict)
    truncation: str = ""  # what the server does to the distribution unless told otherwise

    def describe(self) -> str:
        """A line for a person."""
        said = [f"up to {self.choices} choices per request" if self.choices > 1 else "one choice per request"]
        said.append("repeatable by seed" if self.seeded else "not repeatable by seed")
        return ", ".join([*said, *([f"by default {self.truncation}"] if self.truncation else [])])


def fields_of(options: Mapping[str, Any], *, logprobs: bool, chat: bool, epsilon: float | None) -> dict[str, Any]:
    """The fields of a request for samples as most servers know them."""
    fields = dict(options)
    if logprobs:  # one alternative per token: llama.cpp gives nothing at all for none
        fields |= {"logprobs": True, "top_logprobs": 1} if chat else {"logprobs": 1}
    if epsilon:
        fields["vllm_xargs"] = {**fields.get("vllm_xargs", {}), ARGUMENT: epsilon}
    return fields


class Probe:
    """Asks a server what it does. `body` makes the body of a request of a text; `options` are those of sampling."""

    def __init__(
        self,
        client: Client,
        body: Callable[[str], dict[str, Any]],
        options: Mapping[str, Any],
        *,
        chat: bool,
        logprobs: bool,
        epsilon: float | None,
        most: int,
        budget: Budget,
    ) -> None:
        self._client, self._chat, self._logprobs, self._epsilon, self._most = client, chat, logprobs, epsilon, most
        self._budget = budget
        self._options = dict(options)
        self._fields = fields_of(options, logprobs=logprobs, chat=chat, epsilon=epsilon)
        self._plain, self._seed = body(PROBE), True
        self.tokens = 0  # in and out, so far

    async def run(self) -> Abilities:
        """What the server does; an error if it cannot do what was asked for."""
        choices, cost, most = await self._first()
        usage_of_one = sum(choice.is_cut for choice in choices) > 1 and 0 < cost.completion_tokens <= TOKENS
        most = min(most, len(choices))
        if self._logprobs and any(choice.logprob is None for choice in choices if choice.written):
            raise self._error("gives no log-probabilities; leave logprobs out")
        first = [choice.written for choice in choices]
        again = [choice.written for choice in (await self._ask(most, 1))[0]]
        if _are_one(first):
            most = await self._choices_that_differ(most)
        await self._check_options(most)
        return Abilities(
            most, seeded=first == again, sends_seed=self._seed, usage_of_one=usage_of_one, fields=self._fields,
            truncation=await self._truncation(),
        )  # fmt: skip

    async def _first(self) -> tuple[list[Choice], Cost, int]:
        """The first answer, once the server takes the request, and the most choices that it takes."""
        most = self._most
        for _ in range(6):
            try:
                return (*await self._ask(most, 1), most)
            except RequestError as error:
                if not error.refused:
                    raise
                said, named = str(error).partition("status")[2], self._named(str(error))
                if "n" in named and most > 1:
                    found = _LIMIT.search(said)
                    most = int(found[1]) if found and 1 <= int(found[1]) < most else 1
                elif "seed" in named and self._seed:
                    self._seed = False
                elif not (named & {*EXTREMES, "vllm_xargs"} and await self._through_transformers()):
                    if not named:
                        raise
                    what = ", ".join(sorted(named))
                    raise ServiceError(f"{error}; this server does not take {what}: leave it out") from error
        raise self._error("refuses every form of request that was tried")

    def _named(self, message: str) -> set[str]:
        """The fields of our request that an error message names."""
        words = set(re.findall(r"\w+", message.partition(": status")[2]))
        sent = {*self._fields, *self._options, "n", "seed"} - {"messages", "model"}
        quoted = set(re.findall(r"['\"`](\w+)['\"`]", message)) | {word for word in words if len(word) > 4}
        quoted |= set(re.findall(r"(?:^|[\s:;])(\w+):", message.partition(": status")[2]))
        return sent & quoted

    async def _choices_that_differ(self, most: int) -> int:
        """The choices per request, after an answer most of whose texts were one (or that had just one)."""
        for temperature in (self._options.get("temperature", 1.0), HOT):
            several = await self._several(most, temperature)
            if not _are_one([text for texts in several for text in texts]):
                # 1: different seeds give different texts, but a request's choices are copies
                return 1 if all(map(_are_one, several)) else most
        if await self._through_transformers():
            return 1
        raise self._error(
            "does not sample: most of its answers to a request are one text, which agrees with itself; start it with "
            "sampling on (no temperature of 0 there; transformers serve: do_sample in the model's "
            "generation_config.json), or give it what it needs in options"
        )

    async def _several(self, most: int, temperature: float) -> list[list[str]]:
        """The texts of a few requests; one after another where each has one, so that no batch changes them."""
        asked = [self._ask(most, seed, temperature) for seed in range(2, 2 + SAMPLES)]
        found = [await each for each in asked] if most == 1 else await asyncio.gather(*asked)
        return [[choice.written for choice in choices] for choices, _ in found]

    async def _through_transformers(self) -> bool:
        """Whether it is `transformers serve`, which takes all settings of sampling in one field, as text."""
        if "generation_config" in self._fields:
            return False
        given = {**self._options, "epsilon": self._epsilon}
        config = {theirs: given[ours] for ours, theirs in BY_TRANSFORMERS.items() if given.get(ours)}
        fields = {name: value for name, value in self._fields.items() if name not in (*EXTREMES, "vllm_xargs")}
        before, self._fields = self._fields, fields | {"generation_config": json.dumps({"do_sample": True, **config})}
        try:
            found = await self._several(1, HOT)
        except (RequestError, ServiceError):
            found = []
        if _are_one([text for texts in found for text in texts]):
            self._fields = before
            return False
        return True

    async def _check_options(self, most: int) -> None:
        """Refuse a server on which an option that was given has no effect."""
        given: dict[str, Any] = {
            name: value for name, value in EXTREMES.items() if self._options.get(name) not in (None, 0, 1.0)
        }
        if self._epsilon:
            given["epsilon"] = 0.999
        for name, extreme in given.items():
            found = await self._with_extreme(name, extreme, min(most, 2 * SAMPLES))
            if _are_one([choice.written for choice in found]):
                continue
            if name == "epsilon":
                raise self._error(
                    "epsilon has no effect there; start vLLM in an environment in which mbrace is installed too, or "
                    "leave epsilon out and give min_p"
                )
            raise self._error(f"{name} has no effect there; leave it out, or use top_p, which most servers know")

    async def _with_extreme(self, name: str, extreme: float, most: int) -> list[Choice]:
        fields = {each: value for each, value in self._fields.items() if each not in EXTREMES}
        if "generation_config" in fields:
            fields["generation_config"] = json.dumps({"do_sample": True, BY_TRANSFORMERS[name]: extreme})
        elif name == "epsilon":
            fields["vllm_xargs"] = {**fields["vllm_xargs"], ARGUMENT: extreme}
        else:
            fields[name] = extreme
        seeds = range(1, 2 + (2 * SAMPLES - 1) // most)
        found = await asyncio.gather(*(self._ask(most, seed, HOT, fields) for seed in seeds))
        return [choice for choices, _ in found for choice in choices]

    async def _truncation(self) -> str:
        """What llama.cpp says of its own defaults; other servers do not tell."""
        off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}

        def read(answer: Any) -> str:
            own = answer["default_generation_settings"]["params"]
            named = {name: own[name] for name in off if name not in self._options}
            return ", ".join(f"{name} {value:.3g}" for name, value in named.items() if value != off[name])

        return await self._client.ask_once(None, read, "/props") or ""

    async def _ask(
        self, n: int, seed: int, temperature: float | None = None, fields: Mapping[str, Any] | None = None
    ) -> tuple[list[Choice], Cost]:
        body = {**self._plain, **(self._fields if fields is None else fields), "n": n, "max_tokens": TOKENS}
        body.pop("stop", None)
        if self._seed:
            body["seed"] = seed
        if temperature is not None:
            body["temperature"] = temperature
        prompt, spent = most_tokens(body), 0
        paid = await self._budget.take(prompt, TOKENS, n)
        reserved = prompt + paid * TOKENS if paid else 0
        try:
            if paid < n:
                limit = Parameter("max_cost_tokens", self._budget.tokens)
                raise ServiceError(
                    f"{limit}: {self._budget.spent:,} tokens are spent, and finding out what the server does may take "
                    f"{prompt + n * TOKENS:,} more; give more"
                )
            choices, cost = await self._client.ask(body, self._read)
            cut = TOKENS * sum(choice.is_cut for choice in choices)  # `usage` may be that of one choice
            told = cost.prompt_tokens + max(cost.completion_tokens, cut)
            self.tokens, spent = self.tokens + told, told or reserved
        finally:
            self._budget.settle(reserved, spent)
        return choices, cost

    def _read(self, answer: Any) -> tuple[list[Choice], Cost]:
        return choices_of(answer, chat=self._chat), cost_of(answer)

    def _error(self, words: str) -> ServiceError:
        return ServiceError(f"{self._client.url}: {words}")


def beam_request(body: Mapping[str, Any], count: int, length_penalty: float) -> dict[str, Any]:
    """A request for the `count` best outputs of vLLM's beam search."""
    kept = {name: value for name, value in body.items() if name not in NOT_FOR_BEAMS}
    return kept | {"n": count, "use_beam_search": True, "temperature": 0.0, "length_penalty": length_penalty}


def check_beams(texts: Sequence[str], count: int, url: str) -> None:
    """Refuse a server that has no beam search: it gives the one most probable output again and again, or fewer."""
    if len(texts) < count or (count >= 4 and len(set(texts)) == 1 and texts[0]):
        raise ServiceError(
            f"{url}: asked for {count} outputs of beam search, got {len(set(texts))} different of {len(texts)}; vLLM "
            "knows use_beam_search, other servers may not: leave beam_search out"
        )


def _are_one(texts: Sequence[str]) -> bool:
    """Whether more than half of them are the same. Of greedy ones a few may differ: arithmetic depends on the batch."""
    return not texts or 2 * max(map(texts.count, texts)) > len(texts)
