"""All utilities by name, as the command line and settings use them."""

from __future__ import annotations

import importlib
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from mbrace.cores import limit_helpers
from mbrace.errors import UTILITY, Parameter, SettingError, UserError, require
from mbrace.utilities.mixture_names import is_mixture, parse_mixture
from mbrace.utility import Utility


class NamedUtility(NamedTuple):
    """The class that a name stands for. Its module is imported only when the utility is made."""

    module: str
    class_name: str
    fixed: Mapping[str, Any] = types.MappingProxyType({})  # arguments that the name implies
    neural: bool = False  # has a model: takes `model`, `device`, `dtype` and `batch_tokens`
    needs_model: bool = False
    server: bool = False  # asks a server: takes `url` and `model` among its options
    needs: tuple[str, ...] = ()  # options that must be given


# Options of utilities that ask a server: those that cannot be given as text (a key comes from the environment), and
# those that do not change any score, so that a run can be resumed with other values.
NOT_TEXT = ("api_key", "options")
NOT_SCORED = ("url", "answers", "concurrency", "retries", "timeout", "per_request")
_AS_STORED = {"name": None, "schedule": None}
_EDIT = "mbrace.metrics.edit_distance"
_NEURAL = "mbrace.neural"
_CROSS = "mbrace.cross"
NAMED: dict[str, NamedUtility] = {
    "chrf": NamedUtility("mbrace.metrics.chrf", "ChrF", {"word_order": 0}),
    "chrf+": NamedUtility("mbrace.metrics.chrf", "ChrF", {"word_order": 1}),
    "chrf++": NamedUtility("mbrace.metrics.chrf", "ChrF", {"word_order": 2}),
    "bleu": NamedUtility("mbrace.metrics.bleu", "BLEU"),
    "ter": NamedUtility("mbrace.metrics.ter", "TER"),
    "wer": NamedUtility(_EDIT, "EditDistance", {"kind": "wer"}),
    "cer": NamedUtility(_EDIT, "EditDistance", {"kind": "cer"}),
    "edit": NamedUtility(_EDIT, "EditDistance"),
    "exact": NamedUtility("mbrace.metrics.exact_match", "ExactMatch"),
    "rouge-l": NamedUtility("mbrace.metrics.rouge_l", "RougeL"),
    "replay": NamedUtility("mbrace.utilities.replay", "Replay", _AS_STORED, needs=("tables",)),
    "comet": NamedUtility(f"{_NEURAL}.comet", "Comet", neural=True, needs_model=True),
    "embedding": NamedUtility(f"{_NEURAL}.embedding", "Embedding", neural=True),
    "learned": NamedUtility(f"{_NEURAL}.learned", "Learned", neural=True),
    "bertscore": NamedUtility(f"{_NEURAL}.bertscore", "BERTScore", neural=True, needs_model=True),
    "bleurt": NamedUtility(f"{_CROSS}.bleurt", "BLEURT", neural=True, needs_model=True),
    "unified": NamedUtility(f"{_CROSS}.unified", "Unified", neural=True, needs_model=True),
    "metricx": NamedUtility(f"{_CROSS}.metricx", "MetricX", neural=True, needs_model=True),
    # In a package above this one, which may only be imported when they are made.
    "judge": NamedUtility("mbrace.servers.judge", "Judge", server=True),
    "embedding-server": NamedUtility("mbrace.servers.embeddings", "EmbeddingServer", server=True),
}
FORMS = "module:function, file.py:function, or a mixture such as chrf++:0.5+bleu:0.5"
MIXTURE_OPTIONS = ("scale",)
WHAT_IS_NEEDED = {
    "tables": f"{Parameter('tables', 'DIR', 'utility')}, a folder that {Parameter('save_utilities')} wrote"
}
MODEL = Parameter("model", group="network")


def make_utility(
    name: str,
    options: Mapping[str, str] | None = None,
    *,
    model: str | None = None,
    threads: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    batch_tokens: int | None = None,
) -> Utility:
    """The utility called `name`: one of `NAMED`, a function of your own, or a mixture.

    `options` are those of its class, as text: `{"tokenize": "char"}` for bleu. Options of a part of a mixture begin
    with the part's name: `{"bleu.tokenize": "char"}`; `scale` is an option of the mixture itself. `model`, `device`,
    `dtype` and `batch_tokens` apply to every neural utility that does not set them in `options`. `threads` 0 is all
    cores.
    """
    check_utility(name, options, model=model)
    limit_helpers(threads or None)
    options = dict(options or {})
    encoding = {"device": device, "dtype": dtype, "batch_tokens": batch_tokens}
    if is_mixture(name):
        from mbrace.utilities.mixture import Mixture

        scale: Any = options.get("scale", "sentence")
        parts: list[tuple[Utility, float]] = []
        for part, weight in parse_mixture(name):
            arguments: dict[str, Any] = {"model": model, **encoding} if uses_model(part) else {}
            parts.append((make_utility(part, _options_of(part, options), threads=threads, **arguments), weight))
        return Mixture(parts, scale=scale)
    if name not in NAMED:
        from mbrace.utilities.functions import load_function

        return load_function(name)
    named = NAMED[name]
    if named.neural:
        require("torch", extra="neural")
        if threads:
            from mbrace.neural.device import limit_threads

            limit_threads(threads)
        arguments = {"model": model, **encoding, **_converted(name, options)}
        return typing.cast("Utility", _class_of(named)(arguments.pop("model"), **arguments))
    arguments = {**named.fixed, **_converted(name, options)}
    if "threads" in _hints(_class_of(named)):
        arguments["threads"] = threads or None
    return typing.cast("Utility", _class_of(named)(**arguments))


def check_utility(name: str, options: Mapping[str, str] | None = None, *, model: str | None = None) -> None:
    """Refuse an unknown name, and options or a model that it does not take, before anything is loaded."""
    options = options or {}
    if is_mixture(name):
        parts = [part for part, _ in parse_mixture(name)]
        for key in options:
            if key not in MIXTURE_OPTIONS and not any(key.startswith(f"{part}.") for part in parts):
                part = f"a part's name, a full stop and its option, such as {parts[0]}.lowercase"
                raise SettingError(
                    key, ..., f"no option of the mixture {name}; write scale, or {part}", group="utility"
                )
        for part in parts:
            check_utility(part, _options_of(part, options), model=model if uses_model(part) else None)
        if model is not None and not any(map(uses_model, parts)):
            raise UserError(f"{MODEL} {model}: {name} has no neural part")
        return
    if name not in NAMED:
        if ":" not in name:
            raise UserError(f"{UTILITY} {name}: unknown; choose from {', '.join(NAMED)}, {FORMS}")
        front, _, rest = name.partition(":")
        if front in NAMED:  # not a module: a mixture, or meant to be one
            weight = rest.partition("+")[0]
            raise UserError(f"{UTILITY} {name}: {weight!r} is no weight of {front}; write name:weight+name:weight")
        known: list[str] = []
    else:
        named = NAMED[name]
        if model is not None and not named.neural:
            neural = ", ".join(other for other, made in NAMED.items() if made.neural)
            raise UserError(f"{MODEL} {model}: only valid with {UTILITY} {neural}, not {name}")
        if named.needs_model and model is None and "model" not in options:
            raise UserError(f"{UTILITY} {name}: needs {MODEL}, a checkpoint's folder or a name on the model hub")
        for key in named.needs:
            if not options.get(key):
                raise UserError(f"{UTILITY} {name}: needs {WHAT_IS_NEEDED[key]}")
        missing = [
            f"{Parameter(key, group='utility')}" for key in ("url", "model") if named.server and not options.get(key)
        ]
        if missing:
            raise UserError(f"{UTILITY} {name}: needs {' and '.join(missing)}, those of its server")
        if not options:
            return
        if named.neural:
            require("torch", extra="neural")
        hidden = (*named.fixed, "threads", "return", *(NOT_TEXT if named.server else ()))
        known = [key for key in _hints(_class_of(named)) if key not in hidden]
    for key in options:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise SettingError(key, ..., f"not one of {name}; {takes}", group="utility")


def scored_options(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options that scores depend on."""
    if is_mixture(name):
        parts = {f"{part}.": scored_options(part, _options_of(part, options)) for part, _ in parse_mixture(name)}
        own = {key: text for key, text in options.items() if key in MIXTURE_OPTIONS}
        return own | {front + key: text for front, kept in parts.items() for key, text in kept.items()}
    left_out = NOT_SCORED if name in NAMED and NAMED[name].server else ()
    return {key: text for key, text in options.items() if key not in left_out}


def uses_model(name: str) -> bool:
    """Whether the utility of a name, or a part of the mixture, has a model."""
    if is_mixture(name):
        return any(uses_model(part) for part, _ in parse_mixture(name))
    return name in NAMED and NAMED[name].neural


def _options_of(part: str, options: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(f"{part}."): text for key, text in options.items() if key.startswith(f"{part}.")}


def _class_of(named: NamedUtility) -> type:
    module = require(named.module, extra="models") if named.server else importlib.import_module(named.module)
    found: type = getattr(module, named.class_name)
    return found


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind.__init__)  # type: ignore[misc]


def _converted(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The options of a name as the types that its class asks for."""
    hints = _hints(_class_of(NAMED[name])) if options else {}
    return {key: _convert(name, key, text, hints[key]) for key, text in options.items()}


def _convert(name: str, key: str, text: str, hint: Any) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    words = {"true": True, "yes": True, "false": False, "no": False}
    try:
        if bool in kinds:
            return words[text.lower()]
        for kind in (int, float):
            if kind in kinds:
                return kind(text)
    except (KeyError, ValueError):
        expected = "yes or no" if bool in kinds else "a whole number" if int in kinds else "a number"
        raise SettingError(key, text, f"{name} expects {expected}", group="utility") from None
    return text
