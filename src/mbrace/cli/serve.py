"""`mbrace serve`: an OpenAI-compatible endpoint that answers by consensus."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from mbrace.answers import DRAWS
from mbrace.cli.answer import add_answering, model_from, utility_of_votes
from mbrace.cli.messages import say
from mbrace.cli.options import add_utility
from mbrace.errors import UserError, check_whole, require


def add(commands: Any) -> None:
    """The options of `mbrace serve`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="an OpenAI-compatible endpoint that answers by consensus",
        description="Stand in front of any OpenAI-compatible server and answer each request with the draw that agrees "
        "best with the others. MBRACE_SERVE_KEY is the clients' key; without one, only this machine is served.",
    )
    parser.add_argument("-n", type=int, default=DRAWS, metavar="N", help=f"most draws per request ({DRAWS})")
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
    add_answering(parser)
    add_utility(parser)
    parser.set_defaults(run=run, concurrency=64, retries=2)


def run(args: argparse.Namespace) -> int:
    """Check every option, then serve."""
    for module in ("starlette", "uvicorn", "httpx"):
        require(module, extra="serve")
    from mbrace.jobs.decode import UtilitySettings
    from mbrace.serve.run import serve
    from mbrace.servers.local import MODEL
    from mbrace.servers.server import Server
    from mbrace.settings import Network
    from mbrace.utilities.named import NAMED

    check_whole("-n", args.n, least=1)
    if args.model is not None:
        raise UserError("--model: only valid with `mbrace answer`; give a --server")
    model, settings = model_from(args), utility_of_votes(args)
    if model.weighted:
        raise UserError("--logprobs: only valid with `mbrace answer`")
    utilities = {settings.name: settings.load(args.threads)}
    for name in args.allow_utility:
        if name not in NAMED or NAMED[name].server:
            raise UserError(f"--allow-utility {name}: only names such as chrf++ or exact; no functions, no judges")
        utilities.setdefault(
            name, UtilitySettings(name, Network(device=args.device, dtype=args.dtype)).load(args.threads)
        )

    def make_server(chat: bool) -> Server:
        made = replace(model, kind="chat" if chat else "completions", system=model.system if chat else None)
        loaded = made.load(threads=args.threads, seed=args.seed)
        assert isinstance(loaded, Server)
        return loaded

    serve(
        make_server,
        utilities,
        model=model.model or MODEL,
        chat=model.kind == "chat",
        most_draws=args.n,
        regret=args.regret,
        confidence=args.confidence,
        host=args.host,
        port=args.port,
        public_host=args.public_host,
        open_requests=args.open_requests,
        drain=args.drain,
        say=say,
    )
    return 0
