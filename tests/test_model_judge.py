"""A model as a judge, and an embedding server: real HTTP on loopback, by a stand-in that answers what a test plans."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import HYPOTHESES, PROMPT, REFERENCES, Server, chat, judge_flags, serve, words

import mbrace
from mbrace.cli import main
from mbrace.errors import ServiceError


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    yield from serve(monkeypatch)


def test_a_race_takes_the_servers_numbers(server: Server) -> None:
    server.reply = words
    judge = mbrace.Judge(server.url, "m", prompt=PROMPT)
    assert isinstance(judge, mbrace.Utility)
    best = mbrace.decode(HYPOTHESES, REFERENCES, utility=judge, prune=None, schedule=[4])
    assert (best.text, best.utility) == ("a c d", 9 / 4)
    assert len(server.bodies) == 12
    assert set(server.paths) == {"/v1/chat/completions"}
    assert judge.cost == mbrace.utility.Cost(requests=12, prompt_tokens=84, completion_tokens=24)
    body = server.bodies[0]
    assert {**body, "model": "m", "temperature": 0.0, "max_tokens": 16} == body
    mbrace.decode(HYPOTHESES, REFERENCES, utility=judge, prune=None, schedule=[4])
    assert len(server.bodies) == 12  # every question was asked before


def test_a_hypothesis_alone_is_asked_about_once(server: Server) -> None:
    server.reply = lambda body: chat(str(len(body["messages"][-1]["content"])))
    judge = mbrace.Judge(server.url, "m", prompt="{hypothesis}", system_prompt="be strict", max_tokens=None)
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


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """`mbrace decode` of one record."""
    row = {"id": 1, "hypotheses": HYPOTHESES, "pseudo_references": REFERENCES}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    return ["decode", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out", "--prune", "none", "--schedule", "4"]


def test_decode_and_score_with_a_judge_say_what_it_cost(
    server: Server, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.reply = words
    (tmp_path / "prompt.txt").write_text(PROMPT)
    asked = [*command, *judge_flags(server.url, prompt=f"@{tmp_path}/prompt.txt", answers=tmp_path / "answers")]
    mixture = ["judge:1+chrf++:0.5" if word == "judge" else f"judge.{word}" if "=" in word else word for word in asked]
    other = ["--utility-option", "attempts=1", "--utility-option", "highest=10"]
    kept = "0 requests (0 + 0 tokens), 12 answers kept from before"
    runs = [(asked, "12 requests (84 + 24 tokens), 0 answers kept from before")]
    runs += [([*asked, "--force", *other], kept), ([*mixture, "--force"], kept)]
    for run, cost in runs:
        assert main(run) == 0
        assert cost in " ".join(capsys.readouterr().err.split())
    assert json.loads((tmp_path / "out").read_text())["text"] == "a c d"
    (tmp_path / "h.txt").write_text("a b\na c\n")
    (tmp_path / "r.txt").write_text("a b\nb c\n")
    assert main(["score", f"{tmp_path}/h.txt", f"{tmp_path}/r.txt", *judge_flags(server.url, prompt=PROMPT)]) == 0
    out, err = capsys.readouterr()
    assert "sentence average  1.5000  (2 lines, judge|m|" in out
    assert "mbrace: 2 requests (14 + 4 tokens), 0 answers kept from before" in err


def test_a_run_goes_on_with_another_host_but_no_other_question(
    server: Server, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.reply = words
    with open(tmp_path / "in.jsonl", "a") as file:
        file.write("{\n")
    command += ["--window", "1"]
    assert main([*command, *judge_flags(server.url, prompt=PROMPT, answers=tmp_path / "answers")]) == 2
    elsewhere = [*command, *judge_flags("http://localhost:1", prompt=PROMPT), "--resume"]
    assert main(elsewhere) == 2
    assert capsys.readouterr().err.count("in.jsonl:2") == 2  # all but the second line is done
    assert main([*elsewhere, "--utility-option", "highest=5"]) == 2
    assert "was made with utility 'judge model=m prompt=" in capsys.readouterr().err


# in production


def judge(server: Server, **options: Any) -> mbrace.Judge:
    return mbrace.Judge(server.url, "m", **({"prompt": PROMPT, "attempts": 1, "retries": 0} | options))


def test_an_unreadable_answer_is_left_out_and_too_many_end_the_run(server: Server) -> None:
    def reply(body: dict[str, Any]) -> Any:
        hypothesis, reference = body["messages"][-1]["content"].split("|")
        return chat("cannot say") if reference == "odd" else chat(str(len(hypothesis) + len(reference)))

    server.reply = reply
    references = ["a", "bb", "odd", "cccc"]
    answer = mbrace.decode(["x", "yy"], references, utility=judge(server, most_unreadable=0.5), prune=None)
    assert (answer.text, answer.utility) == ("yy", pytest.approx((3 + 4 + 6) / 3))  # the mean of the others
    server.reply = lambda body: chat("cannot say")
    with pytest.raises(ServiceError, match="'cannot say'"):
        judge(server).pairs([f"h{n}" for n in range(60)], ["r"] * 60)
    assert len(server.bodies) < 60


def test_a_record_without_a_readable_answer_is_a_bad_one_and_others_go_on(server: Server) -> None:
    server.reply = lambda body: chat("cannot" if body["messages"][0]["content"] in ("x", "yy") else "7")
    records = [mbrace.Record(texts, id=number) for number, texts in enumerate((["a", "bb"], ["x", "yy"], ["c", "dd"]))]
    failed: dict[str | int, str] = {}
    found = mbrace.decode_corpus(
        records,
        utility=judge(server, prompt="{hypothesis}"),
        on_error=lambda record, error: failed.update({record.id: str(error)}),
    )
    assert [answer.id for answer in found] == [0, 2]
    assert [*failed] == [1]
    assert "2 of 6 answers are unreadable; asked once for a number from 0 to 100" in failed[1]


def test_the_budget_is_the_most_requests(server: Server, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    with pytest.raises(ServiceError, match="the judge's budget of 5 requests is spent"):
        judge(server, budget=5, concurrency=1, answers=kept).pairs(list("abcdefgh"), ["r"] * 8)
    assert len(server.bodies) == 5
    again = judge(server, budget=5, concurrency=1, answers=kept)
    assert len(again.pairs(list("abcdefgh"), ["r"] * 8)) == 8
    assert len(server.bodies) == 8


def test_structured_answers_are_used_where_the_server_has_them(server: Server) -> None:
    server.reply = lambda body: chat('{"score": 70}' if "response_format" in body else "30")
    assert judge(server, structured=True).pairs(["a", "b"], ["r", "r"]).tolist() == [70, 70]
    server.reply = lambda body: 400 if "response_format" in body else chat("30")
    assert judge(server, structured=True).pairs(["a", "b"], ["r", "r"]).tolist() == [30, 30]
    server.reply = lambda body: chat("30")  # a server that ignores the field
    assert judge(server, structured=True).pairs(["a", "b"], ["r", "r"]).tolist() == [30, 30]
    replies = iter([503, chat('{"score": 70}'), chat('{"score": 80}')])  # a server that is busy at first
    server.reply = lambda body: next(replies)
    assert judge(server, structured=True, retries=1).pairs(["a"], ["r"]).tolist() == [80]


def test_the_expected_score_weights_what_might_have_been_answered(server: Server) -> None:
    likely = [("4", 0.6), ("5", 0.2), ("1", 0.1), ("9", 0.05), ("the", 0.05)]
    top = [{"token": token, "logprob": math.log(share)} for token, share in likely]
    token = {"token": "4", "logprob": math.log(0.6), "top_logprobs": top}
    found = chat("4")
    found["choices"][0]["logprobs"] = {"content": [token]}
    server.reply = lambda body: found
    wanted = (4 * 0.6 + 5 * 0.2 + 1 * 0.1) / 0.9  # 9 is out of range
    scored = judge(server, expected=True, lowest=1, highest=5)
    assert scored.pairs(["a"], ["r"]).tolist() == [pytest.approx(wanted)]
    assert server.bodies[-1]["top_logprobs"] == 20
    server.reply = lambda body: chat("4")  # no log-probabilities
    assert scored.pairs(["b"], ["r"]).tolist() == [4.0]


def test_a_comparison_is_asked_in_both_orders(server: Server) -> None:
    def reply(body: dict[str, Any]) -> Any:
        first, second = body["messages"][-1]["content"].split("|")
        if "tie" in (first, second):
            return chat("A")  # whatever comes first
        return chat("A" if len(first) > len(second) else "B.")

    server.reply = reply
    scored = judge(server, compare=True)
    found = scored.pairs(["long", "s", "s", "tie", "same"], ["s", "long", "long", "s", "same"])
    assert found.tolist() == [1.0, 0.0, 0.0, 0.5, 0.5]
    assert len({body["messages"][-1]["content"] for body in server.bodies}) == len(server.bodies)
    assert mbrace.decode(["a", "bbb", "cc"], utility=scored, prune=None).text == "bbb"


def test_a_letter_that_begins_a_sentence_is_no_answer(server: Server) -> None:
    server.reply = lambda body: chat("A better answer is B.")
    with pytest.raises(mbrace.UserError, match=r"unreadable; asked once for A or B"):
        judge(server, compare=True).pairs(["long"], ["s"])
    server.reply = lambda body: chat("**A**: it says more" if body["messages"][0]["content"] == "long|s" else "B")
    assert judge(server, compare=True).pairs(["long"], ["s"]).tolist() == [1.0]


@pytest.mark.parametrize(("text", "highest", "score"), [("8", 100, None), ("4", 5, 4.0), ("30", 100, 30.0)])
def test_a_number_that_may_go_on_after_the_cut_is_no_answer(
    server: Server, text: str, highest: int, score: float | None
) -> None:
    found = chat(text)
    found["choices"][0]["finish_reason"] = "length"
    server.reply = lambda body: found
    if score is not None:
        assert judge(server, highest=highest).pairs(["a"], ["r"]).tolist() == [score]
        return
    with pytest.raises(mbrace.UserError, match=f"the model answered '{text}'"):
        judge(server, highest=highest).pairs(["a"], ["r"])
