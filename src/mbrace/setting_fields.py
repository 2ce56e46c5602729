"""What settings are made of: a field with its default, range, help text, flag, and what it needs or excludes."""

from __future__ import annotations

import difflib
import inspect
import math
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mbrace.errors import Parameter, SettingError, UserError, check_number, check_whole

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION = 1  # of what `to_dict` returns
Kind = TypeVar("Kind", bound="Settings")
_CACHE: dict[type, tuple[dict[str, Setting], dict[str, Any]]] = {}


class Setting(NamedTuple):
    """What is known about a field. A setting is chosen if it differs from its default."""

    help: str
    kind: type  # of its value: int, float, str, bool or dict
    default: object = None  # what applies where the field's own default is None
    least: float = -math.inf
    most: float = math.inf
    choices: tuple[str, ...] = ()
    objects: bool = False  # whether it may be an object instead of one of the choices
    flag: str | None = ""  # "": made of the name; None: for Python alone
    alias: str | None = None  # a second name of the flag
    metavar: str | None = None
    needs: tuple[str, object] | None = None  # another setting, and the value it must have (...: any chosen one)
    excludes: tuple[tuple[str, object, str], ...] = ()  # another setting, its value (...: any chosen one), and why
    described: bool = True  # whether answers depend on it
    group: str = ""  # it is given as `--GROUP-option NAME=VALUE` instead of by a flag of its own


def setting(value: Any, help: str, kind: type, **known: Any) -> Any:
    """A field with its default value and what is known about it."""
    return field(default=value, metadata={"setting": Setting(help, kind, **known)}, hash=kind is not dict)


def table_of(kind: type[Settings]) -> dict[str, Setting]:
    """The settings of a class, by name."""
    return _of(kind)[0]


def defaults_of(kind: type[Settings]) -> dict[str, Any]:
    """The default of each setting of a class."""
    return _of(kind)[1]


def _of(kind: Any) -> tuple[dict[str, Setting], dict[str, Any]]:
    if kind not in _CACHE:
        known = sorted(fields(kind), key=lambda each: each.name not in kind.__annotations__)  # inherited ones last
        _CACHE[kind] = (
            {each.name: each.metadata["setting"] for each in known},
            {each.name: each.default for each in known},
        )
    return _CACHE[kind]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the classes of settings have in common; each is a frozen dataclass whose fields are made by `setting`."""

    def __new__(cls, **given: Any) -> Self:
        """Refuse unknown names: those that were removed with a sentence of their own."""
        known_settings(cls, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Refuse values out of range, and settings that cannot be combined."""
        table, defaults = table_of(type(self)), defaults_of(type(self))
        for name, known in table.items():
            value = getattr(self, name)
            if value is defaults[name]:
                continue
            if known.kind in (int, float, bool) and hasattr(value, "item"):  # a number of NumPy, which JSON has not
                object.__setattr__(self, name, value := value.item())
            elif known.kind is str and isinstance(value, os.PathLike):
                object.__setattr__(self, name, value := os.fspath(value))
            try:
                _check_value(name, value, known)
            except SettingError as error:
                raise SettingError(name, value, error.reason, group=known.group) from None
        for name, value in self.chosen().items():
            self._check_others(name, value, table[name])

    def chosen(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        defaults = defaults_of(type(self))
        found = ((name, getattr(self, name), default) for name, default in defaults.items())
        return {name: value for name, value, default in found if value is not default and value != default}

    def replace(self, **changes: Any) -> Self:
        """The same settings with some of them changed."""
        known_settings(type(self), changes)
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The chosen settings as JSON values, with a version."""
        return {"version": VERSION, **self.chosen()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Settings from what `to_dict` returned, perhaps in an earlier version."""
        if not isinstance(values, Mapping):
            raise UserError(f"{cls.__name__}.from_dict: expected what to_dict returned, got {type(values).__name__}")
        version = values.get("version", VERSION)
        if type(version) is not int or not 1 <= version <= VERSION:
            raise SettingError("version", version, f"of another mbrace; this one reads versions 1 to {VERSION}")
        return cls(**{name: value for name, value in values.items() if name != "version"})

    def describe(self) -> dict[str, Any]:
        """What the outcome depends on, as JSON values."""
        return {name: getattr(self, name) for name, known in table_of(type(self)).items() if known.described}

    def seen(self, name: str) -> object:
        """A setting as the conditions of others see it."""
        return getattr(self, name)

    def _check_others(self, name: str, value: object, known: Setting) -> None:
        defaults = defaults_of(type(self))
        if known.needs is not None:
            other, wanted = known.needs
            found = self.seen(other)
            if (found == defaults[other]) if wanted is ... else (found != wanted):
                raise SettingError(name, value, f"only valid with {self._named(other, wanted)}", group=known.group)
        for other, refused, why in known.excludes:
            found = self.seen(other)
            if found == refused or (refused is ... and found != defaults[other]):
                because = f", {why}" if why else ""
                reason = f"only valid without {self._named(other, found)}{because}"
                raise SettingError(name, value, reason, group=known.group)

    def _named(self, name: str, value: object) -> Parameter:
        """A setting and its value for a message; free text is left out."""
        known = table_of(type(self))[name]
        return Parameter(name, ... if isinstance(value, str) and not known.choices else value, known.group)


def _check_value(name: str, value: Any, known: Setting) -> None:
    """Refuse a value that is out of range or no such choice."""
    if known.kind is bool:
        if not isinstance(value, bool):
            raise SettingError(name, value, "must be True or False")
    elif known.kind is int:
        least = None if known.least == -math.inf else int(known.least)
        check_whole(name, value, least=least, most=None if known.most == math.inf else int(known.most))
    elif known.kind is float:
        check_number(name, value, least=known.least, most=known.most)
    elif known.kind is str and not known.objects and not isinstance(value, str):
        raise SettingError(name, value, f"choose from {', '.join(known.choices)}" if known.choices else "must be text")
    elif known.choices and isinstance(value, str) and value not in known.choices:
        removed = REMOVED_VALUES.get((name, value))
        raise SettingError(name, value, removed or f"unknown{nearest(value, known.choices)}")


def known_settings(kind: type[Settings], given: Mapping[str, Any], call: Callable[..., Any] | None = None) -> None:
    """Refuse given settings of which one is none of `kind`; `call` is the function that they were given to."""
    table = table_of(kind)
    for name in given:
        if name not in table:
            own: list[str] = []
            command = None
            if call is not None:
                own, command = inspect.getfullargspec(call).kwonlyargs, call.__name__.removesuffix("_file")
            reason = removal(name, command) or ELSEWHERE.get(name)
            raise SettingError(str(name), ..., reason or f"no such setting{nearest(str(name), [*table, *own])}")


def settings_from(
    kind: type[Kind],
    ready: Kind | None,
    given: Mapping[str, Any],
    call: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
) -> Kind:
    """The settings of a `call` that takes either a `ready` object, by the keyword `name`, or its fields as keywords."""
    name = name or kind.__name__.lower()
    if not (ready is None or isinstance(ready, kind)):
        raise SettingError(name, ready, f"give mbrace.{kind.__name__}(...), or its fields as keywords")
    if not given:
        return _default(kind) if ready is None else ready  # type: ignore[arg-type]
    if ready is not None:
        first = next(iter(given))
        raise SettingError(first, given[first], f"give it or {name}=, not both; {name}.replace(...) changes a field")
    known_settings(kind, given, call)
    return kind(**given)


@lru_cache
def _default(kind: type[Kind]) -> Kind:
    """Settings are frozen: a small `decode` need not make them again."""
    return kind()


def split(given: Mapping[str, Any], *kinds: type[Settings]) -> list[dict[str, Any]]:
    """Keywords by the class of settings that has them; unknown ones go to the first."""
    found: list[dict[str, Any]] = [{} for _ in kinds]
    for name, value in given.items():
        found[next((n for n, kind in enumerate(kinds) if name in table_of(kind)), 0)][name] = value
    return found


def nearest(name: str, known: Iterable[str], more: str = "", help: str = "") -> str:
    """The end of a message about an unknown name: the one that was probably meant, and `more` that is possible; else
    all of them, or the command that shows them."""
    known, name = list(known), name.lower()
    spellings = (name, name.replace("-", "_"), name.replace("_", "-"))
    near = next(filter(None, (difflib.get_close_matches(each, known, n=1, cutoff=0.65) for each in spellings)), None)
    if near is not None:
        return f"; did you mean {near[0]}?" + (more and f" Or give {more}") + (help and f" See {help}")
    return (f"; see {help}" if help else f"; choose from {', '.join(known)}") + (more and f", {more}")


def typed_options(
    group: str, owner: str, kind: type, given: Mapping[str, Any], *, hidden: Iterable[str] = ()
) -> dict[str, Any]:
    """Options of `--GROUP-option NAME=VALUE` for a dataclass: those given as text become what its fields are."""
    hints = {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in hidden}
    known = [each.name for each in fields(kind) if each.name in hints]
    for name in given:
        if name not in known:
            raise SettingError(name, ..., f"no option of {group} {owner}{nearest(name, known)}", group=group)
    return {name: typed(group, name, value, hints[name]) for name, value in given.items()}


def typed(group: str, name: str, value: Any, hint: Any) -> Any:
    """An option that may be text as what a type hint says."""
    kinds = typing.get_args(hint) or (hint,)
    kind = next((each for each in (bool, int, float) if each in kinds), None)
    if kind is None or not isinstance(value, str):
        return value
    words = {"true": True, "yes": True, "false": False, "no": False}
    try:
        return words[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
        expected = {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
        raise SettingError(name, value, f"expected {expected}", group=group) from None


def options_table(*kinds: type[Settings]) -> str:
    """The options of these classes as a table of Markdown, for the documentation."""
    rows = ["| keyword | option | default | what it does |", "|---|---|---|---|"]
    for kind in kinds:
        for name, known in table_of(kind).items():
            default = known.default if known.default is not None else defaults_of(kind)[name]
            shown = "" if default in (None, "") else str(default)
            text = known.help.replace("|", "\\|")
            does = f"False: {text}" if default is True and known.flag else text  # what its flag, --no-..., does
            rows.append(f"| `{name}` | {_flag_cell(name, known)} | {shown} | {does} |")
    return "\n".join(rows)


def flag_of(name: str, known: Setting) -> str | None:
    """The flag of a setting; None if it has none of its own."""
    if known.flag is None or known.group:
        return None
    return known.flag or f"--{name.replace('_', '-')}"


def _flag_cell(name: str, known: Setting) -> str:
    if known.group:
        return f"`--{known.group}-option {name}=...`"
    flag = flag_of(name, known)
    return "" if flag is None else f"`{flag}`"


def stable_name(thing: object) -> str:
    """What to call an object in a description: the same in every process, without its address in memory."""
    text = repr(thing)
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return text if " at 0x" not in text else f"{kind.__module__}.{kind.__qualname__}"


def removal(name: str, command: str | None = None) -> str | None:
    """What to do instead of an option or a keyword that was removed, perhaps from one command only."""
    return (command and REMOVED_OF.get((command, name))) or REMOVED.get(name)


# What was removed, and what to do instead, for one release: by keyword, which is also the name of the flag and the key
# in OUT.run.json. CHANGELOG.md names the last commit that had it.
_POOL = (
    "was removed: hypotheses drawn during a race scored lower by every metric but the one used for decoding; leave it "
    "out, or use `mbrace answer`, where each draw is a hypothesis"
)
_COARSE = (
    "was removed: shortlists lost more than they saved; write one with `mbrace decode --top K` and decode that file"
)
_BEAM = "was removed: it gained little; leave it out for the plain beam search"
_STUDY = "was removed: the study was run once, and its findings are in results/"
_METHOD, _UTILITY, _SERVER, _RAY = (
    f"is an option of {name} now:"
    for name in ("the method", "the utility judge (mbrace.Judge in Python)", "the server", "--ray")
)
_RETRY = "was removed: OUT.errors.jsonl names file and line; give those records, corrected, as an input of their own"
REMOVED: dict[str, str] = {
    "methods": f"{_STUDY}METHODS.md",
    "timed": f"{_STUDY}METHODS.md",
    "drawn": f"{_STUDY}METHODS.md",
    "strings": f"{_STUDY}STRINGS.md",
    "states": _BEAM,
    "recombine": _BEAM,
    "max_behind": _BEAM,
    "draw": "was removed: draws are made as they are needed",
    "pool": _POOL,
    "start": _POOL,
    "coarse": _COARSE,
    "coarse_top": _COARSE,
    "coarse_model": _COARSE,
    "qe": "was removed here: `mbrace rerank --qe MODEL --top K` writes a candidate file that `mbrace decode` reads",
    "qe_top": "was removed: `mbrace rerank --qe MODEL --top K` writes a candidate file that `mbrace decode` reads",
    "select": f"is a method now: {Parameter('method', 'diverse')} chooses a diverse n-best list; medoids were removed",
    "diversity": f"{_METHOD} {Parameter('diversity', 0.5, 'method')} with {Parameter('method', 'diverse')}",
    "aggregates": f"{_METHOD} {Parameter('aggregates', 4, 'method')}",
    "centroids": f"{_METHOD} {Parameter('centroids', 64, 'method')}",
    "centroid_weights": f"{_METHOD} {Parameter('weighted', True, 'method')}",
    "rank": f"{_METHOD} {Parameter('rank', 8, 'method')}",
    "fraction": f"{_METHOD} {Parameter('fraction', 0.125, 'method')}",
    "fine_top": "was removed with aggregate-to-fine: the race itself drops hypotheses early",
    "judge_server": f"{_UTILITY} {Parameter('url', 'URL', 'utility')}",
    "judge_model": f"{_UTILITY} {Parameter('model', 'NAME', 'utility')}",
    "judge_prompt": f"{_UTILITY} {Parameter('prompt', 'TEXT', 'utility')}",
    "judge_budget": f"{_UTILITY} {Parameter('budget', 1000, 'utility')}",
    "judge_answers": f"{_UTILITY} {Parameter('answers', 'FILE', 'utility')}",
    "kind": f"is not needed now: a model with {Parameter('prompt')} is decoder-only (causal), one without is not",
    "server_kind": f"{_SERVER} {Parameter('kind', 'completions', 'server')}",
    "server_beam_search": f"{_SERVER} {Parameter('beam_search', True, 'server')}",
    "samples_per_request": f"{_SERVER} {Parameter('samples_per_request', 16, 'server')}",
    "system_prompt": f"{_SERVER} {Parameter('system_prompt', 'TEXT', 'server')}",
    "retries": f"{_SERVER} {Parameter('retries', 6, 'server')}",
    "workers": f"{_RAY} {Parameter('workers', 8, 'ray')}",
    "gpus_per_worker": f"{_RAY} {Parameter('gpus_per_worker', 1, 'ray')}",
    "shard_size": f"{_RAY} {Parameter('shard_size', 1024, 'ray')}",
    "retry_errors": _RETRY,
    "json": f"is {Parameter('text', False)} now",
    "minutes": "was removed: `timeout 60m mbrace ...` ends a run after the current window, and --resume continues it",
    "limit": "was removed: `head -n N SOURCES` makes a shorter file",
    "saved_utilities": "was removed: --utility replay --utility-option tables=DIR races over saved utilities",
    "races": "was removed: the report shows the races of 12 sentences of each file",
    "quiet": f"was removed: give {Parameter('log_level', 'error')}",
    "csv": "was removed: --json has every rating",
    "name_a": "is an option of `mbrace judge-results` now",
    "name_b": "is an option of `mbrace judge-results` now",
    "exclude_self": "is for Python alone now: mbrace.decode(..., exclude_self=True)",
    "length_alpha": f"is called {Parameter('length_penalty')} now",
    "baseline": "was removed: leave it out; rescaling changes no decision",
}
# Options of commands that are no keywords in Python.
ELSEWHERE = {
    "preset": "is for the command line; give the settings themselves, such as regret=0.04 (docs/options.md has them)",
    **dict.fromkeys(("model", "metric_model"), "is given to the utility: utility=mbrace.Comet(MODEL)"),
    "utility_option": "is given to the utility, such as utility=mbrace.BLEU(tokenize='char')",
}
_DEMO = "was removed: `mbrace demo` shows what fits a screen"
REMOVED_OF = {  # of one command, where others have an option of this name or never had one
    ("demo", "translate"): "was removed: echo 'Guten Morgen.' | mbrace translate",
    ("demo", "examples"): _DEMO,
    ("demo", "plain"): _DEMO,
    ("judge-results", "force"): "was removed: --json prints; `> FILE` writes and replaces a file",
    ("doctor", "json"): "was removed: the report is for people; `pip list --format json` has versions",
    ("export", "utilities"): "was removed: decode with --prune none --nbest 64, for example, whose answers have them",
    ("export", "min_gap"): "was removed: each line has score_chosen and score_rejected to choose by",
    ("export", "system"): "was removed: put it into the prompt, or add a message to each line",
    ("generate", "references"): "was removed: a .tsv has references in its second column, .jsonl in `reference`",
    ("train-metric", "quality"): "was removed: a random shortlist was better than its estimates; try `--qe cometkiwi`",
    ("train-metric", "cache"): "was removed: leave it out; the encoder's vectors are computed in each run",
    ("experiment", "qe"): f"{_STUDY}METHODS.md",
    ("rerank", "metric_model"): f"give it as {Parameter('qe', 'PATH')}",
    ("Server", "per_request"): f"is called {Parameter('samples_per_request')} now",
    ("Server", "system"): f"is called {Parameter('system_prompt')} now",
    ("Judge", "system"): f"is called {Parameter('system_prompt')} now",
    ("Server", "chat"): f"is called kind now: {Parameter('kind', 'chat')} or {Parameter('kind', 'completions')}",
    ("generate", "alpha"): f"is called {Parameter('length_penalty')} now",
}
REMOVED_VALUES: dict[tuple[str, str], str] = {
    ("method", "aggregate-to-fine"): "was removed: the race itself drops hypotheses early",
    ("method", "medoids"): f"was removed: {Parameter('method', 'diverse')} chooses a diverse n-best list",
    ("qe", "learned"): "was removed: a random shortlist was better",
    ("on_error", "retry"): _RETRY,
}
