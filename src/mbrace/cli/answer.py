"""`mbrace answer`: prompts in, the consensus of a model's answers out; `mbrace serve`: the same as an endpoint."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from mbrace.answers import Answering
from mbrace.cli.messages import say
from mbrace.cli.options import add_model, add_settings, add_utility, given, model_settings, utility_settings
from mbrace.cli.runs import (
    add_cluster,
    add_resume,
    check_run,
    run_here,
    run_on_cluster,
)
from mbrace.errors import UTILITY, SettingError, UserError, require
from mbrace.settings import LOCAL, LOCAL_MODEL, ModelSettings, Sampling
from mbrace.utilities.mixture import parts_of
from mbrace.utilities.named import uses_model

if TYPE_CHECKING:
    from mbrace.jobs.answer import AnswerJob
    from mbrace.jobs.decode import UtilitySettings


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "answer",
        help="answer prompts by the consensus of a language model's draws",
        description="Draw answers to each prompt while the race between them is open, and write the one that agrees "
        "best with the others (self-consistency, best of n by minimum Bayes risk).",
    )
    parser.add_argument("prompts", metavar="PROMPTS", help="one prompt per line, or .jsonl with `prompt` or `messages`")
    parser.add_argument("-o", "--output", default="-", metavar="OUT.jsonl", help="JSON Lines; - is stdout")
    add_resume(parser)
    parser.add_argument("--save-draws", metavar="FILE", help="append each paid draw to FILE, which `decode` reads too")
    parser.add_argument(
        "--max-cost-tokens", type=int, metavar="N", help="stop drawing before tokens in and out may exceed N"
    )
    add_answering(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def add_answering(parser: argparse.ArgumentParser, *, without: Collection[str] = (), **defaults: Any) -> None:
    """When a race is over, its utility, and what answers; `mbrace serve` has them too."""
    from mbrace.jobs.answer import NOT_FOR_ANSWERS

    add_settings(parser.add_argument_group("race"), Answering, without=without)
    add_utility(parser)
    parser.add_argument("--judge-budget", type=int, metavar="N", help="the most requests of --utility judge")
    title = "model (default: SmolLM2 by llama.cpp in this process, with mbrace[llm])"
    add_model(parser, title=title, without=NOT_FOR_ANSWERS, model=LOCAL_MODEL, **defaults)


def run(args: argparse.Namespace) -> int:
    from mbrace.io.output import OutputFiles
    from mbrace.io.reading import count_lines
    from mbrace.jobs.answer import bound
    from mbrace.jobs.run import items_of

    check_run(args)
    job = job_from(args)
    if args.ray is not None:
        if args.save_draws is not None or args.max_cost_tokens is not None:
            raise UserError("--save-draws and --max-cost-tokens: not with --ray, whose workers do not share them")
        say(bound(job, None))
        return run_on_cluster(job, [args.prompts], args)
    items = items_of(job, args.prompts, args.output)
    if not (args.resume or args.force):
        OutputFiles(args.output).refuse_existing()
    can_count = os.path.isfile(args.prompts) and not args.prompts.endswith(".parquet")
    say(bound(job, count_lines(args.prompts) if can_count else None))
    return run_here(job, items, args)


def job_from(args: argparse.Namespace) -> AnswerJob:
    from mbrace.jobs.answer import AnswerJob

    model, candidates, settings = answering(args)
    return AnswerJob(model, utility_of_answers(args), settings, candidates, args.save_draws, args.max_cost_tokens)


def answering(args: argparse.Namespace, **defaults: Any) -> tuple[ModelSettings, Sampling, Answering]:
    """What answers, how it samples and how its answers race; `defaults` are those of the command for the server."""
    from mbrace.jobs.answer import PROMPT

    if args.model == "bundled":
        raise UserError(f"--model bundled: a translator; leave it out for {LOCAL_MODEL}, or name a language model")
    if args.server is None and args.model is None:
        defaults["server"] = LOCAL
    model = model_settings(args, prompt=PROMPT, **defaults)
    return model, Sampling(**given(args, Sampling)), Answering(**given(args, Answering))


def utility_of_answers(args: argparse.Namespace) -> UtilitySettings:
    """The utility that was asked for; `--judge-budget` is an option of a judge."""
    if args.judge_budget is None:
        return utility_settings(args)
    if "judge" not in (part for part, _ in parts_of(args.utility)):
        raise SettingError("judge_budget", args.judge_budget, f"only valid with {UTILITY} judge")
    budget = f"{'' if args.utility == 'judge' else 'judge.'}budget={args.judge_budget}"
    return utility_settings(argparse.Namespace(**{**vars(args), "utility_option": [*args.utility_option, budget]}))


# `mbrace serve`

SERVING = {"concurrency": 64, "retries": 2}  # many requests at a time, and clients that wait


def add_serve(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="an OpenAI-compatible endpoint that answers by consensus",
        description="Stand in front of any OpenAI-compatible server and answer each request with the draw that agrees "
        "best with the others. MBRACE_SERVE_KEY is the clients' key; without one, only this machine is served.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, default=8001, metavar="P", help="port to listen on; 0: any free one (8001)")
    parser.add_argument("--public-host", metavar="NAME", help="the host name that clients use, if it is another")
    parser.add_argument("--open-requests", type=int, default=128, metavar="N", help="most open requests (128)")
    parser.add_argument(
        "--drain", type=float, default=30.0, metavar="S", help="seconds for open requests at the end (30)"
    )
    parser.add_argument(
        "--allow-utility", action="append", default=[], metavar="NAME",
        help="a utility that requests may choose by `mbrace.utility`; may be repeated",
    )  # fmt: skip
    add_answering(parser, without=("nbest", "window", "logprobs"), **SERVING)
    parser.set_defaults(run=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    for module in ("starlette", "uvicorn", "httpx"):
        require(module, extra="serve")
    from mbrace.jobs.answer import check_answering, load_source
    from mbrace.jobs.decode import UtilitySettings
    from mbrace.serve.run import check_serving, serve
    from mbrace.servers.server import Server
    from mbrace.settings import Network
    from mbrace.utilities.named import NAMED

    if args.server is None and args.model is not None:
        raise UserError("--model: only valid with --server; `mbrace answer` runs a model here")
    model, candidates, settings = answering(args, **SERVING)
    check_answering(model, candidates)
    utility = utility_of_answers(args)
    for name in args.allow_utility:
        if name not in NAMED or NAMED[name].server:
            raise UserError(f"--allow-utility {name}: only names such as chrf++ or exact; no functions, no judges")
    where = {"host": args.host, "port": args.port, "open_requests": args.open_requests, "drain": args.drain}
    check_serving(**where)
    utilities = {utility.name: utility.load(args.threads)}
    for name in args.allow_utility:
        network = Network(device=args.device, dtype=args.dtype) if uses_model(name) else Network()
        utilities.setdefault(name, UtilitySettings(name, network).load(args.threads))

    def make_server(chat: bool) -> Server:
        kind, system = ("chat", model.system_prompt) if chat else ("completions", None)
        made = model.replace(kind=kind, system_prompt=system)
        return cast(Server, load_source(made, args.threads, candidates, settings))

    serve(
        make_server,
        utilities,
        model=model.model,
        chat=model.kind == "chat",
        settings=settings,
        public_host=args.public_host,
        say=say,
        **where,
    )
    return 0
