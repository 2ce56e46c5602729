"""Settings that jobs share, as plain values: which utility and which race; each loads what it describes.

Where a job takes settings, it also takes a name, or a ready object: a utility, a pruning function. An object is
described by its name, so that a run is resumed only with one of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from mbrace.errors import UserError
from mbrace.methods import Method, method_of
from mbrace.methods import describe as describe_method
from mbrace.methods.diverse import Diverse
from mbrace.prune import Bottom, Confidence, Halving, PruningFunction
from mbrace.sampler import Schedule, check_schedule, is_all
from mbrace.settings import Race
from mbrace.utility import PairFunction, QualityUtility, Utility, as_utility


@dataclass(frozen=True)
class UtilitySettings:
    """A utility by name: one of `mbrace.utilities.named.NAMED`, a function of your own, or a mixture.

    `model`, `device`, `dtype` and `batch_tokens` are for neural ones; `options` are names and values, as text.
    """

    name: str = "chrf++"
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    batch_tokens: int | None = None
    options: tuple[tuple[str, str], ...] = ()

    def describe(self) -> dict[str, Any]:
        """What scores depend on."""
        from mbrace.utilities.named import model_of, scored_options

        options = scored_options(self.name, dict(self.options))
        utility = " ".join([self.name, *(f"{name}={value}" for name, value in sorted(options.items()))])
        return {"utility": utility, "metric_model": model_of(self.name, self.model), "dtype": self.dtype}

    def load(self, threads: int = 0) -> Utility:
        """The utility, to be run with `threads` threads (0: all cores)."""
        from mbrace.utilities.named import make_utility

        return make_utility(
            self.name,
            dict(self.options),
            model=self.model,
            threads=threads,
            device=self.device,
            dtype=self.dtype,
            batch_tokens=self.batch_tokens,
        )


@dataclass(frozen=True)
class QualitySettings:
    """A quality utility by its model: a checkpoint's folder or hub name."""

    model: str
    device: str | None = None
    dtype: str | None = None
    batch_tokens: int | None = None

    def describe(self) -> dict[str, Any]:
        """What estimates depend on."""
        return {"qe": self.model, "qe_dtype": self.dtype}

    def load(self, threads: int = 0) -> QualityUtility:
        """The quality utility, to be run with `threads` threads (0: all cores)."""
        from mbrace.utilities.quality import load_quality

        options: dict[str, Any] = {"device": self.device, "dtype": self.dtype, "batch_tokens": self.batch_tokens}
        return load_quality(self.model, threads=threads, **options)


@dataclass(frozen=True)
class PruneSettings:
    """A pruning function by name: confidence (with `alpha`, `bootstraps`, `regret`), bottom (with `beta`), halving
    (with `budget`), or none."""

    rule: str = "confidence"
    alpha: float | None = None
    bootstraps: int | None = None
    beta: float | None = None
    regret: float | None = None
    budget: int | None = None

    def describe(self) -> dict[str, Any]:
        """What decisions depend on."""
        numbers = {"alpha": self.alpha, "bootstraps": self.bootstraps, "beta": self.beta, "regret": self.regret or None}
        return {"prune": self.rule, **numbers, "budget": self.budget}

    def load(self) -> PruningFunction | None:
        """The pruning function."""
        if self.rule == "confidence":
            given = {"alpha": self.alpha, "bootstraps": self.bootstraps, "regret": self.regret}
            return Confidence(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        if self.rule == "bottom" and self.beta is not None:
            return Bottom(self.beta)
        if self.rule == "halving" and self.budget is not None:
            return Halving(self.budget)
        if self.rule != "none":
            raise UserError(
                f"prune {self.rule!r}: choose from confidence, bottom (with beta), halving (with budget), none"
            )
        return None


@dataclass(frozen=True)
class RaceSettings:
    """How hypotheses race; `window` affects speed and memory, never an answer."""

    prune: PruneSettings | PruningFunction | None = PruneSettings()
    schedule: Schedule = None
    seed: int = 0
    nbest: int = 1
    window: int = 64
    exclude_self: bool = False
    select: str = "best"
    diversity: float | None = None
    method: Method | str | None = None  # None: the race itself
    forecast: float = 0.0  # 0: all hypotheses race from the start

    def __post_init__(self) -> None:
        """Read the sizes of a schedule once: they may be an iterator. Refuse settings that do not go together."""
        if self.schedule is not None and not is_all(self.schedule):
            object.__setattr__(self, "schedule", check_schedule(self.schedule))
        object.__setattr__(self, "method", method_of(self.method))
        if self.select not in ("best", "diverse") or (self.diversity is not None and self.select != "diverse"):
            raise UserError(f"select {self.select!r}: choose from best, diverse (with diversity)")
        Race(**self.options())

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        sizes = self.schedule if self.schedule in (None, "all") else ",".join(map(str, self.schedule or ()))
        rule = self.prune if isinstance(self.prune, PruneSettings) else PruneSettings(stable_name(self.prune))
        if self.pruning_function() is None:
            rule = PruneSettings("none")
        entry = {
            "exclude_self": self.exclude_self or None,
            "select": None if self.select == "best" else self.select,
            "diversity": self.diversity,
            "method": None if self.select == "diverse" else describe_method(self._loaded_method()),
            "forecast": float(self.forecast) or None,
        }  # None where older descriptions have nothing
        return {**rule.describe(), "schedule": sizes, "seed": self.seed, "nbest": self.nbest, **entry}

    def options(self) -> dict[str, Any]:
        """The settings of `decode_corpus`."""
        method = self._loaded_method()
        prune = self.prune.load() if isinstance(self.prune, PruneSettings) else self.prune
        names = ("schedule", "seed", "nbest", "window", "exclude_self", "forecast")
        found = {name: getattr(self, name) for name in names}
        return {**found, "method": method, "prune": None if method is not None and prune == Confidence() else prune}

    def pruning_function(self) -> PruningFunction | None:
        """The pruning function of the races; None: nothing is pruned."""
        return Race(**self.options()).pruning_function()

    def check_utility(self, utility: Utility) -> None:
        """Refuse a utility that the method cannot be used with."""
        method = self._loaded_method()
        if method is not None:
            method.check(utility)

    def _loaded_method(self) -> Method | None:
        if self.select == "diverse":
            return Diverse() if self.diversity is None else Diverse(self.diversity)
        return method_of(self.method)


AnyUtility: TypeAlias = "UtilitySettings | Utility | PairFunction | str"
AnyQuality: TypeAlias = "QualitySettings | QualityUtility | str"


def describe_utility(utility: AnyUtility) -> dict[str, Any]:
    """What scores depend on; of a ready utility, its name."""
    if not isinstance(utility, UtilitySettings):
        utility = UtilitySettings(utility if isinstance(utility, str) else as_utility(utility).name)
    return utility.describe()


def load_utility(utility: AnyUtility, threads: int) -> Utility:
    """The utility of settings or of a name, or a ready one; refused if it reads no reference."""
    if isinstance(utility, str):
        utility = UtilitySettings(utility)
    return as_utility(utility.load(threads) if isinstance(utility, UtilitySettings) else utility)


def describe_quality(qe: AnyQuality) -> dict[str, Any]:
    """What estimates depend on; of a ready quality utility, its name."""
    if not isinstance(qe, QualitySettings):
        qe = QualitySettings(qe if isinstance(qe, str) else qe.name)
    return qe.describe()


def load_quality(qe: AnyQuality, threads: int) -> QualityUtility:
    """The quality utility of settings or of a model's name, or a ready one."""
    if isinstance(qe, str):
        qe = QualitySettings(qe)
    return qe.load(threads) if isinstance(qe, QualitySettings) else qe


def stable_name(thing: object) -> str:
    """What to call an object in a description: the same in every process, without its address in memory."""
    text = repr(thing)
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return text if " at 0x" not in text else f"{kind.__module__}.{kind.__qualname__}"
