"""`mbrace judge`: prepare the study, print one link per rater, serve until interrupted."""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from mbrace.errors import SettingError, UserError, counted, shown_name
from mbrace.judge.app import Site, create_app
from mbrace.judge.items import PredictionPair, read_prediction_pairs, sample
from mbrace.judge.store import Store, open_study
from mbrace.serve.limits import is_loopback, limited_config, listen


def judge(
    a: str,
    b: str,
    *,
    source: str,
    output: str,
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
    chosen, facts, about = _choose_items(a, b, source=source, items=items, seed=seed)
    store = open_study(output, chosen, facts=facts, about=about, seed=seed, raters=raters)
    try:
        listener = listen(host, port)
        hosts = {"localhost", "127.0.0.1", "::1", host.lower()}
        if not is_loopback(host):
            hosts.add(socket.gethostname().lower())
        if base:
            hosts.add(urlsplit(base).hostname or "")
        site = Site(
            hosts=hosts,
            any_address=not is_loopback(host),
            origins=(base,) if base else (),
            source_lang=source_lang,
            target_lang=target_lang,
            instructions=paragraphs(instructions),
        )
        _print_links(store, base or _address(host, listener.getsockname()[1]))
        if not is_loopback(host):
            _warn(host)
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
    a: str, b: str, *, source: str, items: int | None, seed: int
) -> tuple[list[PredictionPair], dict[str, str], dict[str, str]]:
    """The items to judge, and what identifies and describes the study (see `open_study`); prints how many there are."""
    pairs = read_prediction_pairs(a, b, source)
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


def _print_links(store: Store, base: str) -> None:
    for rater, token in store.tokens.items():
        turn = store.turn(rater)
        print(f"rater {rater}: {base}/r/{token}  ({turn.position} of {turn.total} done)")


def _warn(host: str) -> None:
    print(
        f"mbrace: warning: listening on {host}, so others on the network can connect, and the connection is not "
        "encrypted. Anyone who has a rater's link can rate in their name.",
        file=sys.stderr,
    )
