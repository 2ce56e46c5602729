"""The web page for raters: a Starlette app of plain forms, and one small script that makes them quicker to use; and
`mbrace judge`, which prepares the study, prints one link per rater and serves the page until it is interrupted."""

from __future__ import annotations

import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn
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

from mbrace.errors import SettingError, UserError, counted, shown_name
from mbrace.judge.items import PredictionPair, PredictionPairs, differences, pieces, read_prediction_pairs, sample
from mbrace.judge.store import RatingOutcome, Store, open_study
from mbrace.serve.limits import is_loopback, is_served, limited_config, listen

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
    things: tuple[str, str] = ("translation", "Source")  # what is judged, and the heading of what it is of


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
        return self._page("start.html", total=turn.total, base=request.url.path, site=self.site)

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
        given = {"comment": comment, "request": _field(form, "request", _REQUEST)}
        return self._answer(request, await run_in_threadpool(self.store.rate, rater, _position(form), choice, **given))

    async def undo(self, request: Request) -> Response:
        rater, form = self._rater(request), await _form(request)
        sent = _field(form, "request", _REQUEST)
        return self._answer(request, await run_in_threadpool(self.store.undo, rater, _position(form), request=sent))

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
        text = self.templates.get_template(template).render(**values)
        return HTMLResponse(text, headers={"cache-control": "no-store"})


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


# Serving


def judge(
    a: str,
    b: str,
    *,
    output: str,
    source: str | None = None,
    raters: int = 1,
    items: int | None = 125,
    seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 8000,
    public_url: str | None = None,
    source_lang: str = "",
    target_lang: str = "",
    instructions: str = "",
) -> None:
    """Serve the blind comparison of outputs `a` and `b`; ratings go to the SQLite file `output` (see docs/judge.md).

    Raters see `instructions`, in which empty lines separate paragraphs, before they begin and whenever they ask.
    """
    base = _public(public_url)
    pairs = read_prediction_pairs(a, b, source)
    chosen, facts, about = _choose_items(a, b, pairs, items=items, seed=seed)
    store = open_study(output, chosen, facts=facts, about=about, seed=seed, raters=raters)
    try:
        listener = listen(host, port)
        own = host if is_loopback(host) else socket.gethostname()
        site = Site(
            hosts={*Site.hosts, host.lower(), own.lower(), urlsplit(base or "").hostname or "localhost"},
            any_address=not is_loopback(host),
            origins=(base,) if base else (),
            source_lang=source_lang,
            target_lang=target_lang,
            instructions=paragraphs(instructions),
            things=("answer", "Prompt") if pairs.are_answers else Site.things,
        )
        for rater, token in store.tokens.items():
            turn = store.turn(rater)
            link = f"{base or _address(host, listener.getsockname()[1])}/r/{token}"
            print(f"rater {rater}: {link}  ({turn.position} of {turn.total} done)")
        if not is_loopback(host):
            print(
                f"mbrace: warning: listening on {host}, so others on the network can connect, and the connection is "
                "not encrypted. Anyone who has a rater's link can rate in their name.",
                file=sys.stderr,
            )
        server = uvicorn.Server(limited_config(create_app(store, site), log_level="warning"))
        with _ended_by_interrupt(server):
            print("Serving; Ctrl-C stops. Ratings are kept, and the same command continues.", flush=True)
            try:
                server.run(sockets=[listener])
            except KeyboardInterrupt:  # uvicorn raises it again after finishing the open requests
                pass
        rated = counted(sum(store.turn(rater).position for rater in store.tokens), "rating")
        name = shown_name(str(output))
        print(f"Stopped. {rated} in {name}; see the results with: mbrace judge-results {name}")
    finally:
        store.close()


@contextmanager
def _ended_by_interrupt(server: Any) -> Iterator[None]:
    """Inside the block, Ctrl-C ends the server even before uvicorn handles it: Python can lose an interrupt that comes
    while it imports a module."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        server.should_exit = True

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _choose_items(
    a: str, b: str, pairs: PredictionPairs, *, items: int | None, seed: int
) -> tuple[list[PredictionPair], dict[str, str], dict[str, str]]:
    """The items to judge, and what identifies and describes the study (see `open_study`); prints how many there are."""
    share = f"{pairs.equal} equal ({pairs.equal / pairs.total:.1%}, not shown), {len(pairs.different)} different"
    print(f"{counted(pairs.total, 'pair')} of predictions: {share}")
    if not pairs.different:
        raise UserError(f"{a} and {b} hold the same predictions; there is nothing to judge")
    chosen = sample(pairs.different, items, seed)
    sampled = f", sampled with seed {seed}" if len(chosen) < len(pairs.different) else ""
    print(f"{counted(len(chosen), 'item')} for each rater{sampled}")
    facts = {**pairs.digests, "seed": str(seed), "items": str(len(chosen))}
    same = Path(a).name == Path(b).name
    names = [shown_name(path if same else Path(path).name) for path in (a, b)]
    about = {"name_a": names[0], "name_b": names[1], "equal": str(pairs.equal), "total": str(pairs.total)}
    return chosen, facts, about


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a text, which empty lines separate."""
    return tuple(part.strip() for part in re.split(r"\n\s*\n", text.replace("\r\n", "\n")) if part.strip())


def _address(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _public(url: str | None) -> str | None:
    """The origin of the proxy through which raters reach us: scheme, name and port only."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise SettingError("public_url", url, "expected something like https://judge.example.org, without a path")
    return f"{parts.scheme}://{parts.netloc.lower()}"
