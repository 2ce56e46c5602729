"""A model as a judge, and an embedding server: real HTTP on loopback, by a stand-in that answers what a test plans."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mbrace
from mbrace.cli import main
from mbrace.servers import http as client
from mbrace.servers.answers import AnswerFile, key_of


class Server:
    """Answers with what `reply(body)` gives: a JSON value, or a status. Counts tokens as words."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.reply: Callable[[dict[str, Any]], Any] = lambda body: chat("50")
        self.active = self.most = 0
        lock, server = threading.Lock(), self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
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
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, address: Any) -> None:  # a client that went away is no error here
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


def chat(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def words(body: dict[str, Any]) -> dict[str, Any]:
    """Scores of "hypothesis|reference": words in common."""
    hypothesis, reference = body["messages"][-1]["content"].split("|")
    return chat(str(len({*hypothesis.split()} & {*reference.split()})))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = Server()
    yield made
    made.server.shutdown()
    made.server.server_close()


PROMPT = "{hypothesis}|{reference}"
HYPOTHESES, REFERENCES = ["a b", "a c d", "e"], ["a c", "d a b", "c d e", "a c d"]


def test_a_race_takes_the_servers_numbers(server: Server) -> None:
    server.reply = words
    judge = mbrace.Judge(server.url, "m", prompt=PROMPT)
    assert isinstance(judge, mbrace.Utility)
    best = mbrace.decode(HYPOTHESES, REFERENCES, utility=judge, prune=None, schedule=[4])
    assert (best.text, best.utility) == ("a c d", 9 / 4)
    assert len(server.bodies) == 12
    assert set(server.paths) == {"/v1/chat/completions"}
    assert judge.cost == mbrace.Cost(requests=12, prompt_tokens=84, completion_tokens=24)
    body = server.bodies[0]
    assert {**body, "model": "m", "temperature": 0.0, "max_tokens": 16} == body
    mbrace.decode(HYPOTHESES, REFERENCES, utility=judge, prune=None, schedule=[4])
    assert len(server.bodies) == 12  # every question was asked before


def test_a_hypothesis_alone_is_asked_about_once(server: Server) -> None:
    server.reply = lambda body: chat(str(len(body["messages"][-1]["content"])))
    judge = mbrace.Judge(server.url, "m", prompt="{hypothesis}", system="be strict", max_tokens=None)
    assert judge.pairs(["a b", "a b", "abcd"], ["x", "y", "z"]).tolist() == [3, 3, 4]
    assert len(server.bodies) == 2
    assert [message["role"] for message in server.bodies[0]["messages"]] == ["system", "user"]
    assert "max_tokens" not in server.bodies[0]


def test_the_prompt_gets_all_three_texts_as_they_are(server: Server) -> None:
    judge = mbrace.Judge(server.url, "m", prompt='{source} {"x": {}} {hypothesis}: {reference}', concurrency=1)
    assert judge.needs_source
    judge.pairs(["{reference}", "\\1"], ["r", "{source}"], ["{hypothesis}", "s\ud800"])
    asked = [body["messages"][0]["content"] for body in server.bodies]
    assert asked == ['{hypothesis} {"x": {}} {reference}: r', 's? {"x": {}} \\1: {source}']
    with pytest.raises(mbrace.UserError, match="scores with the source: give sources"):
        judge.pairs(["a"], ["b"])
    with pytest.raises(mbrace.UserError, match=r"record 's1': source: missing; utility judge.* scores with the source"):
        list(mbrace.decode_corpus([mbrace.Record(["a", "b"], ["c"], id="s1")], utility=judge))


@pytest.mark.parametrize(
    ("text", "number"),
    [("85", 85.0), (" 85.5\n", 85.5), ("0", 0.0), ("+3", 3.0)]
    + [(bad, None) for bad in ("85/100", "Score: 85", "101", "-1", "nan", "1e1", "", "85 or 90", "８５", "inf", "8 5")],
)
def test_numbers_are_read_strictly(server: Server, text: str, number: float | None) -> None:
    server.reply = lambda body: chat(text)
    judge = mbrace.Judge(server.url, "m", prompt=PROMPT, attempts=1)
    if number is not None:
        assert judge.pairs(["h"], ["r"]).tolist() == [number]
    else:
        message = f"asked once for a number from 0 to 100, the model answered {text!r}"
        with pytest.raises(mbrace.UserError, match=re.escape(message)):
            judge.pairs(["h"], ["r"])


def test_an_answer_that_is_no_number_is_asked_for_again(server: Server) -> None:
    texts = iter(["It is good.", "140", "14"])
    server.reply = lambda body: chat(next(texts))
    judge = mbrace.Judge(server.url, "m", prompt=PROMPT)
    assert judge.pairs(["h"], ["r"]).tolist() == [14]
    assert judge.cost.requests == 3
    first, second, third = (body["messages"] for body in server.bodies)
    assert second[:1] == first
    assert second[1] == {"role": "assistant", "content": "It is good."}
    assert "not a number from 0 to 100" in second[2]["content"]
    assert third[1]["content"] == "140"
    server.reply = lambda body: chat("I refuse.")
    with pytest.raises(mbrace.UserError, match=r"asked 3 times for a number .* answered 'I refuse.'"):
        judge.pairs(["h"], ["other"])
    assert len(server.bodies) == 6


def test_a_pattern_finds_the_number_in_a_longer_answer(server: Server) -> None:
    server.reply = lambda body: chat("Fluent, 1 word missing.\nScore: -4.5")
    options: dict[str, Any] = {"prompt": PROMPT, "lowest": -25, "highest": 0, "attempts": 1}
    assert mbrace.Judge(server.url, "m", pattern=r"Score: (\S+)", **options).pairs(["h"], ["r"]).tolist() == [-4.5]
    for pattern in (r"Points: (\S+)", r"(\w+)"):  # none, and many
        with pytest.raises(mbrace.UserError, match="the model answered 'Fluent"):
            mbrace.Judge(server.url, "m", pattern=pattern, **options).pairs(["h"], ["r"])


def test_settings_that_make_no_sense_are_refused() -> None:
    for options, message in (
        ({"prompt": "{reference}"}, "prompt: has no {hypothesis}"),
        ({"prompt": "{hypothesis} {refrence}"}, "prompt: {refrence} is unknown; it may have {source}"),
        ({"lowest": 5, "highest": 5}, "lowest 5, highest 5: must be finite"),
        ({"pattern": "("}, "pattern (: is not a regular expression"),
        ({"pattern": "a"}, "pattern a: has 0 groups; give one, around the number"),
        ({"concurrency": 0}, "concurrency and attempts: must be 1 or more"),
    ):
        with pytest.raises(mbrace.UserError, match=re.escape(message)):
            mbrace.Judge("http://localhost:1", "m", **options)  # type: ignore[arg-type]


def test_a_busy_server_is_asked_again_and_never_by_more_than_allowed(server: Server) -> None:
    fails = iter([503, 429, 500])

    def reply(body: dict[str, Any]) -> Any:
        time.sleep(0.02)
        return next(fails, None) or words(body)

    server.reply = reply
    judge = mbrace.Judge(server.url, "m", prompt=PROMPT, concurrency=3)
    assert judge.pairs(["a b"] * 4, REFERENCES).tolist() == [1, 2, 0, 1]
    assert server.most <= 3
    server.reply = lambda body: 400
    with pytest.raises(mbrace.UserError, match="status 400: no"):
        judge.pairs(["z"], ["z"])


# Answers kept in a file


def test_kept_answers_are_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    server.reply = words
    first = mbrace.Judge(server.url, "m", prompt=PROMPT, answers=tmp_path / "deep" / "answers.jsonl")
    want = first.pairs(["a b"] * 4, REFERENCES).tolist()
    first.close()
    second = mbrace.Judge(server.url, "m", prompt=PROMPT, answers=tmp_path / "deep" / "answers.jsonl")
    assert second.pairs(["a b"] * 5, [*REFERENCES, "b"]).tolist() == [*want, 1]
    assert len(server.bodies) == 5
    assert second.cost == mbrace.Cost(requests=1, kept_answers=4, prompt_tokens=7, completion_tokens=2)
    for options in ({"model": "other"}, {"temperature": 0.5}, {"system": "x"}, {"prompt": PROMPT + " "}):
        judge = mbrace.Judge(
            **{"url": server.url, "model": "m", "prompt": PROMPT, "answers": first._file.path, **options}
        )  # type: ignore[arg-type, union-attr]
        judge.pairs(["a b"], ["a c"])
        assert judge.cost.requests == 1, options


def test_answers_that_arrived_are_kept_when_another_fails(server: Server, tmp_path: Path) -> None:
    server.reply = lambda body: 400 if body["messages"][0]["content"].endswith("c d e") else words(body)
    judge = mbrace.Judge(server.url, "m", prompt=PROMPT, answers=tmp_path / "answers", concurrency=1)
    with pytest.raises(mbrace.UserError, match="status 400"):
        judge.pairs(["a b"] * 4, REFERENCES)
    assert (judge.cost.requests, len(AnswerFile(tmp_path / "answers"))) == (2, 2)
    assert len(server.bodies) == 3  # the fourth was not begun


def test_a_killed_run_pays_only_for_what_it_had_not_received(server: Server, tmp_path: Path) -> None:
    answered = threading.Event()

    def reply(body: dict[str, Any]) -> Any:
        if len(server.bodies) > 2:
            answered.set()
            time.sleep(5)
        return words(body)

    server.reply = reply
    code = (
        "import mbrace, sys\n"
        f"judge = mbrace.Judge({server.url!r}, 'm', prompt={PROMPT!r}, answers=sys.argv[1], concurrency=1)\n"
        f"judge.pairs(['a b'] * 4, {REFERENCES!r})\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "answers")])
    assert answered.wait(60)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    server.reply = words
    judge = mbrace.Judge(server.url, "m", prompt=PROMPT, answers=tmp_path / "answers")
    assert judge.pairs(["a b"] * 4, REFERENCES).tolist() == [1, 2, 0, 1]
    assert (judge.cost.requests, judge.cost.kept_answers) == (2, 2)


def test_a_line_that_was_cut_off_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    file = AnswerFile(path)
    for number in range(3):
        file.put(key_of(number), {"text": str(number)})
    file.close()
    whole = path.read_bytes()
    for end in range(len(whole) - 40, len(whole)):
        path.write_bytes(whole[:end])
        if end < len(whole) - 1:
            with pytest.warns(UserWarning, match="1 line was cut off"):
                file = AnswerFile(path)
        else:  # only its line end is missing
            file = AnswerFile(path)
        file.put(key_of(3), {"text": "3"})
        again = {number: file.get(key_of(number)) for number in range(4)}
        assert [again[number] for number in (0, 1, 3)] == [{"text": str(number)} for number in (0, 1, 3)]
        assert again[2] == ({"text": "2"} if end == len(whole) - 1 else None)
        file.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"id": 1, "hypotheses": []}\n')
    with pytest.raises(mbrace.UserError, match=r"data.jsonl: line 1: is not a kept answer"):
        AnswerFile(tmp_path / "data.jsonl")
    with pytest.raises(mbrace.UserError, match="cannot be opened for answers"):
        AnswerFile(tmp_path)


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    files = [AnswerFile(tmp_path / "answers") for _ in range(2)]

    def write(file: AnswerFile, first: int) -> None:
        for number in range(first, first + 200):
            file.put(key_of(number), {"text": "x" * (number % 50)})

    threads = [threading.Thread(target=write, args=(file, 1000 * i)) for i, file in enumerate(files)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    both = AnswerFile(tmp_path / "answers")
    assert len(both) == 400
    for file, first in ((files[0], 0), (files[1], 1000), (both, 0), (both, 1000)):
        assert all(file.get(key_of(n)) == {"text": "x" * (n % 50)} for n in range(first, first + 200))


# On the command line


def test_decode_with_a_judge_and_its_cost(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.reply = words
    row = {"id": 1, "hypotheses": HYPOTHESES, "pseudo_references": REFERENCES}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "prompt.txt").write_text(PROMPT)
    judge = ["--utility", "judge", "--judge-server", server.url, "--judge-model", "m"]
    judge += ["--judge-prompt", f"@{tmp_path}/prompt.txt", "--judge-answers", f"{tmp_path}/answers"]
    command = ["decode", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out", "--prune", "none", "--schedule", "4", *judge]
    assert main(command) == 0
    assert json.loads((tmp_path / "out").read_text())["text"] == "a c d"
    assert "12 requests (84 + 24 tokens), 0 answers kept from before" in capsys.readouterr().err
    assert main([*command, "--force", "--utility-option", "attempts=1", "--utility-option", "highest=10"]) == 0
    assert "0 requests (0 + 0 tokens), 12 answers kept from before" in capsys.readouterr().err
    mixture = [word if word != "judge" else "judge:1+chrf++:0.5" for word in command]
    assert main([*mixture, "--force"]) == 0
    assert "0 requests (0 + 0 tokens), 12 answers kept from before" in capsys.readouterr().err


def test_a_run_goes_on_with_another_host_but_no_other_question(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.reply = words
    row = {"id": 1, "hypotheses": HYPOTHESES, "pseudo_references": REFERENCES}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n{\n")
    command = ["decode", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out", "--window", "1", "--utility", "judge"]
    command += ["--judge-model", "m", "--judge-prompt", PROMPT]
    assert main([*command, "--judge-server", server.url, "--judge-answers", f"{tmp_path}/answers"]) == 2
    assert "in.jsonl:2" in capsys.readouterr().err  # all but the second line is done
    elsewhere = [*command, "--judge-server", "http://localhost:1", "--resume"]
    assert main(elsewhere) == 2
    assert "in.jsonl:2" in capsys.readouterr().err
    assert main([*elsewhere, "--utility-option", "highest=5"]) == 2
    assert "was made with utility 'judge model=m prompt=" in capsys.readouterr().err


def test_score_with_a_judge_says_what_it_cost(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.reply = words
    (tmp_path / "h.txt").write_text("a b\na c\n")
    (tmp_path / "r.txt").write_text("a b\nb c\n")
    options = ["--utility", "judge", "--judge-server", server.url, "--judge-model", "m", "--judge-prompt", PROMPT]
    assert main(["score", f"{tmp_path}/h.txt", f"{tmp_path}/r.txt", *options]) == 0
    out, err = capsys.readouterr()
    assert "sentence average  1.5000  (2 lines, judge|m|" in out
    assert "mbrace: 2 requests (14 + 4 tokens), 0 answers kept from before" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--utility", "judge"], "--utility judge: needs --judge-server and --judge-model, those of its server"),
        (["--utility", "judge", "--judge-server", "http://x"], "--utility judge: needs --judge-model,"),
        (["--judge-model", "m"], "--judge-model: only valid with --utility judge, not chrf++"),
        (["--utility", "embedding-server"], "--utility embedding-server: needs url and model"),
        (
            ["--utility", "judge", "--judge-server", "http://x", "--judge-model", "m", "--utility-option", "api_key=k"],
            "--utility-option api_key: not one of judge; it takes url, model, prompt",
        ),
        (["--utility", "judge", "--judge-prompt", "@/no/file"], "--judge-prompt @/no/file: cannot be read"),
        (["--utility", "bertscore"], "--utility bertscore: needs --metric-model"),
        (["--utility", "bleurt"], "--utility bleurt: needs --metric-model"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1, "hypotheses": ["a"], "pseudo_references": ["b"]}\n')
    assert main(["decode", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out", *options]) == 2
    assert message in capsys.readouterr().err


# Embeddings


def vectors(body: dict[str, Any]) -> dict[str, Any]:
    """Counts of letters, out of order, as servers may send them."""
    data = [{"index": i, "embedding": [text.count(c) for c in "abcde"]} for i, text in enumerate(body["input"])]
    return {"data": data[::-1], "usage": {"prompt_tokens": len(body["input"])}}


def cosine(one: str, other: str) -> float:
    a, b = (np.array([text.count(c) for c in "abcde"], dtype=float) for text in (one, other))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_cosine_of_a_servers_embeddings(server: Server) -> None:
    server.reply = vectors
    utility = mbrace.EmbeddingServer(server.url, "m", per_request=2, options={"dimensions": 5})
    assert isinstance(utility, mbrace.Utility)
    best = mbrace.decode(HYPOTHESES, REFERENCES, utility=utility, prune=None, schedule=[4])
    means = [np.mean([cosine(hypothesis, reference) for reference in REFERENCES]) for hypothesis in HYPOTHESES]
    assert best.text == HYPOTHESES[int(np.argmax(means))]
    assert best.utility == pytest.approx(max(means), abs=1e-6)
    sent = [text for body in server.bodies for text in body["input"]]
    assert sorted(sent) == sorted({*HYPOTHESES, *REFERENCES})  # "a c d" is both: sent once
    assert {len(body["input"]) for body in server.bodies} == {2}
    assert set(server.paths) == {"/v1/embeddings"}
    assert server.bodies[0]["dimensions"] == 5
    assert utility.cost == mbrace.Cost(requests=3, prompt_tokens=6)


def test_blank_texts_are_not_sent(server: Server) -> None:
    server.reply = vectors
    utility = mbrace.EmbeddingServer(server.url, "m")
    assert utility.pairs(["", "a", " "], ["a", "a", "\n"]).tolist() == pytest.approx([0, 1, 0])
    assert [body["input"] for body in server.bodies] == [["a"]]
    alone = mbrace.EmbeddingServer(server.url, "m")
    assert alone.pairs([""], [" "]).tolist() == [0]
    assert alone.pairs(["a"], ["a"]).tolist() == pytest.approx([1])


def test_kept_embeddings_are_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    server.reply = vectors
    for want in (7, 7):
        utility = mbrace.EmbeddingServer(server.url, "m", per_request=1, answers=tmp_path / "vectors")
        found = utility.pairs(["a b", "a c", "e"], ["a", "b", "a e"])
        np.testing.assert_allclose(found, [cosine("ab", "a"), 0, cosine("e", "ae")], atol=1e-6)
        utility.close()
        want -= 1
        assert len(server.bodies) == 6
    assert utility.cost == mbrace.Cost(kept_answers=6)


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"index": 0, "embedding": [1.0, None]}],
        [{"index": 1, "embedding": [1.0]}],
        [{"index": 0, "embedding": []}],
        [{"index": 0, "embedding": [float("nan")]}],
    ],
)
def test_an_answer_without_the_embeddings_is_refused(server: Server, data: Any) -> None:
    server.reply = lambda body: {"data": data}
    with pytest.raises(mbrace.UserError, match="gave up after 2 tries; the last: an answer that cannot be read"):
        mbrace.EmbeddingServer(server.url, "m", retries=1).pairs(["a"], ["a"])


def test_embeddings_of_different_lengths_are_refused(server: Server) -> None:
    server.reply = lambda body: {"data": [{"index": 0, "embedding": [1.0] * len(body["input"][0])}]}
    with pytest.raises(mbrace.UserError, match="embeddings have 2 numbers for one text and 1 for another"):
        mbrace.EmbeddingServer(server.url, "m", per_request=1).pairs(["a"], ["bb"])
