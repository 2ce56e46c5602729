"""Limits of what mbrace serves: clients that open connections and do not ask, or ask slowly, or break off."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from cli_helpers import until
from judge_server import Server, write_study

from mbrace.serve.limits import Limits, OneLine, limited_config

resource = pytest.importorskip("resource")


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body; /fault raises, /large has 50 MB."""
    length, more = 0, True
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/fault":
        raise RuntimeError("no such\nthing")
    body = bytes(50_000_000) if scope["path"] == "/large" else b"%d" % length
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(limits: Limits) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(limited_config(app, limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


def get(port: int, path: str = "/", body: str | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        response.read()
        return response.status


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed the connection, asked by a byte more, which does not prolong its time."""
    try:
        client.sendall(b"X")
    except OSError:
        return True
    return False


HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        [b""],
        [HEAD],
        [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"],
        [HEAD + b"\r\n", HEAD],  # the second request of a connection
    ],
)
def test_a_request_that_does_not_arrive_in_time_is_closed(sent: list[bytes]) -> None:
    with serving(Limits(seconds=0.5)) as port, socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        for part in sent[:-1]:
            client.sendall(part)
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.sendall(sent[-1])
        until(lambda: is_closed(client))
        assert get(port) == 200


def test_a_request_in_time_may_take_long_to_answer_and_more_may_follow() -> None:
    with serving(Limits(seconds=1.0)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for body in ("abc", "abcdef"):
            connection.request("POST", "/", body)
            assert connection.getresponse().read() == b"%d" % len(body)
            time.sleep(1.5)  # an idle connection is uvicorn's to close
        connection.close()


def test_silent_connections_make_room_for_newer_ones() -> None:
    with serving(Limits(connections=8)) as port, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120)) for _ in range(100)]
        assert [get(port, body="abc") for _ in range(3)] == [200] * 3
        for client in silent[:80]:  # the oldest are closed
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""


@pytest.mark.parametrize("path", ["/", "/large"])
def test_clients_that_stay_or_do_not_take_their_answers_make_room(path: str) -> None:
    with serving(Limits(connections=8)) as port, contextlib.ExitStack() as stack:
        for _ in range(8):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            client.sendall(HEAD.replace(b"/ ", path.encode() + b" ") + b"\r\n")
            assert client.recv(9) == b"HTTP/1.1 "
        assert [get(port) for _ in range(3)] == [200] * 3


def test_an_answer_that_is_not_taken_in_time_ends_its_connection() -> None:
    with serving(Limits(seconds=0.5)) as port, socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        client.sendall(HEAD.replace(b"/ ", b"/large ") + b"\r\n")
        until(lambda: is_closed(client))


def test_a_fault_is_one_line_and_the_next_of_its_kind_none(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Limits()) as port:
        assert [get(port, "/fault") for _ in range(20)] == [500] * 20
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["Exception in ASGI application: RuntimeError: no such"]
    assert "Traceback" not in caplog.text


def test_other_faults_have_their_own_line() -> None:
    shown = OneLine()
    records = [logging.makeLogRecord({"msg": "fault %s", "args": (name,)}) for name in ("a", "b", "a")]
    assert [shown.filter(record) for record in records] == [True, True, False]


def test_raters_go_on_while_a_thousand_connections_are_half_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))  # of the server, which inherits it
    try:
        server = Server(write_study(tmp_path, 3)).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    link = urlsplit(server.links[0])
    with contextlib.ExitStack() as stack:
        for _ in range(min(1100, soft - 200)):
            half = stack.enter_context(socket.create_connection((link.hostname, link.port), timeout=120))
            with contextlib.suppress(OSError):  # it may be closed already
                half.sendall(HEAD)
        assert get(link.port or 0, link.path) == 200
    assert len(server.stop().splitlines()) < 10
