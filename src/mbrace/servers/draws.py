"""The draws of a window's races on a server: asked for at the same time, counted, cancelled, and within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from mbrace.errors import ServiceError, UserError, check_whole
from mbrace.records import Record
from mbrace.sampler import Draws, Want

if TYPE_CHECKING:
    from mbrace.servers.server import Server


class ServerDrawer:
    """Draws for one window of records."""

    def __init__(self, server: Server, records: Sequence[Record], stream: str) -> None:
        self._server, self._records, self._stream = server, records, stream
        self._requested: list[Future[Draws]] = []
        self._is_cancelled = False

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws of each want."""
        return list(self.stream(wants))

    def stream(self, wants: Sequence[Want]) -> Iterator[Draws]:
        """The draws of each want, requested at the same time, as soon as they and those before them have arrived; a
        record that the server cannot answer has a `failure` instead."""
        self._requested = []
        for want in wants:
            self._check()
            record = self._records[want.sentence]
            self._requested.append(self._server.submit(record, self._stream, want.first, want.count))
        for future in self._requested:
            self._check()
            try:
                yield future.result()
            except CancelledError:
                raise ServiceError(f"{self._server.url}: cancelled") from None
            except ServiceError:
                if not all(each.done() for each in self._requested):  # no request of another race waits for that
                    self._server.finish(self._requested)
                raise
            except UserError as error:
                yield Draws([], failure=error)

    def cancel(self) -> None:
        """Cancel what was requested, and request nothing more; may be called from another thread."""
        self._is_cancelled = True
        for future in list(self._requested):
            future.cancel()

    def _check(self) -> None:
        if self._is_cancelled:
            self.cancel()  # what was requested meanwhile
            raise ServiceError(f"{self._server.url}: cancelled")


class Ongoing:
    """A source of answers whose draws can be cancelled from another thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._drawers: list[ServerDrawer] = []
        self._is_cancelled = False

    def start(self, records: Sequence[Record]) -> ServerDrawer:
        """Begin a window of races."""
        drawer = self._server.start(records)
        self._drawers.append(drawer)
        if self._is_cancelled:
            drawer.cancel()
        return drawer

    def cancel(self) -> None:
        """Cancel the requests that are under way, and make no others."""
        self._is_cancelled = True
        for drawer in self._drawers:
            drawer.cancel()


class Budget:
    """The most tokens, in and out, that requests may cost together; None: any number. Used in one event loop."""

    def __init__(self, tokens: int | None) -> None:
        if tokens is not None:
            check_whole("max_cost_tokens", tokens, least=1)
        self.tokens, self.spent = tokens, 0
        self._reserved = 0
        self._settled: asyncio.Event | None = None

    async def take(self, prompt: int, per_choice: int, choices: int) -> int:
        """Reserve as many choices of at most `per_choice` tokens, after a prompt, as there is room for; waits for other
        requests while they may leave some."""
        if self.tokens is None:
            return choices
        while True:
            room = self.tokens - self.spent - self._reserved - prompt
            if room >= choices * per_choice or not self._reserved:
                paid = max(0, min(choices, room // per_choice))
                self._reserved += prompt + paid * per_choice if paid else 0
                return paid
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()

    def settle(self, reserved: int, spent: int) -> None:
        """What a request cost in the end."""
        self.spent += spent
        if self.tokens is not None:
            self._reserved -= reserved
            if self._settled is not None:
                self._settled.set()
                self._settled = None


def most_tokens(body: Mapping[str, Any]) -> int:
    """The most tokens that the prompt of a request may have: one for each byte, and some for the chat template."""
    if "prompt" in body:
        return len(str(body["prompt"]).encode("utf-8", "replace")) + 8
    return sum(len(str(message.get("content")).encode("utf-8", "replace")) + 16 for message in body["messages"]) + 64
