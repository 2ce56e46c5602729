"""Epsilon sampling for vLLM: a logits processor that vLLM finds as an entry point where mbrace is installed too.

A request asks for it with `vllm_xargs={"epsilon_cutoff": 0.02}`; `Server(epsilon=0.02)` does. vLLM has two interfaces
for logits processors, of its V1 and of its V2 model runner, and refuses a class that is not made for the one it runs:
`Epsilon` is made for both. It never raises inside vLLM's engine, where an error would end the server.
"""

from __future__ import annotations

import importlib
import math
from numbers import Real
from typing import Any

ARGUMENT = "epsilon_cutoff"  # transformers' name for it
INTERFACES = ("vllm.v1.worker.gpu.sample.logits_processor", "vllm.v1.sample.logits_processor")  # V2, V1


def _interfaces() -> tuple[type, ...]:
    """The base classes that the installed vLLM has; none without vLLM."""
    found: list[type] = []
    for module in INTERFACES:
        try:
            found.append(importlib.import_module(module).LogitsProcessor)
        except (ImportError, AttributeError):
            continue
    return tuple(found)


def epsilon_of(sampling_params: Any) -> float | None:
    """What a request asks for; None if it asks for nothing that makes sense."""
    arguments = getattr(sampling_params, "extra_args", None) or {}
    epsilon = arguments.get(ARGUMENT)
    if isinstance(epsilon, bool) or not isinstance(epsilon, Real):
        return None
    return float(epsilon) if 0.0 <= float(epsilon) <= 1.0 else None  # NaN is refused too


class Epsilon(*_interfaces()):  # type: ignore[misc]
    """Tokens with a probability below the request's epsilon cannot be drawn; the most probable one always can."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request whose epsilon is not a number from 0 to 1; vLLM answers it with status 400."""
        arguments = getattr(sampling_params, "extra_args", None) or {}
        if arguments.get(ARGUMENT) is not None and epsilon_of(sampling_params) is None:
            raise ValueError(f"{ARGUMENT} {arguments[ARGUMENT]!r}: must be a number from 0 to 1")

    def __init__(self, vllm_config: Any, device_or_requests: Any, is_pin_memory: bool | None = None) -> None:
        """V1 gives the device and whether memory is pinned, V2 the state of the requests, which has the device."""
        self._device = getattr(device_or_requests, "device", device_or_requests)
        self._wanted: dict[int, tuple[float, float]] = {}  # epsilon and temperature, by row (V1) or slot (V2)
        self._size = int(getattr(device_or_requests, "max_num_reqs", 0))  # V2: slots; V1: rows of the batch
        self._tensors: tuple[Any, Any] | None = None  # epsilons and temperatures on the device, made when needed

    def is_argmax_invariant(self) -> bool:
        """The most probable token is never dropped. V1 applies such processors after the temperature."""
        return True

    # V1: requests are rows of a batch that come, go and move

    def update_state(self, batch_update: Any = None) -> None:
        """Follow the requests to their rows, in the order that vLLM asks for."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._wanted.pop(row, None)
        for row, params, *_ in batch_update.added:
            self._set(row, epsilon_of(params), 1.0)  # the temperature was applied before us
        for one, other, direction in batch_update.moved:
            mine, theirs = self._wanted.pop(one, None), self._wanted.pop(other, None)
            if mine is not None:
                self._wanted[other] = mine
            if theirs is not None and getattr(direction, "name", direction) == "SWAP":
                self._wanted[one] = theirs
        self._size, self._tensors = batch_update.batch_size, None

    # V2: requests have slots that never move, and processors come before the temperature

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take a slot; returns whether its logits are changed."""
        temperature = float(getattr(sampling_params, "temperature", 1.0))
        self._set(req_idx, epsilon_of(sampling_params) if temperature > 0 else None, temperature)  # 0: greedy
        self._tensors = None
        return req_idx in self._wanted

    def apply_staged_writes(self) -> None:
        """Nothing is staged: what changed goes to the device when it is needed."""

    # both

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """Logits (rows, tokens) with those of dropped tokens at minus infinity, in place."""
        import torch

        if not self._wanted:
            return logits
        epsilons, temperatures = self._tensors or self._to_device(torch)
        if ctx is not None:
            slots = ctx.expanded_idx_mapping.long()
            epsilons, temperatures = epsilons[slots], temperatures[slots]
        p = torch.softmax(logits / temperatures[:, None], dim=-1)
        dropped = p < torch.minimum(epsilons[:, None], p.amax(-1, keepdim=True))
        return logits.masked_fill_(dropped, -math.inf)

    def _set(self, slot: int, epsilon: float | None, temperature: float) -> None:
        if epsilon:
            self._wanted[slot] = (epsilon, temperature)
        else:
            self._wanted.pop(slot, None)

    def _to_device(self, torch: Any) -> tuple[Any, Any]:
        values = [self._wanted.get(slot, (0.0, 1.0)) for slot in range(self._size)]
        both = torch.tensor(values, dtype=torch.float32).to(self._device)
        self._tensors = both[:, 0], both[:, 1]
        return self._tensors
