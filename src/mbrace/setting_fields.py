"""What settings are made of: a field with its default, range, help text, flag, and what it needs or excludes."""

from __future__ import annotations

import difflib
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mbrace.errors import Parameter, SettingError, UserError, check_number, check_whole
from mbrace.removed import REMOVED, REMOVED_VALUES

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
        known = fields(kind)
        _CACHE[kind] = (
            {each.name: each.metadata["setting"] for each in known},
            {each.name: each.default for each in known},
        )
    return _CACHE[kind]


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
        return replace(self, **changes)  # type: ignore[type-var]

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
        """A setting and its value for a message; values that anybody may have made up are left out."""
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
    elif known.choices and not known.objects and not isinstance(value, str):
        raise SettingError(name, value, f"choose from {', '.join(known.choices)}")
    elif known.choices and isinstance(value, str) and value not in known.choices:
        removed = REMOVED_VALUES.get((name, value))
        raise SettingError(name, value, removed or f"unknown{nearest(value, known.choices)}")


def known_settings(kind: type[Settings], given: Mapping[str, Any]) -> None:
    """Refuse given settings of which one is none of `kind`."""
    table = table_of(kind)
    for name in given:
        if name not in table:
            raise SettingError(str(name), ..., REMOVED.get(name) or f"no such setting{nearest(str(name), table)}")


def settings_from(kind: type[Kind], ready: Kind | None, given: Mapping[str, Any]) -> Kind:
    """The settings of a call that takes either a `ready` object or its fields as keywords."""
    name = kind.__name__.lower()
    if not (ready is None or isinstance(ready, kind)):
        raise SettingError(name, ready, f"give mbrace.{kind.__name__}(...), or its fields as keywords")
    if not given:
        return _default(kind) if ready is None else ready  # type: ignore[arg-type]
    if ready is not None:
        first = next(iter(given))
        raise SettingError(first, given[first], f"give it or {name}=, not both; {name}.replace(...) changes a field")
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


def nearest(name: str, known: Iterable[str], more: str = "") -> str:
    """The end of a message about an unknown name: the one that was probably meant, or all of them; and `more`."""
    known = list(known)
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1) or difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]}?" + (more and f" Or give {more}")
    return f"; choose from {', '.join(known)}" + (more and f", {more}")


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
    if not isinstance(value, str) or str in kinds:
        return value
    words = {"true": True, "yes": True, "false": False, "no": False}
    try:
        return words[value.lower()] if bool in kinds else int(value) if int in kinds else float(value)
    except (KeyError, ValueError):
        expected = "yes or no" if bool in kinds else "a whole number" if int in kinds else "a number"
        raise SettingError(name, value, f"expected {expected}", group=group) from None


def options_table(*kinds: type[Settings]) -> str:
    """The options of these classes as a table of Markdown, for the documentation."""
    rows = ["| keyword | option | default | what it does |", "|---|---|---|---|"]
    for kind in kinds:
        for name, known in table_of(kind).items():
            default = known.default if known.default is not None else defaults_of(kind)[name]
            shown = "" if default in (None, "") else str(default)
            rows.append(
                f"| `{name}` | {_flag_cell(name, known)} | {shown} | {known.help.replace('|', chr(92) + '|')} |"
            )
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
