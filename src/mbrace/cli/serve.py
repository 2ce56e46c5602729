"""`mbrace serve`: an OpenAI-compatible endpoint that answers by consensus."""

from __future__ import annotations

import argparse
from typing import Any, cast

from mbrace.cli.answer import add_answering, answering, utility_of_votes
from mbrace.cli.messages import say
from mbrace.errors import UserError, require
from mbrace.utilities.named import uses_model

DEFAULTS = {"concurrency": 64, "retries": 2}  # many requests at a time, and clients that wait


def add(commands: Any) -> None:
    """The options of `mbrace serve`."""
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
    add_answering(parser, without=("nbest", "window", "logprobs"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every option, then serve."""
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
    model, candidates, settings = answering(args, **DEFAULTS)
    check_answering(model, candidates)
    utility = utility_of_votes(args)
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
