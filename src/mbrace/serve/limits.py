"""What all our servers share: where they listen, and limits of uvicorn: open connections, the time a request may take
to arrive, and lines of log.

    uvicorn.Server(limited_config(app, Limits(connections=256, seconds=20)))

A client that opens connections and sends nothing, or a byte per second, or does not take what it asked for, cannot keep
others out: its connections are closed in favour of new ones, and after `seconds` in any case.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import sys
import time
from collections.abc import Collection
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
    seconds: float = 20.0  # for a whole request to arrive, headers and body, and for an answer to be taken


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
    clocks: dict[Limited, asyncio.TimerHandle | None] = {}  # of all connections, the oldest first; None: stopped

    class Limited(H11Protocol):
        """A connection, which is closed if its request does not arrive in time or its answer is not taken in time, and
        which makes room for a newer one when there are too many, unless it is being answered."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(0)  # so that writing pauses for whatever is not taken
            clocks[self] = None
            self.look()
            if len(clocks) > most:
                next(each for each in clocks if not each.is_answered()).drop()  # at least this one

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.look()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.look()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self.drop()
            super().connection_lost(exc)

        def drop(self) -> None:
            """Close the connection, which no longer counts."""
            self.stop()
            clocks.pop(self, None)
            self.connections.discard(self)
            self.transport.abort()

        def is_answered(self) -> bool:
            """Whether a request has arrived whole, and the client takes what it gets."""
            cycle = self.cycle
            has_arrived = cycle is not None and not cycle.response_complete and not cycle.more_body
            return has_arrived and not self.flow.write_paused

        def look(self) -> None:
            """Start the clock when a request begins, and stop it when it is there."""
            if self.is_answered():
                self.stop()
            elif self in clocks and clocks[self] is None:
                clocks[self] = self.loop.call_later(limits.seconds, self.drop)

        def stop(self) -> None:
            if timer := clocks.get(self):
                timer.cancel()
                clocks[self] = None

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


def is_served(host: str, names: Collection[str], *, any_address: bool) -> bool:
    """Whether a Host header, `name` or `name:port`, is one of our names, or an address where any is enough: a page of
    others reaches us by a name (DNS rebinding), never by an address."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]*)?", host)
    name = "" if found is None else (found[1] or found[2]).lower()
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return any_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
