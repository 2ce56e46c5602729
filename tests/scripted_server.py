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
    """Answers with what `reply(body)` gives: a JSON value, or a status. Counts tokens as words."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.reply: Callable[[dict[str, Any]], Any] = lambda body: chat("50")
        self.active = self.most = 0
        lock, server = threading.Lock(), self

        class Handler(QuietHandler):
            def answer(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    server.bodies.append(body)
                    server.paths.append(self.path)
                    server.active += 1
                    server.most = max(server.most, server.active)
                answer = server.reply(body)
                with lock:
                    server.active -= 1
                status, content = (
                    (answer, b'{"error": "no"}') if isinstance(answer, int) else (200, json.dumps(answer).encode())
                )
                self.send(status, content)

        self.server, self.url = begin_serving(Handler)


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
    made.server.shutdown()
    made.server.server_close()


PROMPT = "{hypothesis}|{reference}"


HYPOTHESES, REFERENCES = ["a b", "a c d", "e"], ["a c", "d a b", "c d e", "a c d"]
