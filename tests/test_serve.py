"""`mbrace serve`: OpenAI's client gets normal answers, who may not ask is refused, and nothing is left behind."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from accessibility import WIDTHS, findings_of
from cli_helpers import until
from test_answer import PEAKED, SPREAD, Model
from test_models_server import Reply

import mbrace
from mbrace.answers import Answering
from mbrace.cli import main
from mbrace.serve import engine
from mbrace.serve.app import Access, create_app
from mbrace.serve.engine import Engine, SharedWindow
from mbrace.serve.limits import Limits, limited_config, listen
from mbrace.serve.run import serve
from mbrace.servers import server


@dataclass
class Served:
    """A running endpoint in front of a model that a test tells what to draw."""

    url: str
    model: Model
    engine: Engine

    def post(self, **more: Any) -> httpx.Response:
        """The answer to a question, asked without OpenAI's client."""
        return httpx.post(f"{self.url}/v1/chat/completions", json={"messages": QUESTION} | more, timeout=120)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Served]:
    model = Model()

    def make(chat: bool) -> mbrace.Server:
        return mbrace.Server(model.url, "m", kind="chat" if chat else "completions", retries=0, concurrency=64)

    utilities = {"chrf++": mbrace.ChrF(), "exact": mbrace.ExactMatch(numbers=True)}
    engine = Engine(make, utilities, Answering(), open_requests=32)
    listener = listen("127.0.0.1", 0)
    app = create_app(engine, Access(), model="m")
    server = uvicorn.Server(limited_config(app, Limits(connections=256), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", model, engine)
    server.should_exit = True
    thread.join(120)
    engine.close()
    model.server.shutdown()


@pytest.fixture
def served(endpoint: Served) -> Served:
    endpoint.model.plan = lambda number: None
    endpoint.model.texts = lambda prompt: PEAKED
    endpoint.model.bodies.clear()
    return endpoint


def client_of(served: Served, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0)


QUESTION: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
]


# what is answered


def test_the_openai_client_gets_a_normal_answer_with_honest_usage(served: Served) -> None:
    client = client_of(served)
    assert [model.id for model in client.models.list()] == ["m"]
    found = client.chat.completions.create(model="m", messages=QUESTION, temperature=0.5, max_tokens=20, stop=["\n"])
    assert found.choices[0].message.content == PEAKED[0]
    assert found.choices[0].finish_reason == "stop"
    race = found.model_extra["mbrace"]  # type: ignore[index]
    sent = [body for body in served.model.bodies if body["messages"] == QUESTION]
    assert race["draws"] == sum(body["n"] for body in sent)
    assert all((body["temperature"], body["max_tokens"], body["stop"]) == (0.5, 20, ["\n"]) for body in sent)
    assert found.usage is not None
    assert found.usage.completion_tokens == 3 * race["draws"]
    assert found.usage.prompt_tokens == 10 * len(sent)
    assert race["stopped"] in ("regret", "one text", "all draws")
    assert race["runner_up"] is None or race["runner_up"]["text"] in PEAKED


def test_tokens_that_the_server_behind_does_not_tell_are_no_usage(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.model, "usage", lambda body: {})
    found = client_of(served).chat.completions.create(model="m", messages=QUESTION)
    assert found.usage is None
    assert found.choices[0].message.content == PEAKED[0]


def test_completions_streams_and_the_async_client_give_the_same_answer(served: Served) -> None:
    client = client_of(served)
    asked: Any = {"model": "m", "messages": QUESTION, "seed": 7}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    parts = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == whole
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens > 0
    plain = client.completions.create(model="m", prompt="What is the capital of France?")
    assert plain.choices[0].text in PEAKED

    served.model.texts = lambda prompt: ["\n    return x + 1\n"]
    indented = client.completions.create(model="m", prompt="def f(x):")
    assert indented.choices[0].text == "\n    return x + 1"  # it goes on where the prompt ends
    served.model.texts = lambda prompt: PEAKED

    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as other:
            found = await asyncio.gather(*(other.chat.completions.create(**asked) for _ in range(8)))
            return [each.choices[0].message.content for each in found]

    assert asyncio.run(ask()) == [whole] * 8  # the same seed, the same draws


def test_n_is_the_number_of_choices_and_mbrace_n_the_most_draws(served: Served) -> None:
    served.model.texts = lambda prompt: SPREAD
    found = client_of(served).chat.completions.create(
        model="m", messages=QUESTION, n=3, extra_body={"mbrace": {"n": 8, "regret": 0.0}}
    )
    assert len({choice.message.content for choice in found.choices}) == 3
    race = found.model_extra["mbrace"]  # type: ignore[index]
    assert race["draws"] <= 8
    assert race["runner_up"]["text"] == found.choices[1].message.content
    assert sum(body["n"] for body in served.model.bodies) == race["draws"]


def test_a_utility_of_the_list_may_be_chosen_and_temperature_0_is_one_draw(served: Served) -> None:
    alone = served.post(temperature=0).json()
    assert (alone["mbrace"]["draws"], alone["mbrace"]["utility"]) == (1, None)
    served.model.texts = lambda prompt: ["1,000", "1000", "1000.0", "7"]
    found = served.post(mbrace={"utility": "exact"}).json()
    assert found["choices"][0]["message"]["content"] in ("1,000", "1000", "1000.0")
    assert found["mbrace"]["stopped"] in ("vote", "one text", "all draws")


def test_a_stream_sends_comments_while_the_race_is_open(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from mbrace.serve import app

    monkeypatch.setattr(app, "KEEP_ALIVE", 0.05)
    commented = threading.Event()
    served.model.plan = lambda number: commented.wait(120) and None  # type: ignore[func-returns-value]
    asked = {"messages": QUESTION, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=asked, timeout=120) as response:
        parts = response.iter_text()
        text = next(parts)
        commented.set()
        text += "".join(parts)
    assert text.startswith(": the race is open")
    assert text.rstrip().endswith("data: [DONE]")


# what is refused


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: calls of tools"),
        ({"logprobs": True}, "logprobs: an answer is chosen among several"),
        ({"n": 17}, "n: must be from 1 to 16"),
        ({"n": 0}, "n: must be from 1 to 16"),
        ({"n": True}, "n: must be from 1 to 16"),
        ({"mbrace": {"n": "4"}}, "mbrace.n: must be a whole number"),
        ({"mbrace": {"utility": ["exact"]}}, "mbrace.utility: only chrf++, exact"),
        ({"seed": 10**40}, "seed: must be a whole number of at most 63 bits"),
        ({"stop": [1]}, "stop: must be a text, or a list of texts"),
        ({"response_format": 3}, "response_format: must be an object"),
        ({"presence_penalty": "high"}, "presence_penalty: must be from -2 to 2"),
        ({"mbrace": {"n": 17}}, "mbrace.n: must be from 1 to 16"),
        ({"mbrace": {"regret": -1}}, "mbrace.regret: must be 0 or more"),
        ({"mbrace": {"utility": "os:system"}}, "mbrace.utility: only chrf++, exact"),
        ({"mbrace": {"model": "x"}}, "mbrace.model: is not known"),
        ({"temperature": "hot"}, "temperature: must be from 0 to 2"),
        ({"max_tokens": 0}, "max_tokens: must be from 1"),
        ({"frobnicate": 1}, "frobnicate: is not known here"),
        ({"messages": []}, "give messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages: the last one is empty"),
        ({"messages": [{"role": "user", "content": [{"text": 5}]}]}, "messages: the last one is empty"),
        ({"stream": "yes"}, "stream: must be true or false"),
    ],
)
def test_a_bad_request_is_refused_by_its_field(served: Served, more: dict[str, Any], words: str) -> None:
    found = served.post(**more)
    assert found.status_code == 400
    assert words in found.json()["error"]["message"]
    assert served.model.bodies == []


def test_other_models_bodies_hosts_and_origins_are_refused(served: Served) -> None:
    url = f"{served.url}/v1/chat/completions"
    asked = {"messages": QUESTION}
    assert served.post(model="gpt").status_code == 404
    assert httpx.post(url, content=b"{").status_code == 400
    assert httpx.post(url, content=b"x" * (5 << 20)).status_code == 413
    assert httpx.post(url, json=asked, headers={"host": "evil.example"}).status_code == 421
    for origin in ("http://evil.example", "null", "http://[", f"ftp://{served.url}"):
        assert httpx.post(url, json=asked, headers={"origin": origin}).status_code == 403
    assert httpx.post(url, json=asked, headers={"origin": served.url}).status_code == 200
    for method, path, status in (("GET", "/v1/chat/completions", 405), ("POST", "/v1/embeddings", 404)):
        found = httpx.request(method, served.url + path)
        assert (found.status_code, found.json()["error"]["message"][: len(method)]) == (status, method)


def test_the_key_is_needed_where_one_is_set() -> None:
    from starlette.testclient import TestClient

    engine = Engine(lambda chat: None, {"chrf++": mbrace.ChrF()}, Answering(), open_requests=1)  # type: ignore[arg-type, return-value]
    client = TestClient(create_app(engine, Access("secret"), model="m"), base_url="http://localhost")
    assert client.get("/health").status_code == 200
    assert client.get("/").status_code == 200
    for path in ("/v1/models", "/metrics"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer secret"}).status_code == 200
        # older versions of starlette put what follows a slash here before the path of the request
        assert client.get(path, headers={"host": "127.0.0.1/static/"}).status_code == 421


def test_without_a_key_only_loopback_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MBRACE_SERVE_KEY", raising=False)
    with pytest.raises(mbrace.UserError, match=r"host 0\.0\.0\.0: others could use this endpoint; set a key"):
        serve(lambda chat: None, {}, model="m", settings=Answering(), host="0.0.0.0")  # type: ignore[arg-type, return-value]


def test_half_a_character_reaches_the_server_as_a_question_mark_and_the_client_as_it_is(served: Served) -> None:
    served.model.texts = lambda prompt: ["\ud800"]
    body = b'{"messages": [{"role": "user", "content": "\\ud800 What?"}]}'
    found = httpx.post(f"{served.url}/v1/chat/completions", content=body)
    assert found.json()["choices"][0]["message"]["content"] == "\ud800"
    assert served.model.bodies[0]["messages"][0]["content"] == "? What?"


def test_a_fault_of_ours_is_an_error_in_the_form_of_the_protocol(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "answers", lambda *given, **options: 1 / 0)
    found = served.post()
    assert (found.status_code, found.json()["error"]["type"]) == (500, "server_error")
    assert "ZeroDivisionError" in caplog.text


# upstream


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        ("429", 429, "upstream: "),
        ("401", 401, "upstream: "),
        ("503", 503, "upstream: "),
        ("cut", 502, "upstream: "),
        (None, 422, "none of 16 samples is usable"),
    ],
)
def test_upstream_errors_keep_their_status(served: Served, reply: str | None, status: int, words: str) -> None:
    served.model.plan, served.model.texts = lambda number: reply, lambda prompt: ["cut ...", "half ..."]
    found = served.post()
    assert found.status_code == status
    assert words in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "stream"), [("/v1/chat/completions", False), ("/v1/chat/completions", True), ("/race", False)]
)
def test_a_client_that_goes_away_cancels_its_upstream_requests(served: Served, path: str, stream: bool) -> None:
    waiting, release = threading.Event(), threading.Event()

    def plan(number: int) -> None:
        waiting.set()
        release.wait(120)

    served.model.plan, served.model.texts = plan, lambda prompt: SPREAD
    leaving = http.client.HTTPConnection(served.url.removeprefix("http://"))
    leaving.request("POST", path, json.dumps({"messages": QUESTION, "stream": stream}))
    assert waiting.wait(120)
    leaving.close()
    until(lambda: not served.engine.open)
    release.set()
    served.model.plan = lambda number: None
    assert served.post(messages=[{"role": "user", "content": "Another?"}]).status_code == 200
    assert [body["messages"] for body in served.model.bodies].count(QUESTION) == 1  # no next step


def test_no_more_requests_are_open_than_allowed(served: Served) -> None:
    release = threading.Event()
    served.model.plan = lambda number: release.wait(120) and None  # type: ignore[func-returns-value]

    async def ask() -> list[int]:
        async with httpx.AsyncClient(timeout=120) as client:
            url = f"{served.url}/v1/chat/completions"
            tasks = [asyncio.create_task(client.post(url, json={"messages": QUESTION})) for _ in range(40)]
            while sum(task.done() for task in tasks) < 8:  # those that are refused
                await asyncio.sleep(0.02)
            release.set()
            return [found.status_code for found in await asyncio.gather(*tasks)]

    statuses = asyncio.run(ask())
    assert (statuses.count(200), statuses.count(429)) == (32, 8)


def test_races_that_ask_at_the_same_time_share_one_batch() -> None:
    begun, batches = threading.Event(), []

    def utility(hypotheses: Any, references: Any) -> list[float]:
        batches.append(len(hypotheses))
        begun.wait(120)
        return [float(h == r) for h, r in zip(hypotheses, references, strict=True)]

    plain = mbrace.Pairwise(utility, batch=True)
    shared = SharedWindow(plain)
    lists = [[f"{number} {word}" for word in "abcab"] for number in range(6)]
    found: dict[int, Any] = {}

    def race(number: int) -> None:
        found[number] = mbrace.decode(lists[number], utility=shared, prune=None)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    threads[0].start()
    until(lambda: batches)  # its batch is being scored
    for thread in threads[1:]:
        thread.start()
    until(lambda: shared._waiting.qsize() == 5)
    begun.set()
    for thread in threads:
        thread.join(120)
    assert len(batches) == 2  # the first alone, then all that had come meanwhile
    for number in range(6):
        assert found[number] == mbrace.decode(lists[number], utility=plain, prune=None)


def test_a_shared_window_encodes_each_string_of_a_race_once_and_keeps_its_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[str] = []

    class Noting(mbrace.ExactMatch):
        def preparer(self) -> Any:
            return lambda text: prepared.append(text) or text

    monkeypatch.setattr(engine, "PLACES", 2)  # every third race begins another window
    mixture = mbrace.Mixture([(mbrace.ChrF(), 0.5), (mbrace.EditDistance(), 0.5)])  # scaled by each race's first table
    noting, mixed = SharedWindow(Noting()), SharedWindow(mixture)
    steps: Any = {"schedule": [2, 4, 8, 16, 32], "pool": True, "regret": 0.0}
    for number in range(5):
        chance = random.Random(number)
        draws = [" ".join(chance.choices("abcdef", k=6)) for _ in range(32)]
        found, wanted, _ = (
            mbrace.decode([], iter(draws), utility=utility, **steps) for utility in (mixed, mixture, noting)
        )
        assert found == wanted
        assert len(prepared) == len(set(prepared))
        prepared.clear()


def metrics_of(served: Served) -> Counter[str]:
    """The metrics by name."""
    lines = httpx.get(f"{served.url}/metrics").text.splitlines()
    found = (line.rpartition(" ") for line in lines if line[0] != "#")
    return Counter({name: float(value) for name, _, value in found})  # type: ignore[misc]


def test_the_metrics_count_what_failed_too(served: Served) -> None:
    served.model.texts = lambda prompt: SPREAD
    before = metrics_of(served)
    client_of(served).chat.completions.create(model="m", messages=QUESTION)
    served.model.plan = lambda number: "401" if len(served.model.bodies) > 3 else None  # the second race, after a step
    assert served.post().status_code == 401
    more = metrics_of(served) - before
    paid = served.model.bodies[:-1]
    assert more["mbrace_draws_total"] == sum(body["n"] for body in paid)
    assert more["mbrace_tokens_out_total"] == 3 * more["mbrace_draws_total"]
    assert more["mbrace_upstream_requests_total"] == len(paid)
    for status in (200, 401):
        assert more[f'mbrace_requests_total{{path="/v1/chat/completions",status="{status}"}}'] == 1
    assert sum(count for name, count in more.items() if "answers_total" in name) == 1
    served.engine.metrics.add("many_total", 12_345_678)
    assert metrics_of(served)["mbrace_many_total"] == 12_345_678
    assert "# TYPE mbrace_draws_total counter" in httpx.get(f"{served.url}/metrics").text
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok", "open_requests": 0}


def test_a_stream_whose_race_fails_has_the_status_of_the_failure(served: Served) -> None:
    before = metrics_of(served)
    served.model.plan = lambda number: "503"
    found = served.post(stream=True)
    assert found.status_code == 503
    assert found.json()["error"]["message"].startswith("upstream: gave up after 1 tries; the last: status 503")
    assert served.model.url.split("//")[1] not in found.text
    found = httpx.post(f"{served.url}/race", json={"messages": QUESTION}, timeout=120)  # whose status is sent before
    assert json.loads(found.text)["error"].startswith("upstream: gave up after 1 tries")
    more = metrics_of(served) - before
    for path in ("/v1/chat/completions", "/race"):
        assert more[f'mbrace_requests_total{{path="{path}",status="503"}}'] == 1


def test_a_stream_that_fails_after_its_first_comment_says_so_and_is_counted_by_its_failure(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mbrace.serve import app

    before = metrics_of(served)
    monkeypatch.setattr(app, "KEEP_ALIVE", 0.05)
    commented = threading.Event()
    served.model.plan = lambda number: (commented.wait(120), "503")[1]
    asked = {"messages": QUESTION, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=asked, timeout=120) as response:
        parts = response.iter_text()
        assert next(parts).startswith(": the race is open")
        commented.set()
        error = json.loads("".join(parts).split("data: ")[1])["error"]
    assert (response.status_code, error["code"]) == (200, 503)
    name = 'mbrace_requests_total{path="/v1/chat/completions",status="503"}'
    until(lambda: (metrics_of(served) - before)[name] == 1)


# the command


def refuses(url: str) -> bool:
    """Whether an endpoint takes no more requests."""
    try:
        httpx.get(f"{url}/health", timeout=120)
    except httpx.HTTPError:
        return True
    return False


def test_the_command_serves_drains_on_sigterm_and_logs_no_prompt() -> None:
    model = Model()
    environment = os.environ | {"MBRACE_SERVE_KEY": "key-of-ours", "OPENAI_API_KEY": "key-upstream"}
    command = ["serve", "--server", model.url, "--server-model", "m", "--host", "localhost", "--port", "0", "-n", "8"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mbrace", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    url = line.split("mbrace: ")[-1].split(" ")[0]
    assert url.startswith("http://localhost:")  # which may be ::1
    busy = Reply(b"busy with a-secret-question", 503, {"retry-after": "1"})
    draining = threading.Event()
    model.plan = lambda number: busy if number == 1 and draining.wait(120) else None
    client = openai.OpenAI(base_url=url, api_key="key-of-ours", max_retries=0)
    secret: Any = [{"role": "user", "content": "a-secret-question"}]
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(client.chat.completions.create(model="m", messages=secret)))
    thread.start()
    until(lambda: model.bodies or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    until(lambda: refuses(url))
    draining.set()
    thread.join(120)
    assert answers[0].choices[0].message.content in PEAKED  # an open request gets its answer
    _, said = process.communicate(timeout=120)
    for word in ("a-secret-question", "key-of-ours", "key-upstream", "Traceback", "capital"):
        assert word not in line + said
    assert model.headers[-1]["authorization"] == "Bearer key-upstream"
    model.server.shutdown()


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_are_open_when_the_time_for_draining_is_over_are_told_so(stream: bool) -> None:
    model, release = Model(), threading.Event()
    model.plan = lambda number: (release.wait(240), None)[1]
    command = ["serve", "--server", model.url, "--server-model", "m", "--port", "0", "--drain", "0.3"]
    process = subprocess.Popen([sys.executable, "-m", "mbrace", *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = process.stderr.readline().split("mbrace: ")[-1].split(" ")[0]
    found: list[httpx.Response] = []
    asked = {"messages": QUESTION, "stream": stream}
    thread = threading.Thread(
        target=lambda: found.append(httpx.post(f"{url}/chat/completions", json=asked, timeout=120))
    )
    thread.start()
    until(lambda: model.bodies or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    thread.join(120)
    assert found[0].status_code == 503
    assert "is being shut down" in found[0].json()["error"]["message"]
    process.communicate(timeout=120)
    release.set()
    model.server.shutdown()


def test_the_help_has_the_defaults_of_serving(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "requests to the server at the same time (default: 64)" in said


# the page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_person_watches_the_answers_race(served: Served, browser: Any, width: int, scheme: Any) -> None:
    long = "word" * 100
    served.model.texts = lambda prompt: [f"<b>{text}</b>" for text in [*SPREAD[:4], long]] + ["<b>the one</b>"] * 8
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(served.url + "/")
    page.get_by_label("Prompt").fill("Which one?")
    page.get_by_role("button", name="Ask").click()
    page.locator("#answer").wait_for(timeout=120_000)
    assert page.locator("#answer").inner_text() in served.model.texts("")  # as text, not as markup
    assert "draws, stopped by" in page.locator("#told").inner_text()
    assert json.dumps(served.model.bodies[0]["messages"]) == json.dumps([{"role": "user", "content": "Which one?"}])
    page.locator("#answer").evaluate("(place, text) => { place.textContent = text; }", long)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert findings_of(page) == []
    served.model.plan = lambda number: "401"
    page.get_by_role("button", name="Ask").click()
    page.get_by_text("Failed: upstream").wait_for(timeout=120_000)
    assert errors == []
    page.close()


def test_a_race_is_shown_step_by_step_while_it_is_on_and_again_afterwards(served: Served, browser: Any) -> None:
    released = threading.Event()
    served.model.texts = lambda prompt: SPREAD
    served.model.plan = lambda number: (number == first or released.wait(120), None)[1]
    first = len(served.model.bodies) + 1
    page = browser.new_page(viewport={"width": 900, "height": 900})
    page.goto(served.url + "/")
    page.get_by_label("Prompt").fill("Which one?")
    page.get_by_role("button", name="Ask").click()
    page.get_by_text("Step 1 of 1: 4 draws").wait_for(timeout=120_000)
    assert page.locator("#race svg .series").count() >= 3  # a line for each answer
    assert page.locator("#verdict").is_hidden()
    released.set()
    page.locator("#verdict").wait_for(timeout=120_000)
    last = page.locator("#state").inner_text()
    steps = int(last.split(" of ")[1].split(":")[0])
    assert last.startswith(f"Step {steps} of {steps}")
    assert steps > 1
    answer = page.locator("#answer").inner_text()
    assert page.locator("#field tr", has_text=answer).locator(".tag.answer").count() == 1
    page.get_by_role("button", name="Step back").click()
    assert page.locator("#state").inner_text().startswith(f"Step {steps - 1} of {steps}")
    assert page.locator("#verdict").is_hidden()
    page.locator("#step").press("End")
    assert page.locator("#answer").inner_text() == answer
    served.model.texts = lambda prompt: ["Yes."]
    page.get_by_role("button", name="Ask").click()
    page.get_by_text("Step 1 of 1: 4 draws, 1 answer, 1 stay.").wait_for(timeout=120_000)
    page.locator("#verdict").wait_for(timeout=120_000)
    assert page.locator("#answer").inner_text() == "Yes."
    page.close()
