"""JSON over HTTP to a server that may be busy, slow or broken: retries where that can help, or a clear error.

One event loop in a thread of its own sends all requests of a client, so that a request can be cancelled at any moment:
by its deadline, by Ctrl-C, or because nobody wants its answer any more.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import nullcontext, suppress
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from mbrace.errors import ServiceError, UserError, require
from mbrace.servers.failures import Failure, RequestError, StatusError, UselessError, message_of, retry_after, status_in
from mbrace.settings import Connection

Answer = TypeVar("Answer")
FIRST_WAIT = 0.5  # seconds before the second try; doubled for each further try
LONGEST_WAIT = 60.0  # seconds
LONGEST_ASKED_WAIT = 300.0  # seconds; a server that asks for a longer wait (Retry-After) is tried again after this one
ANNOUNCED_WAIT = 1.0  # seconds; shorter waits are not worth a message
ANNOUNCE_EVERY = 5.0  # seconds between messages, since many requests may wait for one server
MOST_BYTES = 64 << 20  # of an answer
MOST_PARTS = 1 << 22  # of its lists and objects: empty ones take 30 times their bytes
MOST_WORDS = 300  # characters of a reason
ENDPOINTS = ("/chat/completions", "/completions", "/embeddings", "/models")
HIDDEN = "***"
SHORTEST = 4  # characters; a shorter secret could not be hidden without garbling messages

log = logging.getLogger("mbrace.servers")


class Client:
    """Posts to one endpoint of a server, at most `concurrency` requests at a time, with retries.

    `url` is the server's, with or without /v1 or the endpoint at its end; `api_key` is by default that in
    OPENAI_API_KEY. A try takes at most `timeout` seconds from its first byte to its last. `connection` has these
    numbers.
    """

    def __init__(self, url: str, endpoint: str, connection: Connection, *, api_key: str | None) -> None:
        self._httpx = require("httpx", extra="serve")
        api_key = os.environ.get("OPENAI_API_KEY") if api_key is None else api_key
        self.url = hide_credentials(url)  # as messages show it
        try:
            self._secrets = secrets_of(url, api_key)
            self._root = _root(url)
            address = self._at(f"/v1{endpoint}")
            if not url.startswith(("http://", "https://")) or not self._httpx.URL(address).host:
                raise ValueError
        except (ValueError, self._httpx.InvalidURL):
            message = f"{self.url}: not a URL of a server; give one such as http://localhost:8000/v1"
            raise UserError(message) from None
        self.url, self._endpoint = hide_credentials(address), f"/v1{endpoint}"
        self._retries, self._timeout, self._concurrency = connection.retries, connection.timeout, connection.concurrency
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._not_before = 0.0  # when requests may be sent again: a Retry-After applies to all of them
        self._announced = -math.inf
        self._lock = threading.Lock()
        self._interrupted = self._is_finishing = self._has_connected = False
        self._running: _Loop | None = None

    def start(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        """Run a coroutine, which may use `ask`, in the client's event loop. Cancelling the future cancels it."""
        with self._lock:
            if self._running is None or self._running.pid != os.getpid():
                limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=self._concurrency)
                make = lambda: self._httpx.AsyncClient(  # noqa: E731
                    timeout=self._timeout, limits=limits, headers=self._headers
                )
                self._running = _Loop(make, self._concurrency)
        return self._running.submit(self._guarded(work))

    def gather(self, works: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
        """The results of coroutines that run at the same time. After a failure nothing more is requested, and answers
        under way are waited for: they are paid for. Ctrl-C waits for nothing."""

        async def ending_all(work: Coroutine[Any, Any, Answer]) -> Answer:
            try:
                return await work
            except BaseException:
                self._is_finishing = True  # before the next request begins
                raise

        futures = [self.start(ending_all(work)) for work in works]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future.done():
                    future.result()
            return [future.result() for future in futures]
        except KeyboardInterrupt:
            for future in futures:
                future.cancel()
            raise
        except BaseException:
            self.finish(futures)
            raise

    async def ask(
        self, body: Any, read: Callable[[Any], Answer], *, before: Callable[[], None] = lambda: None
    ) -> Answer:
        """Post `body`; `read` turns the JSON answer into the result. If it cannot (ValueError, KeyError, ...), the
        answer was cut off or garbled, and the request is sent again. ServiceError if other requests would fail too,
        RequestError if that is not clear. `before` is called when the request's turn has come."""
        failures = 0
        assert self._running is not None
        async with self._running.slots:
            if self._is_finishing:
                raise ServiceError(f"{self.url}: not requested, as another request failed")
            before()
            while True:
                await self._pause()
                try:
                    return await self._try(body, read, self._endpoint)
                except Failure as failure:
                    failures += 1
                    if failures > self._retries or not failure.is_retried or self._is_finishing:
                        raise self._error(failure, failures) from None
                    await self._back_off(failures, failure)

    async def ask_once(self, body: Any, read: Callable[[Any], Answer], path: str | None = None) -> Answer | None:
        """What `read` makes of the answer of one try; None if it fails. One at another path, which costs nothing, waits
        for no other request."""
        assert self._running is not None
        async with nullcontext() if path else self._running.slots:
            with suppress(Failure):
                return await self._try(body, read, path or self._endpoint)
        return None

    def finish(self, requested: Iterable[Future[Any]]) -> None:
        """Start and repeat no request, and wait for those under way: their answers are paid for."""
        self._is_finishing = True
        try:
            wait(list(requested), timeout=self._timeout)
        finally:
            self._is_finishing = False

    def interrupt(self) -> None:
        """End all requests and waits, now and in future, with a ServiceError."""
        self._interrupted = True
        if self._running is not None:
            self._running.cancel_all()

    def close(self) -> None:
        """End all requests and close the connections."""
        self.interrupt()
        if self._running is not None:
            self._running.close()

    async def _guarded(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Work whose cancellation by `interrupt` is a ServiceError."""
        message = f"{self.url}: interrupted while waiting for an answer"
        if self._interrupted:
            work.close()
            raise ServiceError(message)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            raise ServiceError(message) from None

    async def _try(self, body: Any, read: Callable[[Any], Answer], path: str) -> Answer:
        """What `read` makes of the answer of one try; or Failure."""
        httpx = self._httpx
        try:
            status, headers, content = await asyncio.wait_for(self._exchange(body, path), self._timeout)
        except asyncio.TimeoutError:
            raise Failure(f"no whole answer within {self._timeout:g} s") from None
        except UselessError as error:
            raise Failure(str(error), final=True) from None
        except httpx.RequestError as error:  # refused and cut connections
            if isinstance(error, httpx.ConnectError) and not self._has_connected:
                words = self._hide(f"nothing answers there ({error}); is the server running?")
                raise Failure(words, final=True) from None
            words = f"{type(error).__name__} ({error})" if str(error) else type(error).__name__
            may_be_this_one = isinstance(error, (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError))
            raise Failure(self._hide(words), unreachable=not may_be_this_one) from None
        after = headers.get("retry-after")
        try:
            found, unreadable = json.loads(content), ""
        except (ValueError, RecursionError) as error:
            found, unreadable = None, str(error)
        if status != 200:
            words = message_of(content.decode("utf-8", "replace") if found is None else found)
            raise Failure(self._hide(words), status, after)
        if isinstance(found, dict) and found.get("error") and not found.get("choices"):  # an error with status 200
            raise Failure(self._hide(f"the server says: {message_of(found)}"), status_in(found), after)
        try:
            if unreadable:
                raise ValueError(unreadable)
            return read(found)
        except UselessError as error:
            raise Failure(self._hide(str(error)), final=True) from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise Failure(self._hide(f"an answer that cannot be read ({error})"), retry_after=after) from None

    def _error(self, failure: Failure, tries: int) -> UserError:
        """What a request ends with after its last try."""
        last = f"gave up after {tries} tries; the last: " if failure.is_retried else ""
        message = f"{self.url}: {last}{failure}"
        if failure.is_of_service:
            return StatusError(message, failure.status)
        return RequestError(message, refused=not failure.is_retried, status=failure.status)

    async def _exchange(self, body: Any, path: str) -> tuple[int, Any, bytes]:
        """Status, headers and content of one answer. Nothing is kept of an answer that is too large."""
        assert self._running is not None
        method, sent = "GET", None
        if body is not None:  # half a surrogate pair cannot be sent
            method, sent = (
                "POST",
                json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"),
            )
        parts, size = [], 0
        async with self._running.client.stream(method, self._at(path), content=sent) as response:
            self._has_connected = True
            packed = response.headers.get("content-encoding", "identity")
            if packed.lower() != "identity":  # a small part of it may unpack to any size
                raise UselessError(f"an answer packed as {packed[:MOST_WORDS]}, which was not asked for")
            async for part in response.aiter_raw():
                size += len(part)
                if size > MOST_BYTES:
                    raise UselessError(f"an answer of more than {MOST_BYTES >> 20} MiB")
                parts.append(part)
        content = b"".join(parts)
        if content.count(b"[") + content.count(b"{") > MOST_PARTS:
            raise UselessError(f"an answer of more than {MOST_PARTS:,} lists and objects")
        return response.status_code, response.headers, content

    def _at(self, path: str) -> str:
        return str(urlunsplit(self._root._replace(path=self._root.path + path)))

    def _hide(self, text: str) -> str:
        """A reason as it may be told: first without secrets, as half of one would not be found; then shortened."""
        shown = hide(text, self._secrets)[:MOST_WORDS]
        return "".join(letter if letter.isprintable() else "?" for letter in shown)

    async def _pause(self) -> None:
        """Wait until the server accepts requests again."""
        while (seconds := self._not_before - time.monotonic()) > 0:
            await _sleep(seconds)

    async def _back_off(self, failures: int, failure: Failure) -> None:
        """Wait after a failed try, the number `failures`: twice as long each time, with jitter so that requests do not
        return at once. If the server asked for a wait (Retry-After), all of them wait that long."""
        if asked := retry_after(failure.retry_after):
            seconds = min(asked, LONGEST_ASKED_WAIT)
            self._not_before = max(self._not_before, time.monotonic() + seconds)
            more = f"; the server asks for {asked:.0f} s" if asked > seconds else ""
            self._announce(seconds, failures, failure, more)
            return
        seconds = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures - 1, 30)) * random.uniform(0.5, 1.0)
        self._announce(seconds, failures, failure)
        await _sleep(seconds)

    def _announce(self, seconds: float, failures: int, failure: Failure, more: str = "") -> None:
        now = time.monotonic()
        if seconds < ANNOUNCED_WAIT or now < self._announced + ANNOUNCE_EVERY:
            return
        self._announced = now
        tries = f"try {failures + 1} of {self._retries + 1}"
        log.warning("%s: %s; %s in %.0f s%s", self.url, failure, tries, seconds, more)


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


class _Loop:
    """An event loop in a daemon thread, with the connections that belong to it."""

    def __init__(self, make_client: Callable[[], Any], concurrency: int) -> None:
        self.pid = os.getpid()  # threads do not survive a fork
        self._loop = asyncio.new_event_loop()
        self.client, self.slots = make_client(), asyncio.Semaphore(concurrency)
        threading.Thread(target=self._loop.run_forever, name="mbrace-server", daemon=True).start()
        self._end = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self._end.atexit = False

    def submit(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def cancel_all(self) -> None:
        def cancel() -> None:
            for task in asyncio.all_tasks():
                task.cancel()

        if self._end.alive:
            self._loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        async def close() -> None:
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others, timeout=1.0)
            await self.client.aclose()

        if self._end.alive:
            self.submit(close()).result(timeout=5.0)
            self._end()


def hide_credentials(url: str) -> str:
    """The URL without its user, its password and the values of its query, for outputs and messages."""
    shown = re.sub(r"(?<=//)[^/?#]*@", f"{HIDDEN}@", url, count=1)
    shown = re.sub(r"(?<=[?&])([^=&#]*)=[^&#]*", rf"\1={HIDDEN}", shown)
    return re.sub(r"#.*", "", shown)


def secrets_of(url: str, key: str | None) -> tuple[str, ...]:
    """The strings that are secret: the key, and what `hide_credentials` takes out of the URL, however it is encoded."""
    parts = urlsplit(url)
    plain = [value for _, value in parse_qsl(parts.query)]
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    if user:
        login = f"{unquote(user)}:{unquote(password)}"
        plain += [password or user, unquote(password or user), login, base64.b64encode(login.encode()).decode()]
    plain += [key or ""]
    return tuple(sorted({secret for secret in plain if len(secret) >= SHORTEST}, key=len, reverse=True))


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def _root(url: str) -> Any:
    """The server's URL without /v1 or an endpoint at its end; its query stays."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    for endpoint in ENDPOINTS:
        path = path.removesuffix(endpoint)
    return parts._replace(path=path.removesuffix("/v1"), fragment="")
