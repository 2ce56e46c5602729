"""All utilities by name, as the command line, settings and `utility="name"` in Python use them.

A new metric is a class in a file of its own and a row in `NAMED`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from zlib import crc32

from mbrace.errors import UTILITY, Parameter, SettingError, UserError, require
from mbrace.setting_fields import nearest, table_of, typed
from mbrace.settings import Connection, NetworkOptions
from mbrace.utilities.mixture import Mixture, is_mixture, parts_of
from mbrace.utility import Pairwise, QualityUtility, Utility, limit_helpers

if TYPE_CHECKING:
    from typing_extensions import Unpack

# What costs most: reading strings as they are ("string"), encoding each with a network ("encoder"), or the pairs
# ("pair"): a pass of a network for each, a request, a function of the user's. Presets go by it.
Kind: TypeAlias = Literal["string", "encoder", "pair"]


class NamedUtility(NamedTuple):
    """The class that a name stands for, in a module below `mbrace` that is imported only when the utility is made."""

    module: str
    class_name: str
    kind: Kind = "string"
    fixed: Mapping[str, Any] = types.MappingProxyType({})  # arguments that the name implies
    model: str | None = None  # the default model of a neural utility; None: its class has one, or it is needed
    needs: tuple[str, ...] = ()  # options that must be given

    @property
    def neural(self) -> bool:
        """Whether it has a network: it takes `model`, `device`, `dtype` and `batch_tokens`."""
        return self.module.startswith(("neural.", "cross."))

    @property
    def server(self) -> bool:
        """Whether it asks a server: it takes `url` and `model` among its options."""
        return self.module.startswith("servers.")


_SERVED = ("url", "model")
NAMED: dict[str, NamedUtility] = {
    "chrf": NamedUtility("metrics.chrf", "ChrF", fixed={"word_order": 0}),
    "chrf+": NamedUtility("metrics.chrf", "ChrF", fixed={"word_order": 1}),
    "chrf++": NamedUtility("metrics.chrf", "ChrF", fixed={"word_order": 2}),
    "bleu": NamedUtility("metrics.bleu", "BLEU"),
    "ter": NamedUtility("metrics.ter", "TER"),
    "wer": NamedUtility("metrics.edit_distance", "EditDistance", fixed={"kind": "wer"}),
    "cer": NamedUtility("metrics.edit_distance", "EditDistance", fixed={"kind": "cer"}),
    "edit": NamedUtility("metrics.edit_distance", "EditDistance"),
    "exact": NamedUtility("metrics.exact_match", "ExactMatch"),
    "rouge-l": NamedUtility("metrics.rouge_l", "RougeL"),
    "replay": NamedUtility("utilities.replay", "Replay", fixed={"name": None, "schedule": None}, needs=("tables",)),
    "comet": NamedUtility("neural.comet", "Comet", "encoder", model="Unbabel/wmt22-comet-da"),
    "embedding": NamedUtility("neural.embedding", "Embedding", "encoder"),
    "learned": NamedUtility("neural.comet", "Learned", "encoder"),
    "bertscore": NamedUtility("neural.bertscore", "BERTScore", "encoder", needs=("model",)),
    "bleurt": NamedUtility("cross.bleurt", "BLEURT", "pair", needs=("model",)),
    "xcomet": NamedUtility("cross.xcomet", "XCOMET", "pair", model="Unbabel/XCOMET-XL"),
    "metricx": NamedUtility("cross.metricx", "MetricX", "pair", model="google/metricx-24-hybrid-large-v2p6"),
    "judge": NamedUtility("servers.judge", "Judge", "pair", needs=_SERVED),
    "embedding-server": NamedUtility("servers.embeddings", "EmbeddingServer", "pair", needs=_SERVED),
}
FORMS = "module:function, file.py:function, or a mixture such as chrf++:0.5+bleu:0.5"
# Options of utilities that ask a server: some cannot be given as text (a key comes from the environment), and some
# change no score, so that a run can be resumed with other values.
NOT_TEXT = ("api_key", "options")
NOT_SCORED = ("url", "answers", "budget", "per_request", *table_of(Connection))
MIXTURE_OPTIONS = ("scale",)
MODEL = Parameter("model", group="network")
WHAT_IS_NEEDED = {
    "tables": f"{Parameter('tables', 'DIR', 'utility')}, a folder that {Parameter('save_utilities')} wrote",
    "model": f"{MODEL}, a checkpoint's folder or a name on the model hub",
}


def kind_of(name: str) -> Kind:
    """What costs most with the utility of a name; for a mixture, with its dearest part."""
    order: tuple[Kind, ...] = typing.get_args(Kind)
    return max((NAMED[part].kind if part in NAMED else "pair" for part, _ in parts_of(name)), key=order.index)


def model_of(name: str, model: str | None = None) -> str | None:
    """The model of a named utility: the one given, else its default."""
    return NAMED[name].model if model is None and name in NAMED else model


def make_utility(
    name: str,
    options: Mapping[str, str] | None = None,
    *,
    model: str | None = None,
    threads: int = 0,
    **network: Unpack[NetworkOptions],
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
    if is_mixture(name):
        scale: Any = options.get("scale", "sentence")
        parts: list[tuple[Utility, float]] = []
        for part, weight in parts_of(name):
            arguments: dict[str, Any] = {"model": model, **network} if uses_model(part) else {}
            parts.append((make_utility(part, _options_of(part, options), threads=threads, **arguments), weight))
        return Mixture(parts, scale=scale)
    if name not in NAMED:
        return load_function(name)
    named = NAMED[name]
    if named.neural:
        prepare_torch(threads, extra="learned" if name == "learned" else "neural")
        arguments = {"model": model_of(name, model), **network, **_converted(name, options)}
        return _made(named, arguments.pop("model"), **arguments)
    arguments = {**named.fixed, **_converted(name, options)}
    if "threads" in _hints(_class_of(named)):
        arguments["threads"] = threads or None
    return _made(named, **arguments)


def _made(named: NamedUtility, *model: Any, **arguments: Any) -> Utility:
    try:
        return typing.cast("Utility", _class_of(named)(*model, **arguments))
    except SettingError as error:
        group = "network" if error.parameter in ("device", "dtype", "batch_tokens") else "utility"
        raise SettingError(error.parameter, error.value, error.reason, group=group) from None


def check_utility(name: str, options: Mapping[str, str] | None = None, *, model: str | None = None) -> None:
    """Refuse an unknown name, and options or a model that it does not take, before anything is loaded."""
    options = options or {}
    if is_mixture(name):
        parts = [part for part, _ in parts_of(name)]
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
    if name in NAMED:
        known = _check_named(name, options, model)
    else:
        _check_unknown(name)
        known = []
    for key in options:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise SettingError(key, ..., f"not one of {name}; {takes}", group="utility")


def _check_named(name: str, options: Mapping[str, str], model: str | None) -> list[str]:
    """Refuse a model or missing options; returns the options that a name takes, where any are given."""
    named = NAMED[name]
    if model is not None and not named.neural:
        neural = ", ".join(other for other, made in NAMED.items() if made.neural)
        raise UserError(f"{MODEL} {model}: only valid with {UTILITY} {neural}, not {name}")
    missing = [key for key in named.needs if not options.get(key) and not (key == "model" and named.neural and model)]
    if missing and named.server:
        needed = " and ".join(f"{Parameter(key, group='utility')}" for key in missing)
        raise UserError(f"{UTILITY} {name}: needs {needed}, those of its server")
    if missing:
        raise UserError(f"{UTILITY} {name}: needs {WHAT_IS_NEEDED[missing[0]]}")
    if not options:
        return []
    if named.neural:
        require("torch", extra="neural")
    hidden = (*named.fixed, "threads", "return", *(NOT_TEXT if named.server else ()))
    return [key for key in _hints(_class_of(named)) if key not in hidden]


def _check_unknown(name: str) -> None:
    """Refuse a name that is not in the table, unless it may be that of a function."""
    if name == "unified":
        raise UserError(f"{UTILITY} unified: is xcomet now, and takes the same models")
    if name == "cometkiwi":
        rerank = "`mbrace rerank --qe cometkiwi`"
        raise UserError(f"{UTILITY} {name}: estimates quality and reads no reference; use it to rerank: {rerank}")
    if ":" not in name:
        raise UserError(f"{UTILITY} {name}: unknown{nearest(name, NAMED, FORMS)}")
    front, _, rest = name.partition(":")
    if front in NAMED:  # not a module: a mixture, or meant to be one
        weight = rest.partition("+")[0]
        raise UserError(f"{UTILITY} {name}: {weight!r} is no weight of {front}; write name:weight+name:weight")


def scored_options(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options that scores depend on, with the defaults that older versions did not have."""
    served = {part for part, _ in parts_of(name) if part in NAMED and NAMED[part].server}
    owners = {key: (key.rpartition(".")[0] or name, key.rpartition(".")[2]) for key in options}  # the part, its option
    left_out = {key for key, (part, option) in owners.items() if part in served and option in NOT_SCORED}
    found = {key: text for key, text in options.items() if key not in left_out}
    for part, _ in parts_of(name):
        prefix = "" if part == name else f"{part}."
        if part == "exact" and f"{prefix}pattern" in found:
            found.setdefault(f"{prefix}numbers", "yes")
        if part == "judge":
            found.setdefault(f"{prefix}prompt", "default 2")
    return found


def uses_model(name: str) -> bool:
    """Whether the utility of a name, or a part of the mixture, has a model."""
    return any(part in NAMED and NAMED[part].neural for part, _ in parts_of(name))


def _options_of(part: str, options: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(f"{part}."): text for key, text in options.items() if key.startswith(f"{part}.")}


def _class_of(named: NamedUtility) -> type:
    # `servers` is a package above this one, imported only when one of its utilities is made
    name = f"mbrace.{named.module}"
    extra = "neural,serve" if named.class_name == "EmbeddingServer" else "serve"
    module = require(name, extra=extra) if named.server else importlib.import_module(name)
    found: type = getattr(module, named.class_name)
    return found


def _hints(kind: type) -> dict[str, Any]:
    function: Any = kind.__init__  # type: ignore[misc]
    own = dict(function.__annotations__)
    unpacked = [own.pop(name) for name, hint in dict(own).items() if str(hint).startswith("Unpack[")]
    hints = typing.get_type_hints(types.SimpleNamespace(__annotations__=own), function.__globals__)
    for hint in unpacked:  # the fields of a class of settings
        hints |= typing.get_type_hints(function.__globals__[hint[len("Unpack[") : -1]])
    return hints


def _converted(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The options of a name as the types that its class asks for."""
    hints = _hints(_class_of(NAMED[name])) if options else {}
    return {key: typed("utility", key, text, hints[key]) for key, text in options.items()}


def prepare_torch(threads: int, *, extra: str = "neural") -> None:
    """Refuse a neural utility where torch is missing, and limit its threads (0: all cores)."""
    require("torch", extra=extra)
    if threads:
        from mbrace.neural.device import limit_threads

        limit_threads(threads)


# Quality estimation

# Names of models, each of which estimates quality from the source alone.
QUALITY = {"cometkiwi": "Unbabel/wmt22-cometkiwi-da", **{name: NAMED[name].model for name in ("xcomet", "metricx")}}


def load_quality(
    model: str,
    *,
    threads: int = 0,
    **network: Unpack[NetworkOptions],
) -> QualityUtility:
    """The quality utility of a name in `QUALITY`, or of the folder or hub name of CometKiwi, XCOMET, a referenceless
    COMET or MetricX.

    `threads` 0 is all cores.
    """
    prepare_torch(threads)
    if model == "learned":
        raise UserError(f"{Parameter('qe')} learned: was removed: a random shortlist was better; try cometkiwi")
    if model not in QUALITY and "/" not in model and not Path(model).expanduser().exists():
        raise UserError(f"{Parameter('qe')} {model}: unknown{nearest(model, QUALITY, 'a folder, or a hub name')}")
    model = QUALITY.get(model) or model
    module, name = _quality_class(model)
    made: Any = getattr(importlib.import_module(f"mbrace.{module}"), name)
    utility: QualityUtility = made(model, **network)
    from mbrace.cross.scorer import CrossUtility

    if isinstance(utility, CrossUtility) and not utility.reads_sources:
        raise UserError(f"{utility.name}: does not read the source, so it cannot estimate quality without a reference")
    return utility


def _quality_class(model: str) -> tuple[str, str]:
    from mbrace.neural import checkpoint, pretrained

    settings = pretrained.read_json(Path(model).expanduser() / "config.json", dict)
    if settings is not None and settings.get("model_type") != "mt5":
        kind = f"model_type {settings.get('model_type')!r}"
        raise UserError(
            f"{model}: {kind}: estimates no quality; give CometKiwi, XCOMET, a referenceless COMET or MetricX"
        )
    if settings is not None or "metricx" in pretrained.label(model).lower():
        return "cross.metricx", "MetricX"
    classes = {  # of metrics in COMET's layout
        "unified_metric": ("cross.xcomet", "XCOMET"),
        "xcomet_metric": ("cross.xcomet", "XCOMET"),
        "referenceless_regression_metric": ("neural.comet", "Referenceless"),
    }
    metric = checkpoint.class_of(model)
    if metric not in classes:
        known = ", ".join(classes)
        raise UserError(
            f"{model}: metric class {metric}: needs references; for quality give one of {known}, or MetricX"
        )
    return classes[metric]


# A user's own function, by name

BATCH_SUFFIX = ":batch"


def load_function(text: str) -> Utility:
    """The utility that `text` names: `package.module:function` or `path/to/file.py:function`.

    The function is called as `Pairwise` calls it: `function(hypothesis, reference)`, with the source as a third
    argument if it has one. It takes and returns lists (`batch=True`) if it has a true attribute `batch`, or if `:batch`
    is added to its name. The name may also be that of a utility object. Modules are looked for in the current folder
    first; a file may import other files of its folder.
    """
    name, batch = text, False
    if name.endswith(BATCH_SUFFIX):
        name, batch = name.removesuffix(BATCH_SUFFIX), True
    module, colon, attribute = name.rpartition(":")
    if not (colon and module and attribute):
        raise UserError(f"{UTILITY} {text}: give package.module:function or path/to/file.py:function")
    found: object = _module(text, module)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UserError(
                f"{UTILITY} {text}: there is no {attribute} in {module}; name a function that it has"
            ) from None
    if isinstance(found, Utility) and not isinstance(found, type):
        if batch:
            raise UserError(f"{UTILITY} {text}: {BATCH_SUFFIX} is for functions; {attribute} is a utility already")
        return found
    if isinstance(found, type) or not callable(found):
        kind = "a class" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise UserError(f"{UTILITY} {text}: {attribute} is {kind}; name a function(hypothesis, reference) or a utility")
    return Pairwise(found, batch=batch or bool(getattr(found, "batch", False)), name=text)


def _module(text: str, name: str) -> types.ModuleType:
    """The module of a name, or in a file."""
    is_file = name.endswith(".py") or os.sep in name
    path = Path(name).resolve() if is_file else Path.cwd() / name
    if is_file and (not path.is_file() or path.suffix != ".py"):
        raise UserError(f"{UTILITY} {text}: {name}: no such file; give the path of a Python file, which ends in .py")
    try:
        with _searched_first(path.parent):
            return _executed(path) if is_file else importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if not is_file and missing is not None and f"{name}.".startswith(f"{missing}."):  # itself, or its package
            raise UserError(
                f"{UTILITY} {text}: there is no module {missing}; "
                "install it, run from the folder it is in, or give the path of its file"
            ) from error
        raise UserError(f"{UTILITY} {text}: importing {name} failed: {type(error).__name__}: {error}") from error


def _executed(path: Path) -> types.ModuleType:
    """The module in a file. Two files may have the same name, and neither may hide an installed module."""
    name = f"mbrace_utility_{path.stem}_{crc32(os.fsencode(path)):x}"
    specification: Any = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _searched_first(folder: Path) -> Iterator[None]:
    """Inside, Python looks for modules in this folder first."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
