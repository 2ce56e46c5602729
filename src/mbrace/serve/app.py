"""The endpoint as a Starlette app: who may ask, what is answered, streams, and the page with a live race."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from mbrace.answers import Answer
from mbrace.errors import ServiceError, UserError
from mbrace.serve.engine import Engine
from mbrace.serve.limits import is_served
from mbrace.serve.messages import Asked, BadRequest, asked_from, chunks, reply
from mbrace.servers.failures import RequestError, StatusError

BODY_BYTES = 4 << 20
KEEP_ALIVE = 5.0  # seconds between the comments of a stream
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_STATIC = Path(__file__).parent / "static"

log = logging.getLogger("mbrace")


@dataclass(frozen=True)
class Access:
    """Who may ask: those with the key, by one of these host names."""

    key: str | None = None
    hosts: Collection[str] = ("localhost", "127.0.0.1", "::1")
    any_address: bool = False

    def refusal(self, request: Request) -> Response | None:
        """Why a request is refused; None if it is not."""
        host = request.headers.get("host", "")
        if not is_served(host, self.hosts, any_address=self.any_address):
            return error_reply(421, "this host name is not served here")
        origin = request.headers.get("origin")  # sent by browsers: another site's page may not ask
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return error_reply(403, "requests of other sites' pages are not answered")
        # not request.url, which starlette makes of what the client says is its host
        if self.key is not None and request.scope["path"] not in ("/", "/health"):
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            good = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.key.encode())
            if not good:
                return error_reply(401, "give the key of MBRACE_SERVE_KEY as a bearer token")
        return None


def error_reply(status: int, message: str, field: str | None = None, **headers: str) -> JSONResponse:
    """An error in OpenAI's form."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": message, "type": kind, "param": field, "code": None}
    return JSONResponse({"error": error}, status, headers)


def create_app(engine: Engine, access: Access, *, model: str) -> Starlette:
    """The ASGI application that answers by races of `engine`."""
    site = _Site(engine, model)

    def guarded(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            response = access.refusal(request)
            if response is None:
                try:
                    response = await handle(request)
                except BadRequest as error:
                    response = error_reply(error.status, str(error), error.field)
                except ClientDisconnect:
                    response = Response(status_code=499)
                except Exception as error:
                    response = error_reply(*explained(error))
            response.headers.update(HEADERS)
            if not isinstance(response, _Stream):
                site.count(request, response.status_code)
            return response

        return answer

    routes = [
        Route("/", guarded(site.page), methods=["GET"]),
        Route("/health", guarded(site.health), methods=["GET"]),
        Route("/metrics", guarded(site.metrics), methods=["GET"]),
        Route("/v1/models", guarded(site.models), methods=["GET"]),
        Route("/v1/chat/completions", guarded(site.chat), methods=["POST"]),
        Route("/v1/completions", guarded(site.completions), methods=["POST"]),
        Route("/race", guarded(site.race), methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC, packages=[("mbrace.experiments", "page")])),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_page})


async def _no_such_page(request: Request, error: Exception) -> Response:
    """An unknown path or method."""
    assert isinstance(error, HTTPException)
    return error_reply(error.status_code, f"{request.method} {request.scope['path'][:100]}: {error.detail.lower()}")


class _Site:
    """One method per path."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.engine, self.model = engine, model

    def count(self, request: Request, status: int) -> None:
        """Note how a request ended."""
        self.engine.metrics.add(f'requests_total{{path="{request.scope["path"]}",status="{status}"}}')

    async def page(self, request: Request) -> Response:
        return Response((_STATIC / "race.html").read_bytes(), media_type="text/html; charset=utf-8")

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "open_requests": len(self.engine.open)})

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.engine.metrics_text(), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        found = {"id": self.model, "object": "model", "created": 0, "owned_by": "mbrace"}
        return JSONResponse({"object": "list", "data": [found]})

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, chat=True)

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, chat=False)

    async def race(self, request: Request) -> Response:
        """The steps of a race as lines of JSON, for the page."""
        asked = await self._asked(request, chat=True)
        steps: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()  # None: there are no more
        loop = asyncio.get_running_loop()

        def tell(step: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(steps.put_nowait, step)

        task = self._start(asked, tell)
        task.add_done_callback(lambda _: steps.put_nowait(None))

        async def lines() -> AsyncIterator[str]:
            while (step := await steps.get()) is not None:
                yield json.dumps(step) + "\n"
            try:
                yield json.dumps({"answer": reply(asked, result_of(task), self.model)}) + "\n"
            except Exception as error:
                yield json.dumps({"error": explained(error)[1]}) + "\n"

        return _Stream(lines(), "application/x-ndjson", task, partial(self.count, request))

    async def _asked(self, request: Request, *, chat: bool) -> Asked:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES:
                raise BadRequest(f"the body is larger than {BODY_BYTES >> 20} MiB", status=413)
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise BadRequest("the body is not JSON") from None
        engine = self.engine
        return asked_from(
            found, chat=chat, model=self.model, settings=engine.settings, utilities=tuple(engine.utilities)
        )

    def _start(self, asked: Asked, tell: Callable[[dict[str, Any]], None] | None = None) -> asyncio.Task[Answer]:
        """Begin a race, which counts as an open request until it has ended."""
        engine = self.engine
        if len(engine.open) >= engine.open_requests:
            raise BadRequest(f"{engine.open_requests} requests are open; try again soon", status=429)
        task = asyncio.create_task(
            engine.answer(asked.prompt, asked.settings, chat=asked.chat, utility=asked.utility, tell=tell)
        )
        engine.open.add(task)
        task.add_done_callback(engine.open.discard)
        return task

    async def _answer(self, request: Request, *, chat: bool) -> Response:
        asked = await self._asked(request, chat=chat)
        task = self._start(asked)
        # the status of a stream is sent before its answer: it is that of the race, if that fails soon
        if not await _is_there(request, task, timeout=KEEP_ALIVE if asked.stream else None):
            return Response(status_code=499)
        if not asked.stream:  # half a surrogate pair stays an escape
            return Response(json.dumps(reply(asked, result_of(task), self.model)), media_type="application/json")
        if task.done():
            result_of(task)
        return _Stream(self._parts(asked, task), "text/event-stream", task, partial(self.count, request))

    async def _parts(self, asked: Asked, task: asyncio.Task[Answer]) -> AsyncIterator[str]:
        """Comments while the race is open, then the answer."""
        while not task.done():
            yield ": the race is open\n\n"
            await asyncio.wait({task}, timeout=KEEP_ALIVE)
        try:
            whole = reply(asked, result_of(task), self.model)
        except Exception as error:
            status, message = explained(error)
            found = {"error": {"message": message, "type": "server_error", "code": status}}
            yield f"data: {json.dumps(found)}\n\n"
            return
        for part in chunks(asked, whole):
            yield f"data: {json.dumps(part)}\n\n"
        yield "data: [DONE]\n\n"


class _Stream(StreamingResponse):
    """A stream, which is counted by the end of its race, as its status is sent before; if the client goes away, the
    race is cancelled."""

    def __init__(
        self, parts: AsyncIterator[str], kind: str, task: asyncio.Task[Answer], count: Callable[[int], None]
    ) -> None:
        super().__init__(parts, media_type=kind)
        self._task, self._count = task, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._task.cancel()
            self._count(status_of(self._task))


async def _is_there(request: Request, task: asyncio.Task[Answer], *, timeout: float | None) -> bool:
    """Wait for a race, at most `timeout` seconds; False if the client goes away, which cancels it."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.create_task(gone())
    try:
        await asyncio.wait({task, leaving}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        leaving.cancel()
    if leaving.done() and not leaving.cancelled() and not task.done():
        task.cancel()
        return False
    return True


def result_of(task: asyncio.Task[Answer]) -> Answer:
    """The answer of a race that has ended; one that was cancelled had no time left."""
    if task.cancelled():
        raise BadRequest("the endpoint is being shut down; ask again", status=503)
    return task.result()


def status_of(task: asyncio.Task[Answer]) -> int:
    """How a race has ended; 499 if it is open."""
    try:
        return 200 if task.done() and result_of(task) else 499
    except Exception as error:
        return explained(error)[0]


def explained(error: Exception) -> tuple[int, str]:
    """The status and the message of an error; an upstream server's status is kept, and its address is not told."""
    if isinstance(error, BadRequest):
        return error.status, str(error)
    status = error.status if isinstance(error, RequestError | StatusError) else 0
    if isinstance(error, ServiceError | RequestError):
        words = re.sub(r"https?://\S+", "the server", re.sub(r"^https?://\S+: ", "", str(error)))
        return status if 400 <= status < 600 else 502, f"upstream: {words}"
    if isinstance(error, UserError):  # none of the draws could be used
        return 422, str(error).partition(": ")[2] or str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]  # its message might hold a prompt
    log.warning("%s in %s, line %d", type(error).__name__, place.filename, place.lineno or 0)
    return 500, "the race failed; the log says why"
