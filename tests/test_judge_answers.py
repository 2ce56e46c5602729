"""Answers of a judge that are kept in a file: none is asked for twice, whatever was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import PROMPT, REFERENCES, Server, serve, words

import mbrace
from mbrace.servers.answer_file import AnswerFile, key_of


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    yield from serve(monkeypatch)


def test_kept_answers_are_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    server.reply = words
    first = mbrace.Judge(server.url, "m", prompt=PROMPT, answers=tmp_path / "deep" / "answers.jsonl")
    want = first.pairs(["a b"] * 4, REFERENCES).tolist()
    first.close()
    second = mbrace.Judge(server.url, "m", prompt=PROMPT, answers=tmp_path / "deep" / "answers.jsonl")
    assert second.pairs(["a b"] * 5, [*REFERENCES, "b"]).tolist() == [*want, 1]
    assert len(server.bodies) == 5
    assert second.cost == mbrace.utility.Cost(requests=1, kept_answers=4, prompt_tokens=7, completion_tokens=2)
    for options in ({"model": "other"}, {"temperature": 0.5}, {"system_prompt": "x"}, {"prompt": PROMPT + " "}):
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
    answered, killed = threading.Event(), threading.Event()

    def reply(body: dict[str, Any]) -> Any:
        if len(server.bodies) > 2:
            answered.set()
            killed.wait(120)
        return words(body)

    server.reply = reply
    code = (
        "import mbrace, sys\n"
        f"judge = mbrace.Judge({server.url!r}, 'm', prompt={PROMPT!r}, answers=sys.argv[1], concurrency=1)\n"
        f"judge.pairs(['a b'] * 4, {REFERENCES!r})\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "answers")])
    assert answered.wait(120)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    killed.set()
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


@pytest.mark.parametrize("answer", [{}, {"embedding": 5}, {"embedding": "!!"}, {"embedding": "AAA="}])
def test_a_kept_answer_of_another_kind_of_request_is_refused(answer: dict[str, Any], tmp_path: Path) -> None:
    from mbrace.servers.embeddings import _vector

    file = AnswerFile(tmp_path / "kept")
    file.put(key_of(1), answer)
    with pytest.raises(mbrace.UserError, match=r"kept: a kept answer is not of this kind of request"):
        file.get(key_of(1), _vector)
    file.close()


def test_a_line_nested_too_deeply_is_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("[" * 100_000 + "\n")
    with pytest.warns(UserWarning, match="1 line was cut off"):
        assert len(AnswerFile(tmp_path / "kept")) == 0


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
