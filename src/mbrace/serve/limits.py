"""What all our servers share: where they listen, and limits of uvicorn: open connections, the time a request may take
to arrive, and lines of log.

    uvicorn.Server(limited_config(app, Limits(connections=256, seconds=20)))

A client that opens connections and sends nothing, or a byte per second, cannot keep others out: its connections are
closed in favour of new ones, and after `seconds` in any case.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mbrace.errors import UserError

QUIET = 60.0  # seconds before the same fault is logged again
BACKLOG = 64  # connections accepted before any of them is looked at: few, as each takes a file descriptor


@dataclass(frozen=True)
class Limits:
    """What a server takes from its clients."""

    connections: int = 256  # open at a time
    seconds: float = 20.0  # for a whole request to arrive, headers and body


def limited_config(app: Any, limits: Limits = Limits(), **options: Any) -> uvicorn.Config:
    """The configuration of a server of `app` that keeps the limits; further options are uvicorn's."""
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(found, OneLine) for found in logger.filters):
            logger.addFilter(OneLine())
    fixed = {"http": protocol_of(limits), "ws": "none", "lifespan": "off", "backlog": BACKLOG, "log_config": None}
    quiet = {"access_log": False, "server_header": False}
    return uvicorn.Config(app, **{**quiet, **fixed, **options})


def protocol_of(limits: Limits) -> type[H11Protocol]:
    """uvicorn's protocol with the limits, for the connections of one server."""
    most = min(limits.connections, _descriptors() // 2)
    waiting: dict[Limited, asyncio.TimerHandle] = {}  # whose request has not arrived whole; the oldest first

    class Limited(H11Protocol):
        """A connection, which is closed if its request does not arrive in time, or for a newer one when there are too
        many."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.look()
            if len(self.connections) > most:
                next(iter(waiting)).drop()  # at least this one waits

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.look()

        def connection_lost(self, exc: Exception | None) -> None:
            self.drop()
            super().connection_lost(exc)

        def drop(self) -> None:
            """Close the connection, which no longer counts."""
            if timer := waiting.pop(self, None):
                timer.cancel()
            self.connections.discard(self)
            self.transport.abort()

        def look(self) -> None:
            """Start the clock when a request begins, and stop it when it is there."""
            arrived = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
            if not arrived and self not in waiting:
                waiting[self] = self.loop.call_later(limits.seconds, self.drop)
            elif arrived and self in waiting:
                waiting.pop(self).cancel()

    return Limited


def _descriptors() -> int:
    """How many files and connections this process may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class OneLine(logging.Filter):
    """Log records as one line, without tracebacks, and each fault once in a while only."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record; False if it repeats one."""
        words = record.getMessage().strip().splitlines()[:1]
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            words += [f"{type(error).__name__}: {error}".splitlines()[0]]
        record.msg, record.args, record.exc_info, record.exc_text = ": ".join(words), None, None, None
        now = time.monotonic()
        if now - self.logged.get(record.msg, -QUIET) < QUIET:
            return False
        self.logged = {text: at for text, at in self.logged.items() if now - at < QUIET} | {record.msg: now}
        return True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)  # asyncio turns Nagle's algorithm off only where it is named
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(256)
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror}; try another port") from error
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
