"""Options made of the fields of settings, and the settings made of the options that were given."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from mbrace.cli.messages import say
from mbrace.cli.parser import seed
from mbrace.errors import MOST_THREADS, SettingError, UserError, check_whole, counted
from mbrace.forecast import MOST
from mbrace.setting_fields import Setting, Settings, defaults_of, flag_of, nearest, table_of, typed
from mbrace.settings import ModelSettings, Network, Race, Sampling, with_preset
from mbrace.utilities.named import FORMS, NAMED, check_utility, kind_of, uses_model
from mbrace.utility import Cost, Utility

if TYPE_CHECKING:
    from mbrace.jobs.decode import UtilitySettings

Container = argparse.ArgumentParser | argparse._ArgumentGroup


def add_settings(
    group: Container,
    kind: type[Settings],
    *,
    without: Collection[str] = (),
    by_preset: Collection[str] = (),
    **defaults: Any,
) -> None:
    """The flags of a class of settings; an option that was not given is None. `defaults` are those of the command,
    where `--preset` does not set them (`by_preset`)."""
    defaults = defaults_of(kind) | defaults
    for name, known in table_of(kind).items():
        flag = flag_of(name, known)
        if flag is not None and name not in without:
            flags = [flag] if known.alias is None else [flag, known.alias]
            if name in by_preset:
                known = known._replace(default="by --preset")
            group.add_argument(*flags, **_described(name, known, defaults[name]))


def _described(name: str, known: Setting, default: Any) -> dict[str, Any]:
    """The arguments of `add_argument` for a setting."""
    shown = known.default if known.default is not None else default
    text = known.help if shown in (None, "") or isinstance(shown, bool) else f"{known.help} (default: {shown})"
    if known.kind is bool:
        if default:  # --no-...
            return {"action": "store_true", "default": None, "help": text}
        return {"action": argparse.BooleanOptionalAction, "default": None, "help": text}
    if known.kind is dict:
        return {"action": "append", "default": [], "metavar": known.metavar, "help": text}
    metavar = known.metavar or (f"{{{','.join(known.choices)}}}" if known.choices else name.upper())
    kind: Any = seed if known.kind is int and known.most > 2**63 else known.kind
    return {"type": kind, "default": None, "metavar": metavar, "help": text.replace("%", "%%")}


def given(args: argparse.Namespace, kind: type[Settings]) -> dict[str, Any]:
    """The settings of a class that were given as options."""
    found: dict[str, Any] = {}
    for name, known in table_of(kind).items():
        flag = flag_of(name, known)
        value = None if flag is None else getattr(args, flag.lstrip("-").replace("-", "_"), None)
        if value is None or value == []:
            continue
        if known.kind is dict:
            value = options_from(flag or "", value)
        elif known.kind is bool and defaults_of(kind)[name]:
            value = False
        elif name == "schedule" and value != "all":
            value = _sizes(value)
        found[name] = value
    return found


def _sizes(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        reason = "give whole numbers, such as 16,32,64,128,256, or all"
        raise SettingError("schedule", text, reason) from None


def options_from(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Options given as NAME=VALUE, by name."""
    options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UserError(f"{flag} {text}: give NAME=VALUE")
        if name in options:
            raise UserError(f"{flag} {text}: {name} was given before")
        options[name] = value
    return options


def add_threads(group: Container) -> None:
    group.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads (default: all cores)")


def add_utility(parser: argparse.ArgumentParser) -> None:
    """`--utility` and its settings."""
    group = parser.add_argument_group("utility")
    names = f"{' | '.join(NAMED)} | {FORMS} (default: chrf++)"
    group.add_argument("--utility", default="chrf++", metavar="NAME", help=names)
    group.add_argument(
        "--utility-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the utility, such as tokenize=char of bleu, url=URL, model=NAME, prompt=TEXT (or @FILE) and "
        "answers=FILE of judge; may be repeated",
    )
    add_threads(group)
    add_settings(group, Network)


def utility_settings(args: argparse.Namespace) -> UtilitySettings:
    """The utility that was asked for, checked."""
    from mbrace.jobs.decode import UtilitySettings

    name, network = args.utility, given(args, Network)
    options = options_from("--utility-option", args.utility_option)
    for option, text in options.items():
        if option.rpartition(".")[2] == "prompt" and text.startswith("@"):
            options[option] = _read_prompt(text[1:])
    check_whole("threads", args.threads, least=0, most=MOST_THREADS)
    check_utility(name, options, model=network.get("model") if uses_model(name) else None)
    if not uses_model(name):
        has_model = hasattr(args, "model") and getattr(args, "runtimes", True)
        for option in network:
            if option in ("model", "batch_tokens") or not has_model:  # others are also for the command's own model
                neural = ", ".join(filter(uses_model, NAMED))
                raise SettingError(option, ..., f"only valid with --utility {neural}, not {name}", group="network")
        network = {}
    return UtilitySettings(name, Network(**network), tuple(options.items()))


def _read_prompt(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read ({error}); give a text file"
        raise SettingError("prompt", f"@{path}", reason, group="utility") from error


def utility_from(args: argparse.Namespace) -> Utility:
    """The utility that was asked for, loaded."""
    return utility_settings(args).load(args.threads)


def report_truncated(truncated: int) -> None:
    """Say on stderr how many strings were over a utility's length limit, if any were."""
    if truncated:
        were = "was" if truncated == 1 else "were"
        say(f"{counted(truncated, 'string')} {were} over the utility's length limit and cut there")


def cost_text(cost: Cost) -> str:
    """The requests of a utility to a server, in words."""
    tokens = f"{cost.prompt_tokens:,} + {counted(cost.completion_tokens, 'token')}"
    return f"{counted(cost.requests, 'request')} ({tokens}), {counted(cost.kept_answers, 'answer')} kept from before"


def report_cost(cost: Cost) -> None:
    """Say on stderr what a utility requested from a server, if it uses one."""
    if cost != Cost():
        say(cost_text(cost))


def add_race(
    parser: argparse.ArgumentParser,
    *,
    preset: str = "paper",
    by_preset: Collection[str] = (),
    without: Collection[str] = (),
) -> None:
    """`--preset`, and the settings of a race."""
    group = parser.add_argument_group("race")
    group.add_argument(
        "--preset",
        default=preset,
        metavar="{paper,fast}",
        help=f"paper: the paper's settings; fast: faster ones (docs/options.md). Explicit options take precedence "
        f"(default: {preset})",
    )
    add_settings(group, Race, without=without, by_preset=by_preset)


def add_model(
    parser: argparse.ArgumentParser,
    *,
    title: str = "model",
    without: Collection[str] = (),
    by_preset: Collection[str] = (),
    **defaults: Any,
) -> None:
    """`--model` or `--server`, and how they sample; `defaults` are those of the command."""
    group = parser.add_argument_group(title)
    taken = {name for name in ("device", "dtype") if f"--{name}" in parser._option_string_actions}
    # options of utilities have those that are taken
    add_settings(group, ModelSettings, without={*taken, *without}, **defaults)
    rare = [name for name, known in table_of(ModelSettings).items() if known.group == "server"]
    group.add_argument(
        "--server-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"option of the server: {', '.join(rare)}; may be repeated",
    )
    add_settings(parser.add_argument_group("candidates"), Sampling, without=without, by_preset=by_preset)


def model_settings(args: argparse.Namespace, **defaults: Any) -> ModelSettings:
    """The model or the server that was asked for; `defaults` are those of the command."""
    found = defaults | given(args, ModelSettings)
    is_served = found.get("server") is not None
    if is_served and hasattr(args, "utility"):  # then they are the utility's
        found = {name: value for name, value in found.items() if name not in ("device", "dtype")}
    table = table_of(ModelSettings)
    rare = [name for name, known in table.items() if known.group == "server"]
    if args.server is None and any(
        word.partition("=")[0] == "--server-model" for word in getattr(args, "arguments", ())
    ):
        raise UserError("--server-model: only valid with --server; --model runs a model here")
    if args.server_option and not is_served:
        raise UserError("--server-option: only valid with --server")
    for name, text in options_from("--server-option", args.server_option).items():
        if name not in rare:
            raise SettingError(name, ..., f"no option of a server{nearest(name, rare)}", group="server")
        found[name] = typed("server", name, text, table[name].kind)
    return ModelSettings(**found)


def race_settings(args: argparse.Namespace, command: str) -> tuple[Race, Sampling]:
    """How hypotheses race and how candidates are made, by the options given and the preset."""
    race, sampling = given(args, Race), given(args, Sampling)
    Race(**race), Sampling(**sampling)  # refuses what was given, before a preset adds to it
    kind = kind_of(args.utility)
    if kind == "encoder" and sampling.get("beam", 0) > MOST:  # more than a forecast takes
        kind = "pair"
    race, sampling = with_preset(args.preset, command, kind, race, sampling)
    return Race(**race), Sampling(**sampling)
