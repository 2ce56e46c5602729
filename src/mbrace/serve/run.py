"""Listens, answers until SIGTERM or Ctrl-C, and then lets open requests finish."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

import uvicorn

from mbrace.answers import Answering
from mbrace.errors import ServiceError, UserError, check_number, check_whole
from mbrace.serve.app import Access, create_app
from mbrace.serve.engine import Engine
from mbrace.serve.limits import Limits, is_loopback, limited_config, listen
from mbrace.servers.server import MOST_RACES, Server
from mbrace.utility import Utility, limit_helpers

KEY = "MBRACE_SERVE_KEY"
REPLIES = 5  # seconds after draining for the replies to requests that were given up


class _Draining(uvicorn.Server):
    """A server that gives open requests some seconds at its end; then they are told that it shuts down."""

    def __init__(self, config: uvicorn.Config, engine: Engine, drain: float) -> None:
        super().__init__(config)
        self._engine, self._drain = engine, drain

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for open requests, and give up those that take too long."""

        def give_up() -> None:
            for task in list(self._engine.open):
                task.cancel()

        asyncio.get_running_loop().call_later(self._drain, give_up)
        await super().shutdown(sockets)


def check_serving(*, host: str, port: int, open_requests: int, drain: float) -> str | None:
    """Refuse settings that make no sense, or that would serve anybody; returns the clients' key."""
    check_whole("open_requests", open_requests, least=1, most=MOST_RACES)
    check_whole("port", port, least=0, most=65535)
    check_number("drain", drain, least=0)
    key = os.environ.get(KEY) or None
    if key is None and not is_loopback(host):
        raise UserError(f"host {host}: others could use this endpoint; set a key in {KEY}, or listen on 127.0.0.1")
    return key


def serve(
    make_server: Callable[[bool], Server],
    utilities: Mapping[str, Utility],
    *,
    model: str,
    settings: Answering,
    chat: bool = True,
    host: str = "127.0.0.1",
    port: int = 8001,
    public_host: str | None = None,
    open_requests: int = 128,
    drain: float = 30.0,
    say: Callable[[str], None] = print,
) -> None:
    """Serve consensus answers of the model `model`; `make_server(chat)` makes the upstream server of an endpoint.

    The first of `utilities` is the default; a request may choose the others. The key comes from MBRACE_SERVE_KEY;
    without one, only loopback is served. `drain` is how many seconds open requests have after SIGTERM.
    """
    key = check_serving(host=host, port=port, open_requests=open_requests, drain=drain)
    limit_helpers(1)  # races are many threads already
    logging.getLogger("mbrace.servers").setLevel(logging.ERROR)  # what a server says of a request may repeat its prompt
    engine = Engine(make_server, utilities, settings, open_requests=open_requests)
    try:
        with listen(host, port) as listener:
            own = {"localhost", "127.0.0.1", "::1", host.lower(), *([public_host.lower()] if public_host else [])}
            access = Access(key, own, any_address=not is_loopback(host))
            shown = f"[{host}]" if ":" in host else host
            say(f"http://{shown}:{listener.getsockname()[1]}/v1 answers for {model}")
            try:
                say(f"upstream {engine.server(chat).url}: {engine.server(chat).abilities().describe()}")
            except ServiceError as error:
                say(f"upstream: {error}; requests will be answered once it is there")
            config = limited_config(
                create_app(engine, access, model=model),
                Limits(connections=4 * open_requests),
                log_level="warning",
                timeout_graceful_shutdown=int(drain) + REPLIES,
            )
            server = _Draining(config, engine, drain)
            try:
                server.run(sockets=[listener])
            except KeyboardInterrupt:  # uvicorn raises it again after finishing the open requests
                pass
    finally:
        engine.close()
