"""Options of the commands that ask a model or a server: which one, and how it samples."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

from mbrace.errors import UserError, check_number, check_whole, require

if TYPE_CHECKING:
    from mbrace.jobs.model_settings import ModelSettings
    from mbrace.models.hypotheses import SamplingSettings


SERVER_OPTIONS = (
    "server_model",
    "server_kind",
    "concurrency",
    "samples_per_request",
    "max_tokens",
    "system_prompt",
    "timeout",
    "retries",
)


class Given(argparse.Action):
    """Stores a value, and notes in `given` that the user gave it: such an option may be refused, a default never is."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Store the value, and note the option."""
        setattr(namespace, self.dest, values)
        namespace.given = {**getattr(namespace, "given", {}), self.dest: self.option_strings[0]}


class Renamed(argparse.Action):
    """The old name of an option, refused with a message that gives the new one, `const`."""

    def __call__(self, *_: Any) -> NoReturn:
        """Refuse the old name."""
        raise UserError(f"{self.option_strings[0]}: is called {self.const} now")


def add_model(parser: argparse.ArgumentParser) -> None:
    """`--model` or `--server`, and what they need."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model", action=Given, default="bundled", metavar="M", help="folder or name (default: the bundled translator)"
    )
    group.add_argument(
        "--kind",
        action=Given,
        choices=["seq2seq", "causal"],
        default="seq2seq",
        help="seq2seq (default), or causal: decoder-only, with --prompt",
    )
    group.add_argument("--source-language", action=Given, metavar="CODE", help="the tokenizer's code, such as deu_Latn")
    group.add_argument("--target-language", action=Given, metavar="CODE", help="like --source-language")
    group.add_argument(
        "--source-prefix", action=Given, default="", metavar="TEXT", help="text before each source (for T5)"
    )
    group.add_argument(
        "--prompt", action=Given, metavar="TEXT", help="for --kind causal or --server, with {source} in it"
    )
    group.add_argument("--stop", action=Given, metavar="TEXT", help="outputs end before this text")
    if "--device" not in parser._option_string_actions:  # the options of utilities have these two as well
        group.add_argument("--device", action=Given, metavar="NAME", help="cuda or cpu")
        group.add_argument("--dtype", action=Given, choices=["float32", "bfloat16", "float16"])
    group.add_argument("--server", metavar="URL", help="an OpenAI-compatible server, instead of --model")
    group.add_argument("--server-model", action=Given, metavar="NAME", help="the model's name on the server")
    group.add_argument(
        "--server-kind", action=Given, choices=["chat", "completions"], default="chat", help="which endpoint (chat)"
    )
    group.add_argument(
        "--server-beam-search", action="store_true", help="hypotheses by beam search, on vLLM only (default: samples)"
    )
    number: dict[str, Any] = {"action": Given, "type": int, "metavar": "N"}
    group.add_argument("--concurrency", **number, default=8, help="requests to the server at the same time (8)")
    group.add_argument("--samples-per-request", **number, default=16, help="samples asked for in one request (16)")
    group.add_argument("--max-tokens", **number, default=512, help="maximum tokens per sample from the server (512)")
    group.add_argument("--system-prompt", action=Given, metavar="TEXT", help="system message to the server (none)")
    group.add_argument(
        "--timeout", action=Given, type=float, default=120.0, metavar="S", help="seconds the server may take (120)"
    )
    group.add_argument("--retries", **number, default=6, help="how often a failed request is tried again (6)")


def add_sampling(parser: argparse.ArgumentParser, *, once: str = "--length-alpha", by_preset: str = "") -> None:
    """How hypotheses and pseudo-references are made; `once` is the old name of --length-penalty, and `by_preset` says
    that a preset may choose other defaults."""
    group = parser.add_argument_group("candidates")
    group.add_argument("--beam", type=int, metavar="K", help=f"hypotheses per source, by beam search (256{by_preset})")
    group.add_argument(
        "--length-penalty",
        action=Given,
        type=float,
        default=1.0,
        metavar="X",
        help="beam scores are log p / length ** X (1.0)",
    )
    group.add_argument(once, action=Renamed, const="--length-penalty", help=argparse.SUPPRESS)
    group.add_argument(
        "--epsilon",
        action=Given,
        type=float,
        default=0.02,
        help="epsilon sampling's threshold (0.02, but 0 with the next three, and with --server; 0: no threshold)",
    )
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K most probable tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens with this total")
    group.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="least probability, as a share of the best token's",
    )
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="sampling temperature (1.0)")
    group.add_argument(
        "--sampling",
        action=Given,
        choices=["independent", "arithmetic"],
        help="arithmetic: draws are spread evenly over the model's distribution, so fewer are needed (independent)",
    )


def check_model(args: argparse.Namespace) -> None:
    """Refuse options of `add_model` and `add_sampling` that make no sense together, before a model is loaded."""
    given: dict[str, str] = getattr(args, "given", {})

    def refuse(names: tuple[str, ...], home: str) -> None:
        for name in names:
            if name in given:
                raise UserError(f"{given[name]}: only valid with {home}")

    languages = ("source_language", "target_language", "source_prefix")
    if args.server is not None:
        if args.server_model is None:
            raise UserError("--server: needs --server-model, the model's name there")
        if "model" in given:
            raise UserError("--model and --server: give one of them")
        ours = ("kind", *languages, "device", "dtype", "sampling")
        refuse(ours, "--model; not sent to a server")
        check_number("epsilon", args.epsilon, least=0.0, most=1.0)
        for option, least in (("concurrency", 1), ("samples-per-request", 1), ("retries", 0)):
            check_whole(f"--{option}", getattr(args, option.replace("-", "_")), least=least)
        if not args.server_beam_search:
            refuse(("length_penalty",), "--model, or with --server-beam-search")
        if args.server_kind == "completions":
            refuse(("system_prompt",), "--server-kind chat")
        return
    refuse(SERVER_OPTIONS, "--server")
    if args.server_beam_search:
        raise UserError("--server-beam-search: only valid with --server; a model's hypotheses are always a beam's")
    if args.kind == "causal":
        if args.model == "bundled" or args.prompt is None:
            raise UserError("--kind causal: needs --model and --prompt, with {source} where the source goes")
        refuse(languages, "--kind seq2seq")
    else:
        refuse(("prompt", "stop"), "--kind causal or --server")
    if args.model == "bundled":
        refuse(languages, "--model; the bundled translator reads German and writes English")
    require("torch", extra="models")
    from mbrace.models.next_ids import Truncation

    Truncation(_epsilon(args), args.temperature, args.top_k, args.top_p, args.min_p)


def model_settings(args: argparse.Namespace) -> ModelSettings:
    """The model or the server that was asked for."""
    from mbrace.jobs.model_settings import ModelSettings

    epsilon = args.epsilon if args.server is not None and "epsilon" in getattr(args, "given", {}) else None
    names = [setting.name for setting in fields(ModelSettings) if setting.name != "server_epsilon"]
    return ModelSettings(**{name: getattr(args, name) for name in names}, server_epsilon=epsilon or None)


def sampling_settings(args: argparse.Namespace) -> SamplingSettings:
    """How candidates are to be made."""
    from mbrace.models.hypotheses import SamplingSettings

    beam = 256 if args.beam is None else args.beam
    sampling, tops = args.sampling or "independent", (args.top_k, args.top_p, args.min_p)
    return SamplingSettings(beam, args.length_penalty, _epsilon(args), args.temperature, sampling, *tops)


def _epsilon(args: argparse.Namespace) -> float:
    """The threshold of epsilon sampling: by default none next to top-k, top-p or min-p sampling."""
    others = any(value is not None for value in (args.top_k, args.top_p, args.min_p))
    return 0.0 if others and "epsilon" not in getattr(args, "given", {}) else args.epsilon
