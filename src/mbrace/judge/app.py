"""The web page for raters: a Starlette app of plain forms, and one small script that makes them quicker to use."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mbrace.judge.show import differences, pieces
from mbrace.judge.store import RatingOutcome, Store
from mbrace.serve.limits import is_served

_HERE = Path(__file__).parent
_BODY_BYTES = 64 * 1024  # enough for the comment and a few short fields
_COMMENT = 2_000  # characters
_REQUEST = "[A-Za-z0-9_-]{8,64}"  # the id of a request
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # The token is part of the URL, so no other site may see it. (With "no-referrer" browsers would send Origin: null.)
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "x-robots-tag": "noindex, nofollow",
}


@dataclass(frozen=True)
class Site:
    """The host names and origins that are accepted, and the languages of the texts (for screen readers)."""

    hosts: Collection[str] = ("localhost", "127.0.0.1", "::1")
    any_address: bool = False  # accept any IP address as host: for a server that listens on all interfaces
    origins: Collection[str] = ()  # other origins that forms may come from, such as a proxy that adds TLS
    source_lang: str = ""
    target_lang: str = ""
    instructions: Collection[str] = ()  # paragraphs for the raters


def create_app(store: Store, site: Site | None = None) -> ASGIApp:
    """The ASGI application that serves the raters of `store`."""
    site = site or Site()
    pages = _Pages(store, site)
    routes = [
        Route("/r/{token}", pages.start, methods=["GET"]),
        Route("/r/{token}/rate", pages.show, methods=["GET"]),
        Route("/r/{token}/rate", pages.rate, methods=["POST"]),
        Route("/r/{token}/undo", pages.undo, methods=["POST"]),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]
    return _Gate(Starlette(routes=routes, exception_handlers={HTTPException: pages.refused}), site)


class _Pages:
    """One method per page. What the browser gets depends only on the rater's own turns and names no system."""

    def __init__(self, store: Store, site: Site) -> None:
        self.store, self.site = store, site
        loader = FileSystemLoader(_HERE / "templates")
        self.templates = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )

    async def start(self, request: Request) -> Response:
        rater = self._rater(request)
        turn = await run_in_threadpool(self.store.turn, rater)
        if turn.position:  # the link continues where the rater stopped
            return RedirectResponse(f"/r/{request.path_params['token']}/rate", status_code=303)
        return self._page("start.html", total=turn.total, base=request.url.path, instructions=self.site.instructions)

    async def show(self, request: Request) -> Response:
        rater = self._rater(request)
        turn = await run_in_threadpool(self.store.turn, rater)
        common: dict[str, object] = {
            "base": request.url.path.removesuffix("/rate"),
            "position": turn.position,
            "total": turn.total,
            "request": secrets.token_urlsafe(12),
            "undo_request": secrets.token_urlsafe(12),
            "stale": "stale" in request.query_params,
        }
        if turn.item is None:
            return self._page("finished.html", **common)
        texts = (turn.item.a, turn.item.b) if turn.a_left else (turn.item.b, turn.item.a)
        left, right = await run_in_threadpool(differences, *texts)
        common |= {
            "source": pieces(turn.item.source),
            "sides": (left, right),
            "comment": turn.comment,
            "comment_length": _COMMENT,
        }
        return self._page("rate.html", **common, site=self.site)

    async def rate(self, request: Request) -> Response:
        rater, form = self._rater(request), await _form(request)
        choice = form.get("choice", "")
        if choice not in ("left", "right", "tie", "skip"):
            raise HTTPException(400, "The choice is missing.")
        comment = form.get("comment", "").replace("\r\n", "\n").replace("\0", "").strip()
        if len(comment) > _COMMENT:
            raise HTTPException(400, f"The comment is longer than {_COMMENT} characters.")
        outcome = await run_in_threadpool(
            self.store.rate, rater, _position(form), choice, comment=comment, request=_field(form, "request", _REQUEST)
        )
        return self._answer(request, outcome)

    async def undo(self, request: Request) -> Response:
        rater, form = self._rater(request), await _form(request)
        outcome = await run_in_threadpool(
            self.store.undo, rater, _position(form), request=_field(form, "request", _REQUEST)
        )
        return self._answer(request, outcome)

    async def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        page = self._page("refused.html", reason=error.detail)
        page.status_code = error.status_code
        return page

    def _rater(self, request: Request) -> int:
        rater = self.store.rater(request.path_params["token"])
        if rater is None:
            raise HTTPException(404, "This link is not valid. Please check that you have copied all of it.")
        return rater

    def _answer(self, request: Request, outcome: RatingOutcome) -> Response:
        if outcome == "ahead":
            raise HTTPException(409, "There is nothing to change there. Please open your link again.")
        query = "?stale" if outcome == "stale" else ""
        return RedirectResponse(f"/r/{request.path_params['token']}/rate{query}", status_code=303)

    def _page(self, template: str, **values: object) -> HTMLResponse:
        return HTMLResponse(
            self.templates.get_template(template).render(**values), headers={"cache-control": "no-store"}
        )


class _Gate:
    """Refuses unknown hosts (DNS rebinding) and origins (forged forms); adds security headers to every response."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        await (refusal or self.app)(scope, receive, guarded)

    def _refusal(self, method: str, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if not is_served(host, self.site.hosts, any_address=self.site.any_address):
            return PlainTextResponse("This host name is not served here.\n", status_code=421)
        own = {f"http://{host}", *self.site.origins}
        # Browsers send Origin with every POST, so a form on another site cannot pretend to be ours.
        if method not in ("GET", "HEAD") and headers.get("origin") not in own:
            return PlainTextResponse("This form did not come from this page.\n", status_code=403)
        return None


async def _form(request: Request) -> dict[str, str]:
    """The fields of a URL-encoded form, read up to a limit."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _BODY_BYTES:
            raise HTTPException(413, "The form is too large.")
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
    return {name: values[-1] for name, values in fields.items()}


def _field(form: dict[str, str], name: str, pattern: str) -> str:
    """A field of a form; one that is missing or malformed is refused."""
    text = form.get(name, "")
    if not re.fullmatch(pattern, text):
        raise HTTPException(400, "The form cannot be read.")
    return text


def _position(form: dict[str, str]) -> int:
    return int(_field(form, "position", "[0-9]{1,9}"))
