"""Mixtures: a weighted sum of utilities, each first brought to a common scale."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UTILITY, SettingError, UserError
from mbrace.metrics.bleu import BLEU
from mbrace.metrics.chrf import ChrF
from mbrace.metrics.ter import TER
from mbrace.utility import (
    Ask,
    Cost,
    ParallelUtility,
    Sentence,
    Utility,
    interrupt_utility,
    parallel_of,
    truncated_texts,
    utility_cost,
)

Scale: TypeAlias = Literal["sentence", "fixed"]


class Mixture:
    """A weighted sum of utilities: `Mixture([(mbrace.Comet(...), 0.5), (mbrace.ChrF(), 0.5)])`.

    Utilities have different scales, so each part becomes (score - mean) / deviation before it is weighted:

    - `scale="sentence"`: the mean and standard deviation of the part's first table of a sentence, all its hypotheses
      against the first pseudo-references. They do not change during the race, so that all its scores are comparable.
      A part that gives every pair the same score is only centred.
    - `scale="fixed"`: mean 0; deviation 100 for chrF, BLEU and TER, which go up to 100, and 1 for all others. Where
      parts have other scales, choose weights to match.

    Every part scores a pair once.
    """

    def __init__(self, parts: Sequence[tuple[Utility, float]], *, scale: Scale = "sentence") -> None:
        if not parts:
            raise UserError("mixture: no parts; give pairs of a utility and its weight")
        for utility, weight in parts:
            if not (math.isfinite(weight) and weight != 0):
                raise UserError(f"mixture: weight {weight} of {utility.name}: must be a finite number other than 0")
        if scale not in get_args(Scale):
            raise SettingError("scale", scale, "unknown; choose sentence or fixed")
        self.parts = tuple((utility, float(weight)) for utility, weight in parts)
        self.scale: Scale = scale
        highest = [100.0 if isinstance(utility, (ChrF, BLEU, TER)) else 1.0 for utility, _ in parts]
        self._fixed = None if scale == "sentence" else [(0.0, deviation) for deviation in highest]

    @property
    def name(self) -> str:
        """The parts' signatures with their weights, and the scale: means and deviations where they are fixed."""
        scale: str = "sentence"
        if self._fixed is not None:
            scale = ",".join(f"{mean:g}/{deviation:g}" for mean, deviation in self._fixed)
        return f"mixture|scale:{scale}|" + " + ".join(f"{weight:g} {utility.name}" for utility, weight in self.parts)

    @property
    def schedule(self) -> tuple[int, ...]:
        """The parts' schedule with the largest last size."""
        return max((utility.schedule for utility, _ in self.parts), key=lambda schedule: (schedule[-1], len(schedule)))

    @property
    def needs_source(self) -> bool:
        """Whether any part scores with the source."""
        return any(utility.needs_source for utility, _ in self.parts)

    @property
    def scales_by_first_table(self) -> bool:
        """Whether means and deviations are computed per sentence."""
        return self._fixed is None

    @property
    def truncated(self) -> int:
        """How many texts all parts have cut so far."""
        return sum(truncated_texts(utility) for utility, _ in self.parts)

    @property
    def cost(self) -> Cost:
        """What its parts have asked of servers so far."""
        return sum((utility_cost(utility) for utility, _ in self.parts), Cost())

    def interrupt(self) -> None:
        """End all waits for servers."""
        for utility, _ in self.parts:
            interrupt_utility(utility)

    @property
    def workers(self) -> int | None:
        """The largest number of threads of any part; None if one works on a single thread."""
        parallel = [parallel_of(utility) for utility, _ in self.parts]
        return None if None in parallel else max(each.workers for each in parallel if each is not None)

    def single_threaded(self) -> Mixture:
        """The same on one thread, of parts that all work on several."""
        parts = [(u.single_threaded(), weight) for u, weight in self.parts if isinstance(u, ParallelUtility)]
        return Mixture(parts, scale=self.scale)

    def start(self, sentences: Sequence[Sentence]) -> MixtureScorer:
        """Begin the races of a window, in every part."""
        return MixtureScorer(self, sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float64]:
        """Scores of aligned pairs, (pairs,); only on a fixed scale, as a single pair has no deviation."""
        if self._fixed is None:
            raise UserError("mixture: a pair alone cannot be standardised per sentence; give scale='fixed'")
        total = np.zeros(len(hypotheses))
        for (utility, weight), (mean, deviation) in zip(self.parts, self._fixed, strict=True):
            scores = utility.pairs(hypotheses, references, sources if utility.needs_source else None)
            total += weight * (np.asarray(scores, dtype=np.float64) - mean) / deviation
        return total


class MixtureScorer:
    """The races of one window in every part, and the scales of its sentences."""

    def __init__(self, mixture: Mixture, sentences: Sequence[Sentence]) -> None:
        self._weights = [weight for _, weight in mixture.parts]
        self._scorers = [utility.start(sentences) for utility, _ in mixture.parts]
        self._fixed = mixture._fixed
        self._scales: dict[int, list[tuple[float, float]]] = {}  # by sentence: mean and deviation of each part
        self.encode_seconds = 0.0

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float64]]:
        """The weighted sums of each ask, (hypotheses, references)."""
        tables = [scorer.score(asks) for scorer in self._scorers]
        self.encode_seconds = sum(scorer.encode_seconds for scorer in self._scorers)
        return [self._sum(ask.sentence, parts) for ask, *parts in zip(asks, *tables, strict=True)]

    def _sum(self, sentence: int, parts: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
        exact = [np.asarray(part, dtype=np.float64) for part in parts]
        scales = self._fixed if self._fixed is not None else self._scales.get(sentence)
        if scales is None:
            scales = self._scales[sentence] = [_standard(part) for part in exact]
        total = np.zeros(exact[0].shape)
        for part, weight, (mean, deviation) in zip(exact, self._weights, scales, strict=True):
            total += weight * (part - mean) / deviation
        return total


def _standard(table: NDArray[np.float64]) -> tuple[float, float]:
    deviation = float(table.std())
    # the deviation of a constant table is at most rounding error
    spread = deviation > 1e-9 * max(1.0, float(np.abs(table).max()))
    return float(table.mean()), deviation if spread else 1.0


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_PART = re.compile(rf"(.+?):({_NUMBER})(?:\+|$)")


def is_mixture(name: str) -> bool:
    """Whether a utility's name is that of a mixture: it has a weight at its end or before a plus sign."""
    return re.search(rf":{_NUMBER}(?:\+|$)", name) is not None


def parts_of(name: str) -> list[tuple[str, float]]:
    """The names and weights of `comet:0.5+chrf++:0.5`: a plus sign separates parts only after a weight. The name of a
    single utility is its only part."""
    if not is_mixture(name):
        return [(name, 1.0)]
    parts: list[tuple[str, float]] = []
    at = 0
    while at < len(name):
        found = _PART.match(name, at)
        if found is None:
            raise UserError(f"{UTILITY} {name}: {name[at:]!r} has no weight; write name:weight+name:weight")
        parts.append((found[1], float(found[2])))
        at = found.end()
    if name.endswith("+"):
        raise UserError(f"{UTILITY} {name}: a part is missing at its end; write name:weight+name:weight")
    return parts
