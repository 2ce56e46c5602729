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
from typing import Any, TextIO
from urllib.parse import urlsplit

import uvicorn

from mbrace.errors import SettingError, UserError
from mbrace.judge.app import Site, create_app
from mbrace.judge.items import PredictionPair, read_prediction_pairs, sample
from mbrace.judge.store import Store, open_study
from mbrace.serve.limits import is_loopback, limited_config, listen
from mbrace.wording import counted, shown_name

SECONDS = 1.0  # between two looks at the ratings


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
    name_a: str | None = None,
    name_b: str | None = None,
    instructions: str = "",
) -> None:
    """Serve the blind comparison of outputs `a` and `b`; ratings go to the SQLite file `output` (see docs/judge.md).

    `name_a` and `name_b` are what results call the systems (default: the names of the files). Raters never see them;
    they see `instructions`, with paragraphs separated by empty lines, before they begin and whenever they reopen them.
    """
    base = _public(public_url)
    names = _names(a, b, name_a, name_b)
    given = (("name_a", name_a, names[0]), ("name_b", name_b, names[1]))
    renamed = {key: name for key, option, name in given if option is not None}
    chosen, facts, about = _choose_items(a, b, names, source=source, items=items, seed=seed)
    store = open_study(output, chosen, facts=facts, about=about, seed=seed, raters=raters, renamed=renamed)
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
        with _ended_by_interrupt(server), live_count(store):
            print("Serving; Ctrl-C stops. Ratings are kept, and the same command continues.", flush=True)
            try:
                server.run(sockets=[listener])
            except KeyboardInterrupt:  # uvicorn raises it again after finishing the open requests
                pass
        rated = counted(sum(done for done, _ in progress(store).values()), "rating")
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
    a: str, b: str, names: tuple[str, str], *, source: str, items: int | None, seed: int
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
    about = {"name_a": names[0], "name_b": names[1], "equal": str(pairs.equal), "total": str(pairs.total)}
    return chosen, facts, about


def _names(a: str, b: str, name_a: str | None, name_b: str | None) -> tuple[str, str]:
    """Names for the report: those given, or the file names, or the whole paths if both files have the same name."""
    same = Path(a).name == Path(b).name
    names = [shown_name(path if same else Path(path).name) for path in (a, b)]
    for index, (option, given) in enumerate((("name_a", name_a), ("name_b", name_b))):
        if given is not None:
            if not given.strip():
                raise UserError(f"{option}: is blank; give a name, or leave it out for the name of the file")
            names[index] = " ".join(given.split())
    if names[0] == names[1] and (name_a, name_b) != (None, None):
        raise UserError(f"name_a and name_b: both are {names[0]}; results could not tell them apart")
    return names[0], names[1]


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


def progress(store: Store) -> dict[int, tuple[int, int]]:
    """How many items each rater has done, and of how many."""
    turns = {rater: store.turn(rater) for rater in store.tokens}
    return {rater: (turn.position, turn.total) for rater, turn in turns.items()}


def count_line(done: dict[int, tuple[int, int]]) -> str:
    """One line: all ratings, then those of each rater, or, of many raters, how many have finished."""
    ratings, wanted = (sum(numbers) for numbers in zip(*done.values(), strict=True))
    line = f"{ratings:,} of {counted(wanted, 'rating')}"
    if len(done) <= 4:
        return line + ": " + ", ".join(f"rater {rater} {own} of {total}" for rater, (own, total) in done.items())
    finished = sum(own == total for own, total in done.values())
    return f"{line}; {finished} of {counted(len(done), 'rater')} finished"


@contextmanager
def live_count(store: Store, out: TextIO | None = None) -> Iterator[None]:
    """Inside the block, keep the count in one line of a terminal; elsewhere print nothing."""
    terminal = sys.stdout if out is None else out
    if not terminal.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show_counts, args=(store, terminal, ended), name="live count", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        print(file=terminal, flush=True)


def _show_counts(store: Store, terminal: TextIO, ended: threading.Event) -> None:
    shown = ""
    while True:
        line = count_line(progress(store))
        if line != shown:
            print(f"\r{line:<{len(shown)}}", end="", file=terminal, flush=True)  # covers a longer line
            shown = line
        if ended.wait(SECONDS):
            return
