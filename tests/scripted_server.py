"""A server that answers as a test tells it to, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from quiet_server import QuietHandler, begin_serving

from mbrace.servers import http as client


class Server:
    """Answers with what `reply(body)` gives: a JSON value, or a status. Notes what was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.reply: Callable[[dict[str, Any]], Any] = lambda body: chat("50")
        self.active = self.most = 0
        self.lock, server = threading.Lock(), self

        class Handler(QuietHandler):
            def answer(self) -> None:
                server.answer(self, json.loads(self.rfile.read(int(self.headers["content-length"]))))

        self.server, self.url = begin_serving(Handler)

    def answer(self, request: QuietHandler, body: dict[str, Any]) -> None:
        """Note a request, and handle it."""
        with self.lock:
            self.bodies.append(body)
            self.headers.append(request.headers)
            self.paths.append(request.path)
            self.times.append(client.time.monotonic())
            number = len(self.bodies)
            self.active += 1
            self.most = max(self.most, self.active)
        try:
            self.handle(request, body, number)
        finally:
            with self.lock:
                self.active -= 1

    def handle(self, request: QuietHandler, body: dict[str, Any], number: int) -> None:
        answer = self.reply(body)
        status, content = (
            (answer, b'{"error": "no"}') if isinstance(answer, int) else (200, json.dumps(answer).encode())
        )
        request.send(status, content)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def chat(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def words(body: dict[str, Any]) -> dict[str, Any]:
    """Scores of "hypothesis|reference": words in common."""
    hypothesis, reference = body["messages"][-1]["content"].split("|")
    return chat(str(len({*hypothesis.split()} & {*reference.split()})))


def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for one test, asked again soon after it was busy."""
    monkeypatch.setattr(client, "FIRST_WAIT", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = Server()
    yield made
    made.close()


PROMPT = "{hypothesis}|{reference}"


HYPOTHESES, REFERENCES = ["a b", "a c d", "e"], ["a c", "d a b", "c d e", "a c d"]


def judge_flags(url: str, **options: object) -> list[str]:
    """The flags of a judge on a server."""
    given = {"url": url, "model": "m", **options}
    return [
        "--utility",
        "judge",
        *(word for each in given.items() for word in ("--utility-option", "=".join(map(str, each)))),
    ]
