"""Servers: a real HTTP server on loopback that misbehaves, and candidates that come out whole all the same."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from quiet_server import QuietHandler
from scripted_server import Server

import mbrace
from mbrace.cli import main
from mbrace.records import Record
from mbrace.sampler import Want
from mbrace.servers import http as client
from mbrace.servers.abilities import EXTREMES, PROBE


class FakeClock:
    """Stands in for the module `time` and for sleeping; it advances when `sleepers` requests sleep at once, to their
    latest wake-up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sleepers: int = 1) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.asleep = threading.Event()  # set once a request sleeps
        self._sleepers = sleepers
        self._woken: asyncio.Event | None = None
        monkeypatch.setattr(client, "time", self)
        monkeypatch.setattr(client, "_sleep", self.sleep)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._woken = woken = self._woken or asyncio.Event()
        self.asleep.set()
        if len(self.waits) % self._sleepers == 0:
            self.now += max(self.waits[-self._sleepers :])
            self._woken = None
            woken.set()
        await woken.wait()


@dataclass
class Reply:
    """What a server says."""

    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Mock(Server):
    """An OpenAI-compatible server. `plan(number of the request)` names a misbehaviour, or None to answer well."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: Callable[[int], str | Reply | None] = lambda number: None
        self.choices = 1000  # the most a request gets
        self.probes: list[dict[str, Any]] = []
        self.fails_probes = False  # otherwise they are answered well, and nobody is told

    def answer(self, request: QuietHandler, body: dict[str, Any]) -> None:
        if PROBE not in str(body.get("messages", body.get("prompt"))) or self.fails_probes:
            return super().answer(request, body)
        self.probes.append(body)
        greedy = any(body.get(name) == value for name, value in EXTREMES.items())
        made = self.made(body if not greedy else body | {"seed": 0})
        choices = made[:1] * len(made) if greedy else made
        return request.send(200, json.dumps({"choices": choices, "usage": self.usage(body)}).encode())

    def handle(self, request: QuietHandler, body: dict[str, Any], number: int) -> None:
        trouble = self.plan(number)
        if isinstance(trouble, Reply):
            return request.send(trouble.status, trouble.content, headers=trouble.headers)
        if trouble == "slow":
            time.sleep(1.0)
        if trouble == "cut":
            request.send(200, b'{"choices": [', length=500)
            request.wfile.flush()
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
            return None
        if trouble == "malformed":
            return request.send(200, b'{"choices": [{"mess')
        if trouble == "empty":
            return request.send(200, b'{"choices": []}')
        if trouble is not None and trouble.isdigit():
            headers = {"retry-after": "0.3"} if trouble == "429" else {}
            return request.send(int(trouble), b'{"error": {"message": "so\\nit is"}}', headers=headers)
        return request.send(200, json.dumps({"choices": self.made(body), "usage": self.usage(body)}).encode())

    def usage(self, body: dict[str, Any]) -> dict[str, int]:
        return {}

    def made(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        out = []
        for index in range(min(body.get("n", 1), self.choices)):
            if "messages" in body:
                text = f"{body['messages'][-1]['content']}/{body['seed']}/{index}"
                tokens: dict[str, Any] = {"content": [{"logprob": -0.5}, {"logprob": -index}]}
                choice: dict[str, Any] = {"message": {"content": text}}
            else:
                choice = {"text": f" {body['prompt']}/{body['seed']}/{index}\n"}
                tokens = {"token_logprobs": [-0.5, -index]}
            out.append(choice | ({"logprobs": tokens} if "logprobs" in body else {}))
        return out


@pytest.fixture
def mock() -> Iterator[Mock]:
    made = Mock()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.02)


def test_every_misbehaviour_is_survived_and_nothing_is_lost(mock: Mock) -> None:
    troubles = ["500", "429", "cut", "malformed", "empty", "503", "slow"]
    mock.plan = lambda number: troubles[number % 9] if number % 9 < 7 else None
    server = mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=4, timeout=0.5, retries=30)
    draws = server.candidates(["eins", "zwei"], 12)
    mock.plan = lambda number: None
    calm = mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=4).candidates(["eins", "zwei"], 12)
    assert draws == calm
    assert [len(set(found.texts)) for found in draws] == [12, 12]
    assert all(text.startswith("zwei/") for text in draws[1].texts)


def test_retry_after_is_honoured_by_every_thread(mock: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, arrived = FakeClock(monkeypatch, sleepers=4), threading.Barrier(4)

    def plan(number: int) -> str | None:
        if number <= 4:
            arrived.wait(timeout=120)  # every thread has sent a request
        if 2 <= number <= 4:
            clock.asleep.wait(120)  # the first thread knows that it must wait; the others are answered only then
        return "429" if number == 1 else None

    mock.plan = plan
    mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=1, concurrency=4).candidates(["eins"], 8)
    assert mock.times == [0.0] * 4 + [0.3] * 5


def test_waits_double_between_tries(mock: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    monkeypatch.setattr(client, "LONGEST_WAIT", 0.1)
    monkeypatch.setattr(client.random, "uniform", lambda low, high: (low + high) / 2)
    mock.plan = lambda number: "500" if number <= 5 else None
    mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=1).candidates(["eins"], 1)
    assert clock.waits == pytest.approx([0.015, 0.03, 0.06, 0.075, 0.075])  # half to all of 0.02, 0.04, 0.08, 0.1, 0.1


def test_no_more_requests_at_a_time_than_allowed(mock: Mock) -> None:
    arrived, too_many = threading.Barrier(3), threading.Event()

    def plan(number: int) -> None:
        if number <= 3:
            arrived.wait(timeout=120)  # three at a time there must be
            too_many.wait(timeout=0.3)  # and a fourth would come while they wait
        elif number == 4:
            too_many.set()

    mock.plan = plan
    server = mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=1, concurrency=3)
    server.candidates(["eins"], 24)
    assert mock.most == 3


def test_exactly_the_draws_of_a_step_are_requested(mock: Mock) -> None:
    server = mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=4)
    drawer = server.start([Record(["h"], id="x", source="eins")])
    parts = [drawer.draw([Want(0, first, count)])[0] for first, count in ((0, 3), (3, 7), (10, 14))]
    assert [len(part.texts) for part in parts] == [3, 7, 14]
    assert sorted(body["n"] for body in mock.bodies) == [2, 3, 3, 4, 4, 4, 4]
    again = mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=4).start(
        [Record(["h"], id="x", source="eins")]
    )
    assert again.draw([Want(0, 3, 7)])[0] == parts[1]  # the same draws for the same step


def test_only_open_races_ask_for_more(mock: Mock) -> None:
    server = mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=4)
    records = [Record(["one", "two"], id="open", source="a"), Record(["same", "same"], id="shut", source="b")]
    answers = list(mbrace.decode_corpus(records, sampler=server, schedule=[4, 8], prune=None))
    assert [answer.pseudo_references for answer in answers] == [8, 0]
    assert server.drawn == 8
    assert len(mock.bodies) == 2


@pytest.mark.parametrize("command", ["generate", "translate"])
def test_a_source_that_fails_makes_no_other_be_requested_again(mock: Mock, tmp_path: Path, command: str) -> None:
    mock.plan = lambda number: "400" if mock.bodies[number - 1]["messages"][-1]["content"] == "bad" else None
    (tmp_path / "s.txt").write_text("eins\nbad\nzwei\n")
    files = [command, f"{tmp_path}/s.txt", "-o", f"{tmp_path}/o.jsonl", "--on-error", "skip", "--beam", "2"]
    assert main([*files, "--server", mock.url, "--model", "m", "--prompt", "{source}", "--seed", "3"]) == 0
    assert [json.loads(line)["id"] for line in (tmp_path / "o.jsonl").read_text().splitlines()] == [1, 3]
    asked = [(body["messages"][-1]["content"], body["seed"]) for body in mock.bodies]
    assert len(asked) == len(set(asked)) > 4


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_settings_and_prompt_reach_the_endpoint(mock: Mock, kind: str) -> None:
    chat = kind == "chat"
    system = {"system_prompt": "be brief"} if chat else {}
    server = mbrace.Server(
        mock.url + "/v1/", "m", prompt="En: {source}", kind=kind, **system, temperature=0.7, top_p=0.9,
        min_p=0.05, stop="\n", logprobs=True, api_key="k", samples_per_request=2, options={"top_k": 5},
    )  # fmt: skip
    draws = server.candidates(["ja"], 2)[0]
    body = mock.bodies[0]
    assert {**body, "temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "stop": "\n", "n": 2, "top_k": 5} == body
    assert mock.headers[0]["authorization"] == "Bearer k"
    if chat:
        user = {"role": "user", "content": "En: ja"}
        assert body["messages"] == [{"role": "system", "content": "be brief"}, user]
    else:
        assert body["prompt"] == "En: ja"
    assert draws.texts[0].startswith("En: ja/")
    assert draws.logprobs == [-0.5, -1.5]


def test_a_server_that_does_not_run_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(mbrace.errors.ServiceError, match=r"nothing answers there \(.*\); is the server running\?"):
        mbrace.Server(f"http://127.0.0.1:{port}", "m", prompt="{source}").candidates(["a"], 1)
    assert clock.waits == []  # not tried again


def test_generate_and_translate_with_a_server(mock: Mock, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("eins\nzwei\n")
    server = ["--server", mock.url, "--model", "m", "--prompt", "{source}"]
    out = tmp_path / "c.jsonl"
    assert main(["generate", f"{tmp_path}/s.txt", "-o", str(out), "--beam", "3", "--sample", "5", *server]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(row["hypotheses"]) for row in rows] == [3, 3]
    assert [len(row["pseudo_references"]) for row in rows] == [5, 5]
    assert not set(rows[0]["hypotheses"]) & set(rows[0]["pseudo_references"])  # streams of their own
    answers = tmp_path / "o.jsonl"
    asked = ["translate", f"{tmp_path}/s.txt", "-o", str(answers), "--beam", "3", "--schedule", "4,8", *server]
    assert main(asked) == 0
    assert [json.loads(line)["text"].split("/")[0] for line in answers.read_text().splitlines()] == ["eins", "zwei"]


@pytest.mark.parametrize("command", ["generate", "translate"])
@pytest.mark.parametrize("name", ["-", "D.JSONL", "d.json", "d"])
def test_sources_in_json_are_seen_by_the_name_of_the_file_or_the_line(
    mock: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    lines = b'{"id": "a", "source": "eins"}\n{"source": "zwei", "reference": "two"}\n'
    monkeypatch.chdir(tmp_path)
    if name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    else:
        Path(name).write_bytes(lines)
    server = ["--server", mock.url, "--model", "m", "--prompt", "{source}", "--beam", "2"]
    assert main([command, name, "-o", "o.jsonl", *server]) == 0
    assert [json.loads(line)["id"] for line in Path("o.jsonl").read_text().splitlines()] == ["a", 2]
    assert {body["messages"][-1]["content"] for body in mock.bodies} == {"eins", "zwei"}
    Path("d.txt").write_bytes(lines)
    assert main([command, "d.txt", "-o", "t.jsonl", *server]) == 0
    assert mock.bodies[-1]["messages"][-1]["content"].startswith('{"')


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_generate_writes_log_probabilities_of_a_server(mock: Mock, tmp_path: Path, kind: str) -> None:
    (tmp_path / "s.txt").write_text("eins\n")
    server = ["--server", mock.url, "--model", "m", "--server-option", f"kind={kind}", "--prompt", "{source}"]
    sizes = ["--beam", "2", "--sample", "3", "--logprobs"]
    assert main(["generate", f"{tmp_path}/s.txt", "-o", f"{tmp_path}/c.jsonl", *sizes, *server]) == 0
    (row,) = map(json.loads, (tmp_path / "c.jsonl").read_text().splitlines())
    assert row["logprobs"] == [-0.5 - int(text.split("/")[2]) for text in row["pseudo_references"]]


def test_translate_draws_hypotheses_by_id_and_counts_pseudo_references_alone(
    mock: Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.txt").write_text("eins\nzwei\neins\n")
    options = ["--server", mock.url, "--model", "m", "--prompt", "{source}", "--seed", "5", "--prune", "none"]
    assert main(["translate", f"{tmp_path}/s.txt", "--beam", "16", "--schedule", "16", "--nbest", "16", "--no-text",
                 "-o", f"{tmp_path}/o", *options]) == 0  # fmt: skip
    assert ", 48 pseudo-references drawn" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "o").read_text().splitlines()]
    server = mbrace.Server(mock.url, "m", prompt="{source}", seed=5)
    want = server.candidates(["eins", "zwei", "eins"], 16, ids=[1, 2, 3], stream="hypothesis")
    assert [{entry["text"] for entry in row["nbest"]} for row in rows] == [set(draws.texts) for draws in want]
    assert server.drawn == 0
