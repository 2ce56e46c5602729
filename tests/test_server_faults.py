"""Servers that fail: whose fault it is, how a run ends, what is waited for, and what is never told."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import until
from quiet_server import QuietHandler, begin_serving
from test_models_server import FakeClock, Mock, Reply, mock

import mbrace
from mbrace.cli import main
from mbrace.cluster.shards import Block, process_block
from mbrace.errors import ServiceError
from mbrace.jobs.generate import GenerateJob
from mbrace.servers import http as client
from mbrace.servers.chat import answer_in, choices_of
from mbrace.servers.failures import message_of, retry_after
from mbrace.servers.http import hide_credentials
from mbrace.settings import ModelSettings, Sampling

__all__ = ["mock"]


def command(mock: Mock, folder: Path, *more: str, url: str = "") -> list[str]:
    """`mbrace generate` of two samples for each of three sources, one request after another."""
    (folder / "s.txt").write_text("eins\nzwei\ndrei\n")
    server = ["--server", url or mock.url, "--model", "m", "--prompt", "{source}", "--concurrency", "1"]
    sizes = ["--beam", "0", "--sample", "2", "--server-option", "samples_per_request=2"]
    return ["generate", str(folder / "s.txt"), "-o", str(folder / "c.jsonl"), *sizes, *server, *more]


def sources_of(path: Path) -> list[str]:
    return [json.loads(line)["source"] for line in path.read_text().splitlines()]


# Whose fault


def test_a_service_that_refuses_ends_the_run_and_sets_nothing_aside(
    mock: Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mock.plan = lambda number: None if number == 1 else "401"
    asked = command(mock, tmp_path, "--on-error", "skip")
    assert main(asked) == 3
    assert "status 401: so it is" in capsys.readouterr().err
    assert sources_of(tmp_path / "c.jsonl") == ["eins"]
    assert not (tmp_path / "c.jsonl.errors.jsonl").exists()
    mock.plan = lambda number: None
    assert main([*asked, "--resume"]) == 0
    assert sources_of(tmp_path / "c.jsonl") == ["eins", "zwei", "drei"]


@pytest.mark.parametrize("trouble", ["500", "429", "400", "404", "cut", "malformed"])
def test_a_service_that_answers_nobody_ends_translating_too(
    mock: Mock, tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.01)
    mock.plan = lambda number: trouble
    few = ["--beam", "2", "--schedule", "2", "--server-option", "retries=1"]
    asked = ["translate", *command(mock, tmp_path)[1:4], *few]
    server = ["--server", mock.url, "--model", "m", "--prompt", "{source}", "--on-error", "skip"]
    assert main([*asked, *server]) == 3
    assert not (tmp_path / "c.jsonl.errors.jsonl").exists()


@pytest.mark.parametrize("trouble", ["400", "500", "cut", "empty"])
def test_a_source_that_alone_fails_is_set_aside(mock: Mock, tmp_path: Path, trouble: str) -> None:
    def plan(number: int) -> str | None:
        return trouble if mock.bodies[number - 1]["messages"][-1]["content"] == "eins" else None

    mock.plan = plan
    assert main(command(mock, tmp_path, "--on-error", "skip", "--server-option", "retries=0")) == 0
    assert sources_of(tmp_path / "c.jsonl") == ["zwei", "drei"]
    (set_aside,) = (tmp_path / "c.jsonl.errors.jsonl").read_text().splitlines()
    assert json.loads(set_aside)["line"] == 1


def test_a_failure_of_a_service_is_not_handed_to_on_error() -> None:
    def down(count: int) -> list[str]:
        raise ServiceError("the service is down")

    failed: list[Any] = []
    records = [mbrace.Record(["a", "b"], ["a", "b"], id=1), mbrace.Record(["a", "b"], down, id=2)]
    with pytest.raises(ServiceError):
        list(mbrace.decode_corpus(records, on_error=lambda *both: failed.append(both)))
    assert failed == []


def test_a_block_of_a_cluster_tells_whose_fault_it_was(mock: Mock, tmp_path: Path) -> None:
    settings = ModelSettings(
        server=mock.url, model="m", prompt="{source}", samples_per_request=2, retries=0, concurrency=1
    )
    job = GenerateJob(settings, Sampling(beam=0), sample=2)
    for status, of_service in (("401", True), ("400", False)):
        mock.plan = lambda number, status=status: (
            status if "zwei" in mock.bodies[number - 1]["messages"][-1]["content"] else None
        )
        block = Block(0, 0, 1, b"eins\nzwei\n")
        result = process_block(block, job.start(1), job, path="s.txt", prefix="", skip=False)
        assert (f"status {status}" in result.failure, result.of_service) == (True, of_service)


# Waits


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("0", 0), ("inf", math.inf), ("1e400", math.inf), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)]
    + [(bad, None) for bad in ("soon", "nan", "-5", "", None, "Wed, 21 Oct 99999 07:28:00 GMT")],
)
def test_retry_after_makes_sense_or_is_ignored(header: str | None, seconds: float | None) -> None:
    assert retry_after(header) == seconds


@pytest.mark.parametrize("status", ["500", "502", "520", "599", "408", "429"])
def test_all_of_5xx_are_tried_again(mock: Mock, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.01)
    mock.plan = lambda number: status if number == 1 else None
    assert (
        len(
            mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=2, retries=1)
            .candidates(["a"], 2)[0]
            .texts
        )
        == 2
    )


@pytest.mark.parametrize("asked", ["999999999", "inf"])
def test_long_waits_are_capped_and_announced(
    mock: Mock, asked: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(monkeypatch)
    mock.plan = lambda number: Reply(b"busy", 503, {"retry-after": asked}) if number == 1 else None
    mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=1, retries=3).candidates(["a"], 1)
    assert clock.waits == [300.0]
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"{mock.url}/v1/chat/completions: status 503: busy; try 2 of 4 in 300 s; the server asks for" in said


def test_a_wait_is_ended_from_another_thread(mock: Mock) -> None:
    mock.plan = lambda number: Reply(b"busy", 503, {"retry-after": "200"})
    server = mbrace.Server(mock.url, "m", prompt="{source}", samples_per_request=1, concurrency=2)
    threading.Timer(0.2, server.interrupt).start()
    started = time.monotonic()
    with pytest.raises(ServiceError, match="interrupted while waiting for an answer"):
        server.candidates(["a", "b", "c"], 4)
    assert time.monotonic() - started < 120


# Limits


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(b" " * (2 << 20)), "an answer of more than 1 MiB"),
        (Reply(gzip.compress(b" " * (64 << 20)), headers={"content-encoding": "gzip"}), "an answer packed as gzip"),
        (Reply(b"x", headers={"content-encoding": "zstd"}), "an answer packed as zstd"),  # 30,000 times smaller
        (Reply(b"[" + b"[]," * 300_000 + b"1]"), "an answer of more than 262,144 lists and objects"),
    ],
)
def test_an_answer_that_would_fill_the_memory_is_refused(
    mock: Mock, reply: Reply, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(client, "MOST_PARTS", 1 << 18)
    mock.plan = lambda number: reply
    with pytest.raises(ServiceError, match=words):
        mbrace.Server(mock.url, "m", prompt="{source}", retries=5).candidates(["a"], 1)
    assert len(mock.bodies) == 1


def test_an_output_that_a_filter_ended_or_that_has_no_text_is_no_whole_answer() -> None:
    ends = {"stop": "The answer", "content_filter": "The answer", "length": None, "refusal": None, "tool_calls": None}
    choices = [{"message": {"content": text, end: "I cannot"}, "finish_reason": end} for end, text in ends.items()]
    found = choices_of({"choices": choices}, chat=True)
    assert [choice.is_usable for choice in found] == [True, False, False, False, False]
    assert [choice.is_cut for choice in found] == [False, True, True, False, False]


def test_reasoning_is_cut_off_in_linear_time() -> None:
    assert answer_in("a  <think>b</think> c <think>d</think>") == "a c <think>d</think>"
    assert answer_in("b</think> c") == "c"
    started = time.process_time()
    assert answer_in(" " * 1_000_000 + "a") == "a"
    assert answer_in("<think>" * 100_000) == ""
    assert time.process_time() - started < 5


class Trickle(QuietHandler):
    """Sends a byte of its answer now and then, for ever."""

    def answer(self) -> None:
        self.send(200, b"", length=10**9)
        while True:
            self.wfile.write(b" ")
            time.sleep(0.05)


def test_an_answer_that_trickles_in_ends_at_its_deadline_and_on_interrupt() -> None:
    server, url = begin_serving(Trickle)
    started = time.monotonic()
    with pytest.raises(ServiceError, match=r"no whole answer within 0\.5 s"):
        mbrace.Server(url, "m", prompt="{source}", retries=0, timeout=0.5).candidates(["a"], 1)
    patient = mbrace.Server(url, "m", prompt="{source}", timeout=600.0)
    threading.Timer(0.3, patient.interrupt).start()
    with pytest.raises(ServiceError, match="interrupted while waiting for an answer"):
        patient.candidates(["a"], 1)
    assert time.monotonic() - started < 120
    server.shutdown()


def run_and_signal(mock: Mock, folder: Path, *signals: int, after: str = "") -> subprocess.CompletedProcess[str]:
    """Run `generate` in a process of its own, send the first signal once a request has arrived and it has said `after`,
    the others when it has said what the first one means, and wait for its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mbrace", *command(mock, folder)], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stderr is not None
    until(lambda: mock.bodies or process.poll() is not None)
    said = ""
    for number in signals:
        while after not in said and (line := process.stderr.readline()):
            said += line
        process.send_signal(number)
        after = "Ctrl-C again stops at once"
    _, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess([], process.returncode, stderr=said + errors)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_ends_a_run_that_waits_for_a_server(mock: Mock, tmp_path: Path, number: int, status: int) -> None:
    mock.plan = lambda number: None if number == 1 else Reply(b"busy", 503, {"retry-after": "999999999"})
    ended = run_and_signal(mock, tmp_path, number, after="busy; try 2 of 7")
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr
    assert "busy; try 2 of 7 in 300 s" in ended.stderr
    assert "go on with the same command and --resume" in ended.stderr
    assert sources_of(tmp_path / "c.jsonl") == ["eins"]
    mock.plan = lambda number: None
    assert main([*command(mock, tmp_path), "--resume"]) == 0
    assert sources_of(tmp_path / "c.jsonl") == ["eins", "zwei", "drei"]


def test_two_signals_end_a_run_whose_server_does_not_answer(mock: Mock, tmp_path: Path) -> None:
    released = threading.Event()
    mock.plan = lambda number: released.wait(240) and None  # type: ignore[func-returns-value]
    ended = run_and_signal(mock, tmp_path, signal.SIGINT, signal.SIGINT)
    released.set()
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr


CANDIDATES = '{"hypotheses": ["a b", "a c"], "pseudo_references": ["a b", "a c d"]}\n'
DECODE, DRAWN = ["decode", "c.jsonl"], ["--server", "MOCK", "--model", "m"]
HANGING = {  # commands that ask a server that does not answer; MOCK is one that does
    "judge": [*DECODE, "--utility", "judge"],
    "mixture": [*DECODE, "--utility", "chrf:0.5+judge:0.5"],
    "embedding": [*DECODE, "--utility", "embedding-server"],
    "translate": ["translate", "s.txt", *DRAWN, "--prompt", "{source}", "--beam", "2", "--utility", "judge"],
    "answer": ["answer", "s.txt", *DRAWN, "-n", "4", "--utility", "judge"],
    "score": ["score", "s.txt", "s.txt", "--utility", "judge"],
    "function": [*DECODE, "--utility", "own.py:score:batch"],  # the run does not know that it waits for a server
}
OWN = """
import mbrace
def score(hypotheses, references):
    return mbrace.Judge("{}", "m", timeout=200).pairs(hypotheses, references)
"""


@pytest.mark.parametrize("how", ["silent", "trickle"])
@pytest.mark.parametrize("name", HANGING)
def test_ctrl_c_ends_a_run_whose_judge_does_not_answer(mock: Mock, name: str, how: str, tmp_path: Path) -> None:
    asked, ended = threading.Event(), threading.Event()

    class Hangs(Trickle):
        def answer(self) -> None:
            asked.set()
            if how == "trickle":
                super().answer()
            ended.wait(240)

    server, url = begin_serving(Hangs)
    (tmp_path / "c.jsonl").write_text(CANDIDATES)
    (tmp_path / "s.txt").write_text("eins\nzwei\n")
    (tmp_path / "own.py").write_text(OWN.format(url))
    prefix, given = "judge." if name == "mixture" else "", {"url": url, "model": "m", "timeout": "200"}
    given = {} if name == "function" else given
    options = [word for key, value in given.items() for word in ("--utility-option", f"{prefix}{key}={value}")]
    words = [mock.url if word == "MOCK" else word for word in HANGING[name]]
    process = subprocess.Popen(
        [sys.executable, "-m", "mbrace", *words, *options], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    until(lambda: asked.is_set() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    if name == "function":
        assert "Ctrl-C again stops at once" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=100)
    finally:
        process.kill()
        ended.set()
        server.shutdown()
    assert (process.returncode, "Traceback" in errors) == (130, False), errors


# Secrets


def test_credentials_and_keys_are_told_nowhere(
    mock: Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-key-of-mine")
    url = mock.url.replace("//", "//anna:pass%21word@") + "/v1?token=query-secret"
    said = b'{"error": {"message": "no: sk-key-of-mine pass%21word pass!word query-secret YW5uYTpwYXNzIXdvcmQ="}}'

    def plan(number: int) -> Reply | None:
        return Reply(said, 400) if mock.bodies[number - 1]["messages"][-1]["content"] == "zwei" else None

    mock.plan = plan
    assert main(command(mock, tmp_path, "--on-error", "skip", url=url)) == 0
    assert mock.bodies  # the query went to the server all the same
    mock.plan = lambda number: Reply(said.replace(b"no:", b"." * 292), 401)  # shortened in the middle of the key
    assert main([*command(mock, tmp_path, url=url), "--force"]) == 3
    written = [path.read_text() for path in tmp_path.iterdir()] + [*capsys.readouterr()]
    assert any("no: ***" in text for text in written)
    for secret in ("sk-key", "pass%21word", "pass!word", "query-secret", "YW5uYTpwYXNz", "anna"):
        assert not any(secret in text for text in written), secret


def test_a_run_goes_on_with_other_credentials(mock: Mock, tmp_path: Path) -> None:
    mock.plan = lambda number: "401" if number == 2 else None
    before, after = (mock.url.replace("//", f"//{login}@") for login in ("me:one-password", "me:other-password"))
    assert main(command(mock, tmp_path, url=before)) == 3
    assert main([*command(mock, tmp_path, url=after), "--resume"]) == 0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:80/v1", "http://h:80/v1"),
        ("http://u:p@h/v1", "http://***@h/v1"),
        ("http://u:p/w@x@h", "http://u:p/w@x@h"),  # no user: the host ends at the slash
        ("https://h/v1?a=1&key=x#y", "https://h/v1?a=***&key=***"),
        ("u:p@h", "u:p@h"),
    ],
)
def test_urls_are_shown_without_credentials(url: str, shown: str) -> None:
    assert hide_credentials(url) == shown


# Words and numbers

FIELD = {"type": "missing", "loc": ["body", "n"], "msg": "Field required", "input": {"prompt": "x"}}
NO_LISTS = ["[{" + "~" * 100_000 + "1}]", "[{1:" + "1+" * 50_000 + "1}]", "[{[]: 1}]"]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"detail": [FIELD]}, "n: Field required"),  # FastAPI
        ({"error": {"message": [FIELD], "code": 422}}, "n: Field required"),
        ({"object": "error", "message": str([FIELD | {"loc": ("body", "n")}])}, "n: Field required"),  # vLLM
        ([FIELD], "n: Field required"),
        *(({"error": {"message": text}}, text[:100_000]) for text in NO_LISTS),  # taken as text
    ],
)
def test_what_is_wrong_with_a_field_is_a_sentence(found: Any, message: str) -> None:
    assert message_of(found) == message


def test_a_list_in_a_very_long_message_is_not_parsed() -> None:
    """Parsed, these 20 MB took 6 GB and a minute."""
    tracemalloc.start()
    assert message_of({"error": {"message": "[{" + "1," * 10_000_000 + "}]"}}).startswith("[{1,1,1")
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


CHOICE = b'{"choices": [{"message": {%s}}]}'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"error": {"message": "out of credits", "code": 402}}', "status 402: the server says: out of credits"),
        (b'{"error": "model is loading"}', "the server says: model is loading"),
        (CHOICE % b'"content": null, "refusal": "I will not"', "without text: I will not"),
        (CHOICE % b'"content": null}, "finish_reason": "stop"}, {"message": {', "without text: stop"),
        (CHOICE % (b'"content": "x"}, "logprobs": {"content": [{"logprob": -' + b"1" * 400 + b"}]"), "of -inf"),
        (CHOICE % b'"content": "x"}, "logprobs": {"content": [{"logprob": NaN}]', "log-probabilities of nan"),
        (CHOICE % b'"content": "x"}, "logprobs": {"content": [{"logprob": -Infinity}]', "log-probabilities of -inf"),
        (b"[" * 100000, "cannot be read"),
    ],
)
def test_what_a_server_says_is_reported_in_its_words(mock: Mock, content: bytes, words: str) -> None:
    mock.plan = lambda number: Reply(content)
    with pytest.raises(ServiceError) as raised:
        mbrace.Server(mock.url, "m", prompt="{source}", retries=0, logprobs=True).candidates(["a"], 1)
    assert words in str(raised.value)


# Options


def test_options_reach_the_server(mock: Mock, tmp_path: Path) -> None:
    tops = ["--top-p", "0.9", "--top-k", "40", "--min-p", "0.05", "--temperature", "0.7"]
    ours = ["--max-tokens", "99", "--timeout", "5", "--server-option", "retries=2"]
    ours += ["--server-option", "system_prompt=be brief"]
    assert main(command(mock, tmp_path, *tops, *ours)) == 0
    body = mock.bodies[0]
    sent = {"top_p": 0.9, "top_k": 40, "min_p": 0.05, "temperature": 0.7, "max_tokens": 99, "n": 2}
    assert {**body, **sent} == body
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert main([*command(mock, tmp_path, *tops, *ours), "--max-tokens", "98", "--resume"]) == 2  # other outputs
    assert main([*command(mock, tmp_path, *tops, *ours), "--timeout", "6", "--resume"]) == 0
