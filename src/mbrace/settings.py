"""Every setting, once: its name, default, range, help text, flag, and what it needs or excludes.

A field of `Race`, `Sampling`, `Network` or `ModelSettings` is a keyword in Python, a flag on the command line, a key in
OUT.run.json and a row of the options table in the documentation. All of these are generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict, cast

from mbrace.errors import LARGEST, Parameter, SettingError
from mbrace.forecast import STARTERS
from mbrace.methods import METHODS, RACE, Method, checked_method, method_class, name_of
from mbrace.methods import describe as describe_method
from mbrace.prune import MOST_BOOTSTRAPS, Bottom, Confidence, Halving, PruningFunction, planner_of
from mbrace.sampler import Schedule, check_schedule, is_all
from mbrace.setting_fields import Settings, nearest, setting, stable_name, table_of, typed_options

EPSILON = 0.02  # of epsilon sampling, unless top-k, top-p or min-p sampling is chosen
DIVERSE = "diverse"


_CONFIDENCE = ("prune", "confidence")


@dataclass(frozen=True, kw_only=True)
class Race(Settings):
    """How hypotheses race: `decode(..., alpha=0.9)` is `decode(..., race=Race(alpha=0.9))`.

    `prune` is a name, with `alpha`, `bootstraps` and `regret` for "confidence", `beta` for "bottom" and `budget` for
    "halving", or an object such as `mbrace.Confidence(0.9)`, or a function of your own; None and "none" are standard
    MBR. `schedule` is a list of growing sample sizes, "all", or None for the utility's own.
    """

    prune: PruningFunction | str | None = setting(
        "confidence",
        "what drops hypotheses: confidence | bottom | halving | none (standard MBR)",
        str,
        choices=("confidence", "bottom", "halving", "none"),
        objects=True,
        metavar="RULE",
    )
    alpha: float | None = setting(
        None, "confidence threshold", float, default=Confidence.alpha, least=0, most=1, needs=_CONFIDENCE
    )
    bootstraps: int | None = setting(
        None,
        "bootstrap resamples",
        int,
        default=Confidence.bootstraps,
        least=1,
        most=MOST_BOOTSTRAPS,
        metavar="N",
        needs=_CONFIDENCE,
    )
    regret: float | None = setting(
        None,
        "stop once the expected regret of answering now is at most X standard deviations of the hypotheses",
        float,
        default="0: never, as in the paper",
        least=0,
        metavar="X",
        needs=_CONFIDENCE,
    )
    beta: float | None = setting(
        None,
        "fraction of hypotheses that --prune bottom drops at each step",
        float,
        least=0,
        most=1,
        needs=("prune", "bottom"),
    )
    budget: int | None = setting(
        None,
        "maximum utility calls per record of --prune halving",
        int,
        least=1,
        most=LARGEST,
        metavar="N",
        needs=("prune", "halving"),
    )
    forecast: float = setting(
        0.0,
        f"start with {STARTERS} hypotheses and admit another when its forecast gain over the leader exceeds X standard "
        "deviations, such as 0.0005; for neural utilities",
        float,
        default="0: all race",
        least=0,
        metavar="X",
        excludes=(
            ("pool", ..., "where draws enter"),
            ("exclude_self", ..., "which compares others with each string"),
            ("method", ..., "for which all hypotheses are there from the start"),
            ("prune", "none", "which scores all hypotheses"),
            ("prune", "halving", "which fixes its budget in advance"),
        ),
    )
    schedule: Schedule = setting(
        None,
        "growing numbers of pseudo-references, such as 16,32,64,128,256; `all` continues to the last one",
        str,
        default="the utility's own",
        metavar="SIZES",
        objects=True,
    )
    seed: int = setting(0, "random seed", int)
    nbest: int = setting(1, "keep and write the N best", int, least=1, most=LARGEST, metavar="N")
    method: Method | str | None = setting(
        None,
        "another published method that scores fewer pairs, or a diverse n-best list (docs/methods.md)",
        str,
        default=RACE,
        choices=(RACE, *METHODS),
        objects=True,
        excludes=(("pool", ..., "for which all hypotheses are there from the start"),),
    )
    method_options: Mapping[str, Any] | None = setting(
        None,
        "option of the method, such as rank=8 of low-rank; may be repeated",
        dict,
        flag="--method-option",
        metavar="NAME=VALUE",
    )
    shuffle: bool = setting(True, "take listed pseudo-references in the order given", bool, flag="--no-shuffle")
    cover: bool = setting(
        False,
        "order listed pseudo-references so that the first few cover the n-grams of all and fewer are encoded; for "
        "neural utilities, with --regret",
        bool,
        excludes=(("shuffle", False, ""),),
    )
    exclude_self: bool = setting(
        False,
        "leave each hypothesis out of its own average, where hypotheses are pseudo-references too: one list, or a live "
        "source, whose draws they are taken for; no effect on records with pseudo-references of their own",
        bool,
        flag=None,
        excludes=tuple(
            ("method", name, "which does not score individual pseudo-references") for name in METHODS if name != DIVERSE
        ),
    )
    window: int = setting(64, "sentences processed at once", int, least=1, most=LARGEST, metavar="N", described=False)
    pool: bool = setting(
        False,
        "each draw of one live list is hypothesis and pseudo-reference",
        bool,
        flag=None,
        excludes=(("prune", "halving", "whose schedule omits hypotheses that enter"),),
    )

    def __post_init__(self) -> None:
        """Refuse invalid settings, before anything is loaded."""
        changed: dict[str, Any] = {}
        if self.schedule is not None and not is_all(self.schedule):  # it may be an iterator
            changed["schedule"] = check_schedule(self.schedule)
        if self.prune is None:
            changed["prune"] = "none"
        if self.method == RACE:
            changed["method"] = None
        if self.method_options is not None:
            if not isinstance(self.method_options, Mapping):
                raise SettingError("method_options", self.method_options, "give a dict, such as {'rank': 8}")
            changed["method_options"] = dict(self.method_options) or None
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        self._check_prune()
        super().__post_init__()
        self._check_method()

    def _check_prune(self) -> None:
        if not isinstance(self.prune, str):
            if not callable(self.prune) or isinstance(self.prune, type):
                raise SettingError(
                    "prune", self.prune, "give a pruning function such as mbrace.Confidence(), or a name"
                )
            for name in _OF_PRUNE:
                if getattr(self, name) is not None:
                    raise SettingError(
                        name, getattr(self, name), f"only valid with the name of a pruning function, not {self.prune!r}"
                    )
            self._name_prune()
        elif self.prune == "bottom" and self.beta is None:
            raise SettingError("prune", "bottom", f"needs {Parameter('beta')}, the proportion to drop each step")
        elif self.prune == "halving" and self.budget is None:
            raise SettingError("prune", "halving", f"needs {Parameter('budget')}, the most utility calls per record")
        if self.method is not None and self.prune != "none":
            for each in ("prune", *_OF_PRUNE):
                if (found := getattr(self, each)) not in (None, "confidence"):
                    method = Parameter("method", self.method_name)
                    raise SettingError(each, found, f"only valid without {method}, which does no pruning")

    def _name_prune(self) -> None:
        """Write one of our pruning functions as its name and its numbers, which is the same race."""
        name = {Confidence: "confidence", Bottom: "bottom", Halving: "halving"}.get(type(self.prune))
        if name is not None:
            numbers = {each.name: (getattr(self.prune, each.name), each.default) for each in fields(self.prune)}  # type: ignore[arg-type]
            object.__setattr__(self, "prune", name)
            for each, (value, default) in numbers.items():
                object.__setattr__(self, each, None if value == default else value)

    def _check_method(self) -> None:
        if self.method is None:
            if self.method_options is not None:
                raise SettingError("method_options", ..., f"only valid with {Parameter('method')}")
            return
        if self.seen("method") == DIVERSE and self.nbest < 2:
            raise SettingError("method", DIVERSE, f"chooses several; give {Parameter('nbest', 2)} or more")
        self.made_method()  # refuses its options

    @property
    def method_name(self) -> str:
        """The name of the method."""
        return RACE if self.method is None else self.method if isinstance(self.method, str) else name_of(self.method)

    @property
    def rule(self) -> str:
        """The name of the pruning function: "halving" for any with a schedule of its own, "" for others."""
        if self.method is not None:
            return "none"
        if isinstance(self.prune, str):
            return self.prune
        plans_lists = planner_of(self.prune) is not None and not getattr(self.prune, "plans_pools", False)
        return "halving" if plans_lists else ""

    def seen(self, name: str) -> object:
        """The pruning function and the method by their names, and a method that prunes nothing as no pruning."""
        if name == "method" and self.method is not None:
            return name_of(self.made_method())
        return self.rule if name == "prune" else getattr(self, name)

    def pruning_function(self) -> PruningFunction | None:
        """The pruning function; None: nothing is pruned."""
        rule = self.rule
        if rule == "none":
            return None
        if not isinstance(self.prune, str):
            return self.prune
        if rule == "bottom":
            return Bottom(cast(float, self.beta))
        if rule == "halving":
            return Halving(cast(int, self.budget))
        given = {"alpha": self.alpha, "bootstraps": self.bootstraps, "regret": self.regret}
        return Confidence(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def made_method(self) -> Method | None:
        """The method, made with its options; None is the race itself."""
        if self.method is None:
            return None
        if isinstance(self.method, str):
            made = method_class(self.method)
            options = typed_options("method", self.method, made, self.method_options or {})
            try:
                return cast(Method, made(**options))
            except SettingError as error:
                raise SettingError(error.parameter, error.value, error.reason, group="method") from None
        if self.method_options is not None:
            raise SettingError("method_options", ..., "only valid with the name of a method")
        return checked_method(self.method)

    def describe(self) -> dict[str, Any]:
        """What answers depend on, as JSON values; what older versions did not have is None where it is default."""
        found = {"prune": self.rule or stable_name(self.prune)} | {name: getattr(self, name) for name in _OF_PRUNE}
        found["regret"] = self.regret or None
        sizes = self.schedule if self.schedule in (None, "all") else ",".join(map(str, self.schedule or ()))
        found |= {"schedule": sizes, "seed": self.seed, "nbest": self.nbest, "no_shuffle": not self.shuffle}
        later = {  # None, which a missing key counts as, unless chosen
            "rounding": "floor(n (1 - beta))" if self.rule == "bottom" else None,  # early versions had another
            "method": describe_method(self.made_method()),
            "forecast": float(self.forecast) or None,
            "cover": self.cover or None,
            "exclude_self": self.exclude_self or None,
            "pool": self.pool or None,
        }
        return found | later

    def to_dict(self) -> dict[str, Any]:
        """The chosen settings as JSON values, with a version."""
        found = super().to_dict()
        if not isinstance(self.prune, str):
            raise SettingError("prune", self.prune, "an object of your own cannot be written; give a name")
        if not isinstance(self.method, str | None):
            raise SettingError("method", self.method, "an object cannot be written; give a name and method_options")
        if not isinstance(self.schedule, str | None):
            found["schedule"] = list(self.schedule)
        return found


_OF_PRUNE = ("alpha", "bootstraps", "beta", "regret", "budget")


class RaceOptions(TypedDict, total=False):
    """The fields of `Race` as keywords, for type checkers and editors."""

    prune: PruningFunction | str | None
    alpha: float | None
    bootstraps: int | None
    regret: float | None
    beta: float | None
    budget: int | None
    forecast: float
    schedule: Schedule
    seed: int
    nbest: int
    method: Method | str | None
    method_options: Mapping[str, Any] | None
    shuffle: bool
    cover: bool
    exclude_self: bool
    window: int
    pool: bool


@dataclass(frozen=True, kw_only=True)
class Sampling(Settings):
    """How a live model makes candidates: `beam` hypotheses per source, pseudo-references by sampling."""

    beam: int = setting(256, "hypotheses per source, by beam search", int, least=0, most=LARGEST, metavar="K")
    length_penalty: float = setting(1.0, "beam scores are log p / length ** X", float, least=-1e9, metavar="X")
    epsilon: float | None = setting(
        None,
        "epsilon sampling: drop tokens with a probability below P; 0: keep all",
        float,
        default=f"{EPSILON}; 0 with top-k, top-p or min-p sampling; not sent to a server",
        least=0,
        most=1,
        metavar="P",
    )
    temperature: float = setting(1.0, "sampling temperature", float, least=0, metavar="T")
    top_k: int | None = setting(
        None, "draw from the K most probable tokens; 0: all", int, default="all", least=0, most=LARGEST, metavar="K"
    )
    top_p: float | None = setting(
        None,
        "nucleus sampling: draw from the most probable tokens, up to a cumulative probability of P",
        float,
        default="all",
        least=0,
        most=1,
        metavar="P",
    )
    min_p: float | None = setting(
        None,
        "drop tokens with a probability below P times that of the most probable one",
        float,
        default="none",
        least=0,
        most=1,
        metavar="P",
    )
    sampling: str = setting(
        "independent",
        "arithmetic sampling spreads draws evenly over the model's distribution, so that fewer are needed",
        str,
        choices=("independent", "arithmetic"),
    )

    @property
    def threshold(self) -> float:
        """The threshold of epsilon sampling: by default none next to top-k, top-p or min-p sampling."""
        if self.epsilon is not None:
            return float(self.epsilon)
        return EPSILON if (self.top_k, self.top_p, self.min_p) == (None, None, None) else 0.0

    def beam_options(self) -> dict[str, Any]:
        """The options of a model's `beam`."""
        return {"k": self.beam, "alpha": self.length_penalty}

    def options(self) -> dict[str, Any]:
        """The options of a model's `sample` and `sampler`; not all models know top-k and its like."""
        always = {"epsilon": self.threshold or None, "temperature": self.temperature, "sampling": self.sampling}
        chosen = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return always | {name: value for name, value in chosen.items() if value is not None}

    def describe(self) -> dict[str, Any]:
        """What candidates depend on, as JSON values."""
        found = {name: getattr(self, name) for name in table_of(Sampling)}
        return {
            **found,
            "epsilon": self.threshold,
            "sampling": None if self.sampling == "independent" else self.sampling,
            "even_bits": 10 if self.sampling == "arithmetic" else None,  # early versions had 24
        }


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling` as keywords."""

    beam: int
    length_penalty: float
    epsilon: float | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    sampling: str


class TranslateOptions(RaceOptions, SamplingOptions, total=False):
    """The fields of `Race` and `Sampling` as keywords."""


@dataclass(frozen=True, kw_only=True)
class Network(Settings):
    """A neural utility's network: which, where, in which precision and batches."""

    model: str | None = setting(
        None,
        "model of a neural utility: a folder or hub name (comet, xcomet, metricx have a default); `learned` also takes "
        "en | multilingual",
        str,
        flag="--metric-model",
        metavar="PATH_OR_NAME",
    )
    device: str | None = setting(
        None, "cpu | cuda | cuda:1 ...", str, default="a GPU if there is one", metavar="DEVICE", described=False
    )
    dtype: str | None = setting(
        None,
        "precision of a network: float32 | bfloat16 | float16",
        str,
        default="bfloat16 on a GPU, else float32",
        metavar="DTYPE",
    )
    batch_tokens: int | None = setting(
        None,
        "tokens per batch of a network",
        int,
        default="by memory",
        least=1,
        most=LARGEST,
        metavar="N",
        described=False,
    )


class NetworkOptions(TypedDict, total=False):
    """The fields of `Network` as keywords, except `model`."""

    device: str | None
    dtype: str | None
    batch_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class Connection(Settings):
    """How a server is asked: keywords of `Server`, `Judge` and `EmbeddingServer`, and flags of a model on a server."""

    concurrency: int = setting(8, "requests to the server at the same time", int, least=1, metavar="N", described=False)
    timeout: float = setting(
        120.0, "seconds the server may take for an answer", float, least=0.001, metavar="S", described=False
    )
    retries: int = setting(
        6, "how often a failed request is tried again", int, least=0, described=False, group="server"
    )


class ConnectionOptions(TypedDict, total=False):
    """The fields of `Connection` as keywords."""

    concurrency: int
    timeout: float
    retries: int


_HERE = {"excludes": (("server", ..., "which does not get it"),)}
_ENCODER = {"excludes": (("server", ..., "which does not get it"), ("prompt", ..., "which is for decoder-only models"))}
_OPTION = {"needs": ("server", ...), "group": "server"}
LOCAL = "local"  # the server that is llama.cpp in this process
LOCAL_MODEL = "SmolLM2-135M-Instruct"  # its model


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Connection):
    """A model that makes candidates or answers: here (a folder or a name) or, with `server`, one on a server that is
    compatible with OpenAI's; with server "local", SmolLM2 by llama.cpp in this process.

    A `prompt` with {source} in it makes it decoder-only (causal); without one it is an encoder-decoder.
    """

    model: str = setting(
        "bundled", "folder or hub name; with --server, the model's name there", str, alias="--server-model", metavar="M"
    )
    source_language: str | None = setting(
        None, "source language by the tokenizer's code, such as deu_Latn", str, metavar="CODE", **_ENCODER
    )
    target_language: str | None = setting(None, "like --source-language", str, metavar="CODE", **_ENCODER)
    source_prefix: str = setting("", "text before each source (for T5)", str, metavar="TEXT", **_ENCODER)
    prompt: str | None = setting(
        None, "prompt for a decoder-only --model or a --server; must contain {source}", str, metavar="TEXT"
    )
    stop: str | None = setting(
        None, "stop string of a decoder-only --model or a --server; not part of the output", str, metavar="TEXT"
    )
    device: str | None = setting(None, "cuda | cpu", str, metavar="DEVICE", described=False, **_HERE)
    dtype: str | None = setting(None, "float32 | bfloat16 | float16", str, metavar="DTYPE", **_HERE)
    server: str | None = setting(
        None,
        f"an OpenAI-compatible server that runs --model; its key is OPENAI_API_KEY; {LOCAL}: SmolLM2, in this process",
        str,
        metavar="URL",
    )
    max_tokens: int = setting(512, "maximum tokens per sample", int, least=1, most=LARGEST, metavar="N")
    kind: str = setting("chat", "which endpoint", str, choices=("chat", "completions"), **_OPTION)
    samples_per_request: int = setting(16, "samples per request", int, least=1, **_OPTION)
    system_prompt: str | None = setting(None, "system message", str, excludes=(("kind", "completions", ""),), **_OPTION)
    beam_search: bool = setting(False, "hypotheses by beam search, on vLLM only", bool, **_OPTION)

    def __post_init__(self) -> None:
        """Refuse invalid settings, before a model is loaded."""
        super().__post_init__()
        if self.server == LOCAL and self.model == "bundled":
            object.__setattr__(self, "model", LOCAL_MODEL)
        bundled, model = self.model == "bundled", Parameter("model")
        if self.server is not None:
            if bundled:
                raise SettingError("server", ..., f"needs {model}, the model's name there")
            if self.prompt is None:
                example = "such as 'Translate into English, the translation only: {source}'"
                raise SettingError("server", ..., f"needs {Parameter('prompt')}, with {{source}} in it, {example}")
            return
        for name, known in table_of(Connection).items():
            if name in self.chosen():
                reason = f"only valid with {Parameter('server')}"
                raise SettingError(name, getattr(self, name), reason, group=known.group)
        if self.prompt is None and self.stop is not None:
            raise SettingError("stop", ..., f"only valid with {Parameter('prompt')} or {Parameter('server')}")
        for name in ("prompt", "source_language", "target_language", "source_prefix"):
            if bundled and name in self.chosen():
                raise SettingError(name, ..., f"only valid with {model}; the bundled one reads German, writes English")
        if self.prompt is not None and "{source}" not in self.prompt:
            raise SettingError("prompt", ..., "has no {source}; put it where the source goes")


class PresetRow(TypedDict, total=False):
    """What a preset sets for one kind of utility and one command."""

    regret: float
    forecast: float
    cover: bool
    schedule: tuple[int, ...]
    sampling: str


# By preset, command ("server": `translate` with a server) and kind of utility: "string", "encoder" (each string is
# encoded once) or "pair" (a forward pass per pair; also functions, judges and embedding servers). Never by device.
_REGRET: PresetRow = {"regret": 0.04}
_FORECAST: PresetRow = {"regret": 0.04, "forecast": 0.0005}
PRESETS: dict[str, dict[str, dict[str, PresetRow]]] = {
    "paper": {},
    "fast": {
        "decode": {"string": _REGRET, "encoder": {**_FORECAST, "cover": True}, "pair": _REGRET},
        "translate": {
            # a GPU draws the first 64 while beam search makes the hypotheses; expensive pairs start with fewer
            "string": {**_REGRET, "sampling": "arithmetic", "schedule": (64, 128, 256)},
            "encoder": {**_FORECAST, "sampling": "arithmetic", "schedule": (64, 96, 144, 216, 256)},
            "pair": {**_REGRET, "sampling": "arithmetic"},
        },
        "server": {"string": _REGRET, "encoder": _FORECAST, "pair": _REGRET},
    },
}


def names_in_preset(preset: str, command: str) -> set[str]:
    """The settings that a preset sets for a command, with some utility."""
    return {name for row in PRESETS[preset].get(command, {}).values() for name in row}


def with_preset(
    preset: str, command: str, kind: str, race: Mapping[str, Any], sampling: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The given settings of a race and of sampling, with those of a preset that were not given and go with them."""
    if preset not in PRESETS:
        raise SettingError("preset", preset, f"unknown{nearest(preset, PRESETS)}")
    rows = PRESETS[preset].get(command, {})
    races, samplings = _added(Race, rows.get(kind, {}), race), _added(Sampling, rows.get(kind, {}), sampling or {})
    if "regret" in rows.get(kind, {}) and "regret" not in races:  # that is what the rest was chosen for
        return dict(race), samplings
    if kind == "encoder" and not races.get("forecast"):  # the rest of that row was chosen for races with a forecast
        races = _added(Race, rows.get("pair", {}), race)
    return races, samplings


def _added(kind: type[Settings], row: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(given)
    for name, value in row.items():
        if name in table_of(kind) and name not in given:
            try:
                kind(**found, **{name: value})
            except SettingError:  # it cannot be combined with what was given
                continue
            found[name] = value
    return found
