"""The draws of a window's races on a server: asked for at the same time, counted, cancelled, and within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mbrace.errors import ServiceError, check_whole
from mbrace.records import Record
from mbrace.sampler import Draws, Receipt, Want
from mbrace.servers.chat import Choice

if TYPE_CHECKING:
    from mbrace.servers.server import Server


@dataclass
class Drawn:
    """Choices as they came, and what they cost."""

    choices: Sequence[Choice]
    receipt: Receipt = field(default_factory=Receipt)
    accepts_blank: bool = False

    def __post_init__(self) -> None:
        if not self.accepts_blank:
            cut = sum(choice.is_cut for choice in self.choices)
            blank = sum(not choice.text and not choice.is_cut for choice in self.choices)
            self.receipt = replace(self.receipt, draws=len(self.choices), cut=cut, blank=blank)

    def draws(self, *, logprobs: bool, is_continued: bool) -> Draws:
        """Those that are whole answers, with the whitespace before them if they continue a prompt."""
        usable = [choice for choice in self.choices if choice.is_usable or self.accepts_blank]
        scores = [choice.logprob or 0.0 for choice in usable] if logprobs else None
        unusable = len(self.choices) - len(usable)
        texts = [choice.continuation if is_continued else choice.text for choice in usable]
        return Draws(texts, scores, unusable, receipt=self.receipt)


class ServerDrawer:
    """Draws for one window of records."""

    def __init__(self, server: Server, records: Sequence[Record], stream: str) -> None:
        self._server, self._records, self._stream = server, records, stream
        self._wanted: dict[Want, Future[Drawn]] = {}
        self._is_cancelled = False

    def request(self, wants: Sequence[Want]) -> Sequence[Want]:
        """Request what is wanted, all at the same time; returns the wants."""
        for want in wants:
            if self._is_cancelled:
                self.cancel()  # what was requested meanwhile
                raise ServiceError(f"{self._server.url}: cancelled")
            self._wanted[want] = self._server.submit(self._records[want.sentence], self._stream, want)
        return wants

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        """The draws of each want."""
        return [self.get(want) for want in self.request(wants)]

    def get(self, want: Want) -> Draws:
        """Wait for the draws of one want."""
        try:
            drawn = self._wanted[want].result()
            del self._wanted[want]
        except CancelledError:
            raise ServiceError(f"{self._server.url}: cancelled") from None
        except BaseException as error:
            self._give_up(keep=not isinstance(error, ServiceError))
            raise
        is_continued = getattr(self._records[want.sentence], "is_continued", False)
        return drawn.draws(logprobs=self._server.logprobs, is_continued=is_continued)

    def cancel(self) -> None:
        """Cancel what was requested, and request nothing more; may be called from another thread."""
        self._is_cancelled = True
        for future in list(self._wanted.values()):
            future.cancel()

    def _give_up(self, *, keep: bool) -> None:
        """After a request has failed: keep the others for the next try; if there will be none, save what is paid."""
        if not keep:
            self._server.finish(self._wanted.values())
        for want, future in self._wanted.items():
            if keep:
                self._server.keep(self._records[want.sentence], self._stream, want, future)
        self._wanted.clear()


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
        self.is_spent = False  # whether a request was denied

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
                self.is_spent = self.is_spent or paid < choices
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
