"""The choice of the next id: which ids may be drawn, and which one a random number chooses.

A random number depends only on (seed, sentence, draw, time step), so that a draw is the same in any batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from mbrace.errors import SettingError, UserError
from mbrace.models import gpu
from mbrace.records import digest

SCALE = 2.0**40  # probabilities become whole numbers: multiples of 1 / SCALE


@dataclass(frozen=True)
class Truncation:
    """Which ids may be drawn; thresholds apply in this order to the model's distribution at `temperature`."""

    epsilon: float | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not 1e-6 <= self.temperature < math.inf:  # below it, logits / temperature overflow float32
            raise SettingError("temperature", self.temperature, "must be 1e-06 or more, and finite")
        for name, value in (("epsilon", self.epsilon), ("min_p", self.min_p)):
            if value is not None and not 0 <= value <= 1:
                raise SettingError(name, value, "must be from 0 to 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SettingError("top_p", self.top_p, "must be more than 0, and at most 1")
        if self.top_k is not None and self.top_k < 0:
            raise SettingError("top_k", self.top_k, "must be 1 or more, or 0 for all")

    def __call__(self, logits: Tensor) -> Tensor:
        """Unnormalised weights of the ids that may be drawn; the most probable id always may.

        Epsilon sampling (Hewitt et al. 2022) drops ids with a probability below epsilon.
        """
        p = torch.softmax(logits if self.temperature == 1.0 else logits / self.temperature, dim=-1)
        best = p.amax(-1, keepdim=True)
        if self.epsilon:
            p = torch.where(p >= best.clamp(max=self.epsilon), p, 0.0)
        if self.top_k and self.top_k < p.shape[-1]:
            p = torch.where(p >= p.topk(self.top_k, dim=-1).values[..., -1:], p, 0.0)
        if self.top_p is not None and self.top_p < 1.0:
            ordered = p.sort(dim=-1, descending=True).values
            before = ordered.cumsum(-1) - ordered  # mass of the more probable ids
            last = torch.where(before < self.top_p * p.sum(-1, keepdim=True), ordered, math.inf).amin(-1, keepdim=True)
            p = torch.where(p >= last, p, 0.0)
        if self.min_p:
            p = torch.where(p >= self.min_p * best, p, 0.0)
        return p


class DrawOptions(TypedDict, total=False):
    """The options of a model's `sample` and `sampler`; `epsilon=None` samples from the model itself."""

    epsilon: float | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int
    max_length: int | None
    sampling: str


@dataclass(frozen=True)
class DrawSettings:
    """How outputs are drawn: which ids may be, by which random numbers, and how many ids at most."""

    truncation: Truncation
    seed: int = 0
    max_length: int | None = None
    arithmetic: bool = False  # whether the draws of a source are spread evenly (see `ArithmeticUniforms`)

    @classmethod
    def of(
        cls,
        *,
        seed: int = 0,
        max_length: int | None = None,
        sampling: str = "independent",
        epsilon: float | None = 0.02,
        **truncation: Any,
    ) -> DrawSettings:
        """From `DrawOptions`."""
        if sampling not in ("independent", "arithmetic"):
            raise UserError(f"sampling {sampling!r}: unknown; choose independent or arithmetic")
        return cls(Truncation(epsilon, **truncation), seed, max_length, sampling == "arithmetic")


class ChosenIds(NamedTuple):
    """The ids chosen for rows, (rows,), and each id's interval: `before` and `size` of `total` in whole numbers."""

    ids: Tensor
    before: Tensor
    size: Tensor
    total: Tensor
    logprobs: Tensor  # float32, under the full model


def next_ids(
    logits: Tensor, bias: Tensor | None, u: Tensor, truncation: Truncation, used: Tensor | None = None
) -> ChosenIds:
    """The ids that the numbers u (rows,) choose; logits are (rows, ids), to which bias (ids,) is added.

    From row `used` (1,) on, if given, what comes out may be anything, but ids are ids. Logits may be overwritten.
    """
    plain = truncation.temperature == 1.0 and not truncation.top_k and truncation.top_p in (None, 1.0)
    kernels = gpu.kernels_for(logits.device) if plain else None
    if kernels is not None:
        epsilon, min_p = truncation.epsilon or 0.0, truncation.min_p or 0.0
        return ChosenIds(*kernels.next_ids(logits, bias, u, epsilon=epsilon, min_p=min_p, used=used))
    if used is not None:
        logits.masked_fill_(torch.arange(len(logits), device=logits.device)[:, None] >= used, 0.0)
    logits = _biased(logits, bias)
    weights = truncation(logits)
    ids, before, size, total = _intervals(weights, u)
    if truncation.temperature == 1.0:  # a weight that is not zero is the model's probability
        chosen_logprobs = weights.gather(1, ids[:, None])[:, 0].log()
    else:
        chosen_logprobs = logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
    return ChosenIds(ids, before, size, total, chosen_logprobs)


def log_probabilities(logits: Tensor, bias: Tensor | None) -> Tensor:
    """Log-probabilities (rows, ids) of logits plus bias, float32.

    They may take the place of the logits: new memory of that size takes a CPU longer than the sums.
    """
    biased = _biased(logits, bias)
    # a CPU's function reads a number before it writes there
    return torch.log_softmax(biased, -1, out=biased) if biased.device.type == "cpu" else biased.log_softmax(-1)


def _biased(logits: Tensor, bias: Tensor | None) -> Tensor:
    """Logits in float32, with the bias added; in their own memory, if they have 32 bits."""
    logits = logits.float()
    return logits if bias is None else logits.add_(bias)


def kept_rows(x: Tensor, rows: Tensor) -> Tensor:
    """These rows of a tensor: in its own memory, if they are as many as it has."""
    return x.copy_(x[rows]) if len(rows) == len(x) else x[rows]


class IndependentUniforms:
    """The random numbers of the rows of a search, one per row and time step, independent of each other."""

    def __init__(self, sentences: Tensor, draws: Tensor) -> None:
        self._streams = draw_keys(sentences, draws).flatten()

    def at(self, time: int | Tensor) -> Tensor:
        """The numbers (rows,) of a time step, float64 from 0 to 1."""
        numbers: Tensor = uniforms(self._streams, time)
        return numbers

    def advance(self, chosen: ChosenIds) -> None:
        """Note what the numbers of the last time step chose."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self._streams = kept_rows(self._streams, rows)


class ArithmeticUniforms(IndependentUniforms):
    """Arithmetic sampling (Vilnis et al. 2023): one number per row chooses the whole output.

    The id is the one whose interval of the cumulative distribution holds the number; the number's position within that
    interval is the number of the next time step. Every output alone has the probability that it has with independent
    numbers, but the outputs of a sentence are spread evenly. Each step multiplies the rounding of probabilities, which
    depends on the batch and the processor, so a row continues with independent numbers once its interval is narrower
    than 2 ** -10: few others share it.
    """

    def __init__(self, sentences: Tensor, draws: Tensor) -> None:
        super().__init__(sentences, draws)
        self._points: Tensor = even_points(sentences, draws).flatten()
        self._widths = torch.ones_like(self._points)  # of the interval that all ids of a row so far have in [0, 1)

    def at(self, time: int | Tensor) -> Tensor:
        """The numbers (rows,) of a time step, float64 from 0 to 1."""
        exact = self._widths > 2.0**-10
        return self._points.copy_(torch.where(exact, self._points, super().at(time)))

    def advance(self, chosen: ChosenIds) -> None:
        """The position of each number within the interval that it chose is the next number."""
        points = (self._points * chosen.total - chosen.before) / chosen.size
        self._points.copy_(points.clamp(0.0, 1.0 - 2.0**-53))
        self._widths.copy_(self._widths * chosen.size / chosen.total)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        super().select(rows)
        self._points, self._widths = kept_rows(self._points, rows), kept_rows(self._widths, rows)


def _intervals(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids by inverse CDF, the first whose cumulative weight exceeds u times the sum; and, as whole numbers, the sum of
    the weights before each, its own weight, and the sum of all. Weights are (rows, ids), u (rows,).

    Integers are summed, which is exact in any order: a weight of zero is never drawn, and all devices agree.
    """
    if weights.device.type == "cpu":
        return _sparse_intervals(weights, u)
    cdf = (weights * SCALE).long().cumsum(-1)
    total = cdf[:, -1]
    point = torch.minimum((u * total).long(), total - 1)
    ids = torch.searchsorted(cdf, point[:, None], right=True)
    end = cdf.gather(1, ids)[:, 0]
    before = torch.where(ids > 0, cdf.gather(1, (ids - 1).clamp(min=0)), 0)[:, 0]
    return ids[:, 0], before, end - before, total


def _sparse_intervals(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same from the nonzero weights of all rows in one array, so that a CPU reads less memory.

    (A GPU would have to wait until they are counted.)
    """
    row, number = weights.nonzero().unbind(1)
    whole = (weights[row, number] * SCALE).long()
    cdf = whole.cumsum(0)
    last = torch.searchsorted(row, torch.arange(len(weights)), right=True) - 1
    end = cdf[last]
    begin = torch.cat([end.new_zeros(1), end[:-1]])
    point = begin + torch.minimum((u * (end - begin)).long(), end - begin - 1)
    found = torch.searchsorted(cdf, point, right=True)
    return number[found], cdf[found] - whole[found] - begin, whole[found], end - begin


# SplitMix64's constants, as signed 64-bit integers
GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15
FIRST = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
SECOND = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def sentence_key(seed: int, sentence: str | int) -> int:
    """A signed 64-bit key for one sentence."""
    value = digest(sentence, seed=seed)
    return value - 2**64 if value >= 2**63 else value


def draw_keys(sentences: Any, draws: Any) -> Any:
    """Keys of the draws: int64 tensors of sentence keys and draw numbers, broadcast against each other."""
    return _mix(sentences + _mix(draws * GOLDEN + FIRST))


def uniforms(keys: Any, step: Any) -> Any:
    """One float64 in (0, 1) per key, for time step `step`, a number or an int64 tensor."""
    offset = (step + 1) * GOLDEN
    if isinstance(offset, int):
        offset = (offset + 2**63) % 2**64 - 2**63  # wraps around, as int64 products do
    bits = _mix(keys + offset)
    return (_shift(bits, 11).double() + 0.5) * 2.0**-53


def even_points(sentences: Any, draws: Any) -> Any:
    """One float64 in [0, 1) per draw, each alone uniform, the first n of a sentence spread evenly whatever n is.

    Point `draw` of van der Corput's sequence (the bits of its number, reversed), shifted by one random number per
    sentence.
    """
    reversed_bits = draws
    for bits, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        reversed_bits = ((reversed_bits & mask) << bits) | ((reversed_bits >> bits) & mask)
    return (reversed_bits.double() * 2.0**-32 + uniforms(sentences, -2)) % 1.0


def _mix(x: Any) -> Any:
    """SplitMix64's finaliser (Steele, Lea & Flood 2014) on int64 tensors, whose products wrap around."""
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _shift(x: Any, bits: int) -> Any:
    """Logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
