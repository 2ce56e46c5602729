"""Answers by consensus: what is drawn and paid, when it ends, what is written, and the answer without a race."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from cli_helpers import until
from test_models_server import Mock

import mbrace
from mbrace.answers import Vote, prompt_of, steps_to
from mbrace.cli import main
from mbrace.errors import ServiceError
from mbrace.servers.abilities import PROBE
from mbrace.servers.failures import StatusError

PEAKED = ["The capital of France is Paris."] * 12
PEAKED += ["Paris is the capital of France.", "It is Lyon.", "Paris.", "I do not know."]
SPREAD = [f"{word} is what {other} said" for word in "abcdef" for other in "uvwxyz"]


class Model(Mock):
    """Draws from `texts` of a prompt, by seed; each output has three tokens, each prompt ten."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: Callable[[str], list[str]] = lambda prompt: PEAKED
        self.finish = "stop"

    def made(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        texts = SPREAD if asked == PROBE else self.texts(str(asked))  # it is seen to sample
        out = []
        for index in range(min(body["n"], self.choices)):
            text = random.Random(f"{body['seed']} {index}").choice(texts)
            reason = "length" if text.endswith("...") else "stop"
            out.append({"message": {"content": text}, "text": text, "finish_reason": reason})
        return out

    def usage(self, body: dict[str, Any]) -> dict[str, int]:
        return {"prompt_tokens": 10, "completion_tokens": 3 * body["n"]}


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    yield made
    made.close()


def server(model: Model, **options: Any) -> mbrace.Server:
    return mbrace.Server(model.url, "m", **({"retries": 0} | options))


def flags(model: Model, *more: str) -> list[str]:
    return ["--server", model.url, "--server-model", "m", "--server-option", "retries=0", *more]


def count_one_choice(model: Model) -> None:
    """Let the `usage` of its answers be that of one choice, as llama.cpp's is, which also counts tokens."""
    answer = model.answer

    def like_llama(request: Any, body: dict[str, Any]) -> None:
        if "content" in body:
            return request.send(200, b'{"tokens": [1, 2, 3]}')
        if PROBE not in str(body["messages"]):
            return answer(request, body)
        model.probes.append(body)
        choices = [choice | {"finish_reason": "length"} for choice in model.made(body)]
        usage = {"prompt_tokens": 10, "completion_tokens": 8}
        return request.send(200, json.dumps({"choices": choices, "usage": usage}).encode())

    model.answer = like_llama  # type: ignore[method-assign]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# what is drawn


def test_draws_are_made_in_steps_while_the_race_is_open_and_paid_exactly(model: Model) -> None:
    found = server(model).answer([f"question {n}" for n in range(8)], n=16)
    assert {answer.text for answer in found} == {PEAKED[0]}
    drawn = sum(body["n"] for body in model.bodies)
    assert sum(answer.draws for answer in found) == drawn < 8 * 16
    assert {body["n"] for body in model.bodies} <= {4, 8}
    for answer in found:
        steps = [step.pseudo_references for step in answer.decoded.steps]
        assert steps == list(steps_to(16))[: len(steps)]
        assert answer.receipt.requests == len(steps)
        assert answer.receipt.tokens_in == 10 * len(steps)
        assert answer.receipt.tokens_out == 3 * answer.draws


def test_all_draws_give_the_answer_of_minimum_bayes_risk(model: Model) -> None:
    model.texts = lambda prompt: [f"{word} is what {other} said" for word in "abcd" for other in "vwxyz"]
    for n in (3, 4):  # one step
        (answer,) = server(model).answer(["q"], n=n)
        draws = mbrace.Server(model.url, "m", prompt="{source}").candidates(["q"], n)[0].texts
        plain = mbrace.decode(list(draws), prune=None)
        assert answer.utility == pytest.approx(plain.utility)
        assert {answer.text} <= set(draws)


CUT = "half an ans..."


@pytest.mark.parametrize(
    ("texts", "n", "answer", "stopped", "draws"),
    [
        (["yes"], 16, "yes", "one text", range(4, 5)),
        ([f"<think>\n{word} ...\n</think>\n\nyes" for word in "abcdefgh"], 16, "yes", "one text", range(4, 5)),
        ([CUT, CUT, CUT, "yes"], 32, "yes", "one text", range(5, 33)),  # one whole draw does not end it
        (SPREAD, 6, None, "all draws", range(6, 7)),
    ],
    ids=["equal", "reasoning", "cut", "spread"],
)
def test_when_a_race_is_over(
    model: Model, texts: list[str], n: int, answer: str | None, stopped: str, draws: range
) -> None:
    model.texts = lambda prompt: texts
    (found,) = server(model).answer(["q"], n=n)
    assert found.text in (texts if answer is None else [answer])
    assert found.stopped == stopped
    assert found.draws in draws
    assert found.stopped == "all draws" or found.draws - found.receipt.cut >= 4


def test_cut_and_blank_draws_use_up_n_and_are_never_the_answer(model: Model) -> None:
    model.texts = lambda prompt: ["half an ans...", "", "yes, it is", "no, it is not", "perhaps it is"]
    (answer,) = server(model).answer(["q"], n=16)
    cost = answer.receipt
    assert cost.cut > 0
    assert cost.blank > 0
    assert answer.draws == cost.draws <= 16
    assert answer.decoded.pseudo_references == cost.draws - cost.cut - cost.blank
    assert not any("..." in each.text or not each.text for each in answer.nbest)
    model.texts = lambda prompt: ["half an ans...", "half ..."]
    with pytest.raises(mbrace.UserError, match="none of 16 samples is usable"):
        server(model).answer(["q"], n=16)


def test_a_failing_prompt_makes_no_other_draw_again(model: Model, tmp_path: Path) -> None:
    model.texts = lambda prompt: ["cut ...", "cut too ..."] if "bad" in prompt else PEAKED
    (tmp_path / "p.txt").write_text("one\nbad\ntwo\n")
    out = tmp_path / "a.jsonl"
    assert main(["answer", f"{tmp_path}/p.txt", "-o", str(out), "--on-error", "skip", *flags(model)]) == 0
    assert [row["prompt"] for row in rows_of(out)] == ["one", "two"]
    seeds = [(body["messages"][-1]["content"], body["seed"]) for body in model.bodies]
    assert len(seeds) == len(set(seeds))


def test_one_failing_prompt_loses_no_other_answer(model: Model) -> None:
    model.texts = lambda prompt: ["cut ...", "cut too ..."] if prompt == "bad" else PEAKED
    failed: dict[Any, str] = {}

    def on_error(record: mbrace.Record, error: Exception) -> None:
        failed[record.id] = str(error)

    found = server(model).answer(["one", "bad", "two"], on_error=on_error)
    assert [answer.id for answer in found] == [0, 2]
    assert [*failed] == [1]
    assert failed[1].startswith("record 1: none of 16 samples is")
    assert server(model).answer("bad", on_error=on_error) is None


def test_a_conversation_is_one_prompt(model: Model) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}]
    assert server(model).answer(turns).text == server(model).answer([turns])[0].text
    assert {str(body["messages"]) for body in model.bodies} == {str(turns)}


@pytest.mark.parametrize("given", [True, False])
def test_log_probabilities_are_a_matter_of_the_server(model: Model, given: bool) -> None:
    reason = f"logprobs {given}: is a keyword of Server: it decides what is requested"
    with pytest.raises(mbrace.SettingError, match=reason):
        server(model, logprobs=not given).answer("q", logprobs=given)
    with pytest.raises(mbrace.SettingError, match=reason):
        asyncio.run(server(model, logprobs=not given).answer_async("q", logprobs=given))


def test_a_draw_that_agrees_with_itself_alone_has_no_utility(model: Model) -> None:
    for texts, n in ((["the one"], 1), (["the one", CUT, CUT, CUT], 4)):
        model.texts = lambda prompt, texts=texts: texts
        answer = server(model).answer("q", n=n, nbest=1, seed=4)
        assert answer.draws - answer.receipt.cut == 1
        assert (answer.text, answer.utility, answer.nbest[0].utility) == ("the one", None, None)
    model.texts = lambda prompt: ["the one"]
    assert server(model).answer("q", n=2).utility == 100.0


def test_tokens_that_a_server_does_not_tell_are_unknown_and_not_none(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.usage = lambda body: {}  # type: ignore[method-assign]
    (tmp_path / "p.txt").write_text("one\n")
    kept = ["--save-draws", f"{tmp_path}/draws"]
    for _ in range(2):  # the second time, from the file
        assert main(["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", "--force", *kept, *flags(model)]) == 0
        (row,) = rows_of(tmp_path / "a")
        assert (row["tokens_in"], row["tokens_out"]) == (None, None)
    assert "requests (1 without a count)" in " ".join(capsys.readouterr().err.split()).replace("2 without", "1 without")


def test_prompts_that_all_end_with_one_text_are_worth_a_warning(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.txt").write_text("".join(f"question {n}\n" for n in range(10)))
    command = ["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", "--force", *flags(model)]
    model.texts = lambda prompt: SPREAD if prompt.endswith(("1", "2")) else ["yes"]
    assert main(command) == 0
    assert "warning" not in capsys.readouterr().err
    model.texts = lambda prompt: SPREAD if prompt.endswith("1") else ["yes"]
    assert main(command) == 0
    assert "warning: 9 of 10 prompts stopped with `one text`: all their draws were the same" in capsys.readouterr().err


def test_a_greedy_server_whose_texts_differ_by_the_arithmetic_of_a_batch_is_refused(model: Model) -> None:
    texts = ["The one answer.", *["Another."] * 15]
    model.made = lambda body: [{"message": {"content": text}} for text in texts[-body["n"] :]]  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match="does not sample: most of its answers to a request are one text"):
        server(model).answer("q")
    assert model.bodies == []


# votes


def test_the_vote_is_decided_by_the_beta_rule() -> None:
    for first, second in itertools.product(range(30), range(30)):
        exact = scipy.stats.beta.sf(0.5, first + 1, second + 1)
        if abs(exact - 0.95) > 1e-9:
            assert Vote(64, 0.95).is_decided(first, second) == (exact > 0.95)


def test_a_certain_stop_changes_no_answer(model: Model) -> None:
    chance, made = random.Random(1), server(model)
    utility = mbrace.ExactMatch(pattern="[0-9]")
    for number in range(20):
        texts = [f"The answer is {word}" for word in "1234" for _ in range(chance.randint(1, 9))]
        model.texts = lambda prompt, texts=texts: texts
        (raced,) = made.answer(["q"], ids=[number], n=16, utility=utility, confidence=1)
        ends = sorted({0, *(step.pseudo_references for step in raced.decoded.steps), 16})
        wants = [mbrace.Want(0, first, end - first) for first, end in itertools.pairwise(ends)]
        drawn = made.start([prompt_of("q", number)]).draw(wants)  # the same draws, and those that were not made
        votes = [text for draws in drawn for text in draws.texts]
        assert votes.count(raced.text) == max(map(votes.count, votes))


def test_votes_count_numbers_by_value_and_leave_out_what_does_not_match(model: Model) -> None:
    model.texts = lambda prompt: ["It is $1,000.", "so 1000.0", "about 1e3!", "no idea", "999"]
    utility = mbrace.ExactMatch(pattern=r"[\d.,]*\d(?:e\d)?", numbers=True)
    answer = server(model).answer("q", n=32, utility=utility)
    assert utility.answer(answer.text) == "1000"
    assert answer.stopped == "vote"
    assert answer.receipt.unmatched > 0
    assert answer.decoded.pseudo_references == answer.draws - answer.receipt.unmatched


def test_a_prompt_that_the_server_refuses_fails_for_that_reason_in_a_vote_too(model: Model) -> None:
    model.plan = lambda number: "400" if "bad" in str(model.bodies[number - 1]["messages"]) else None
    for utility in (None, mbrace.ExactMatch(), mbrace.ExactMatch(pattern="[a-z]+")):
        with pytest.raises(mbrace.UserError, match="status 400: so it is"):
            server(model).answer("bad", utility=utility)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,000", "1000"),
        ("1000.0", "1000"),
        ("-0", "0"),
        ("+.50", "0.5"),
        ("1e3", "1000"),
        ("12,34", "12,34"),
    ],
)
def test_numbers_have_one_form(text: str, number: str) -> None:
    assert mbrace.ExactMatch(numbers=True).answer(text) == number


# files


def test_ids_turns_and_other_fields_are_carried_through(model: Model, tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Line one\nline two"}]
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        json.dumps({"id": "a", "prompt": "What?\nWhere?", "label": 7}) + "\n" + json.dumps({"messages": turns}) + "\n"
    )
    model.texts = lambda prompt: ["first line\n\nsecond line"] * 2 + ["another\nanswer"]
    out = tmp_path / "a.jsonl"
    assert main(["answer", str(prompts), "-o", str(out), "-n", "8", "--nbest", "2", *flags(model)]) == 0
    first, second = rows_of(out)
    assert (first["id"], first["prompt"], first["label"]) == ("a", "What?\nWhere?", 7)
    assert second["messages"] == turns
    assert "\n" in first["text"]
    assert {"draws", "stopped", "utility", "tokens_in", "tokens_out", "requests", "seconds"} <= set(first)
    assert any(body["messages"] == turns for body in model.bodies)
    assert len(first["nbest"]) == 2


def test_turns_need_a_chat_and_get_its_system_prompt_unless_they_have_one(model: Model) -> None:
    own, turn = {"role": "system", "content": "Be exact."}, {"role": "user", "content": "What?"}
    server(model, system_prompt="Be brief.").answer([[turn], [own, turn]], n=4)
    sent = {tuple(message["content"] for message in body["messages"]) for body in model.bodies}
    assert sent == {("Be brief.", "What?"), ("Be exact.", "What?")}
    with pytest.raises(mbrace.UserError, match="messages: only for chats"):
        server(model, kind="completions").answer([[turn]])


@pytest.mark.parametrize(
    ("name", "content", "prompts"),
    [
        ("-", '{"prompt": "What?"}\n{"messages": [{"role": "user", "content": "Who?"}]}\n{"x": 1}\n[2]\n', 4),
        ("Q.JSONL", '{"prompt": "What?"}\n{"messages": [{"role": "user", "content": "Who?"}]}\n', 2),
        ("x.json", '{"prompt": "What?"}\n{"prompt": "Who?"}\n', 2),
        ("p.NDJSON.gz", '{"prompt": "What?"}\n{"prompt": "Who?"}\n', 2),
        ("p", '{"prompt": "What?"}\nWho?\n{not JSON}\n', 3),
    ],
)
def test_prompts_in_json_are_seen_by_the_name_of_the_file_or_the_line(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, prompts: int
) -> None:
    monkeypatch.chdir(tmp_path)
    data = content.encode()
    if name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    else:
        Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert main(["answer", name, "-o", "a.jsonl", "-n", "4", *flags(model)]) == 0
    asked = [body["messages"][-1]["content"] for body in model.bodies]
    assert {"What?", "Who?"} <= {*asked, "Who?" if prompts > 2 else ""}
    assert len(rows_of(Path("a.jsonl"))) == prompts
    assert not any("prompt" in text for text in asked)


def test_a_text_file_holds_text_whatever_it_looks_like(model: Model, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text('{"prompt": "What?"}\n')
    assert main(["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", "-n", "4", *flags(model)]) == 0
    assert model.bodies[0]["messages"][-1]["content"] == '{"prompt": "What?"}'


def test_fields_of_the_input_are_not_taken_for_ours(model: Model, tmp_path: Path) -> None:
    theirs = {"cut": 9, "blank": "x", "unmatched": 9, "nbest": [1], "utility": "mine", "source": "a book", "label": 7}
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "What?", **theirs}) + "\n" + '{"prompt": "Who?"}\n')
    command = ["answer", f"{tmp_path}/p.jsonl", "-o", f"{tmp_path}/a", "-n", "4", *flags(model)]
    assert main(command) == 0
    row = rows_of(tmp_path / "a")[0]
    assert [row.get(name) for name in theirs] == [None, None, None, None, row["utility"], "a book", 7]
    assert isinstance(row["utility"], float)
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole[: whole.index(b"\n") + 1])
    assert main([*command, "--resume"]) == 0
    assert len(rows_of(tmp_path / "a")) == 2


def test_a_run_says_what_it_was_made_by_and_how_to_go_on_when_the_server_is_gone(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    model.plan = lambda number: "401" if "two" in str(model.bodies[number - 1]) else None
    out = tmp_path / "a.jsonl"
    assert main(["answer", f"{tmp_path}/p.txt", "-o", str(out), "--window", "1", *flags(model)]) == 3
    assert "what is done is kept; go on with the same command and --resume" in capsys.readouterr().err
    described = json.loads(Path(f"{out}.run.json").read_text())
    assert not {"model", "kind"} & set(described)
    assert (described["server_model"], described["server"]) == ("m", model.url)


def test_numbers_in_answers_are_compared_by_value_unless_told_otherwise(model: Model, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n")
    model.texts = lambda prompt: ["It is 1,000.", "It is 1000.0.", "It is 1000.", "It is 999.", "It is 999."]
    command = ["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", "-n", "30", "--force", "--confidence", "1"]
    command += ["--utility", "exact", "--utility-option", r"pattern=(\S*\d)\.", *flags(model)]
    assert main(command) == 0
    assert "1" in rows_of(tmp_path / "a")[0]["text"]
    assert main([*command, "--utility-option", "numbers=no"]) == 0
    assert rows_of(tmp_path / "a")[0]["text"] == "It is 999."


def test_the_budget_of_a_judge_has_a_flag(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.txt").write_text("one\n")
    model.texts = lambda prompt: ["50"] if "Score the text" in prompt else SPREAD
    made = model.made
    model.made = lambda body: made({"seed": 0, "n": 1} | body)  # type: ignore[method-assign]
    model.usage = lambda body: {}  # type: ignore[method-assign]
    command = ["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", *flags(model)]
    judge = ["--utility", "judge", "--utility-option", f"url={model.url}", "--utility-option", "model=m"]
    assert main([*command, *judge, "--judge-budget", "5"]) == 3
    assert "the judge's budget of 5 requests is spent" in capsys.readouterr().err
    assert main([*command, *judge, "--judge-budget", "5000", "--resume"]) == 0
    assert main([*command, "--judge-budget", "5", "--force"]) == 2
    assert "--judge-budget 5: only valid with --utility judge" in capsys.readouterr().err
    assert main(["decode", "c.jsonl", "--judge-budget", "5"]) == 2
    assert "--judge-budget: is an option of the utility judge" in capsys.readouterr().err


def test_paid_draws_are_never_lost_and_decode_reads_them(model: Model, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\nthree\n")
    kept, out = tmp_path / "draws.jsonl", tmp_path / "a.jsonl"
    command = ["answer", f"{tmp_path}/p.txt", "-o", str(out), "--save-draws", str(kept), "--concurrency", "1"]
    model.texts = lambda prompt: SPREAD
    model.plan = lambda number: "401" if number == 5 else None
    assert main([*command, *flags(model)]) == 3
    paid = len(model.bodies) - 1  # the last was refused
    assert len(rows_of(kept)) == paid >= 4  # one may have been under way
    model.plan = lambda number: None
    assert main([*command, "--resume", *flags(model)]) == 0
    asked = [(body["messages"][-1]["content"], body["seed"], body["n"]) for body in model.bodies]
    assert len(set(asked)) == len(asked) - 1  # only the refused one was sent again
    clean = tmp_path / "clean.jsonl"
    assert main(["answer", f"{tmp_path}/p.txt", "-o", str(clean), *flags(model)]) == 0
    gone = ("seconds", "requests")  # of what was kept, none were sent
    assert [{k: v for k, v in row.items() if k not in gone} for row in rows_of(out)] == [
        {k: v for k, v in row.items() if k not in gone} for row in rows_of(clean)
    ]
    decoded = tmp_path / "d.jsonl"
    assert main(["decode", str(kept), "-o", str(decoded), "--prune", "none"]) == 0
    assert [row["id"] for row in rows_of(decoded)] == [1, 2, 3]
    assert [row["pseudo_references"] for row in rows_of(decoded)] == [row["draws"] for row in rows_of(out)]


def test_draws_that_are_under_way_when_another_one_fails_are_kept(model: Model, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n")
    model.choices, together = 1, threading.Barrier(3)  # a request for each draw

    def plan(number: int) -> str | None:
        together.wait(120)
        return "401" if number == 2 else time.sleep(0.5)  # type: ignore[func-returns-value]

    model.plan = plan
    files = [f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", "--save-draws", f"{tmp_path}/draws"]
    assert main(["answer", *files, "--concurrency", "3", *flags(model)]) == 3
    assert (len(model.bodies), len(rows_of(tmp_path / "draws"))) == (3, 2)  # the fourth one was not asked for


def test_a_draw_whose_tokens_are_counted_again_is_kept_before_requests_that_wait(model: Model, tmp_path: Path) -> None:
    count_one_choice(model)
    kept = tmp_path / "draws"
    model.plan = lambda number: until(lambda: len(rows_of(kept)) == 2) if number == 3 else None
    server(model, concurrency=1, save_draws=kept).answer(["a", "b", "c"], n=4)
    assert len(rows_of(kept)) == 3


def test_a_killed_run_has_lost_no_draw_that_arrived(model: Model, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("".join(f"question {n}\n" for n in range(40)))
    model.texts = lambda prompt: SPREAD
    model.plan = lambda number: time.sleep(0.02)  # type: ignore[func-returns-value]
    files = [f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", "--save-draws", f"{tmp_path}/draws", "--window", "8"]
    command = [sys.executable, "-m", "mbrace", "answer", *files, *flags(model)]
    for run, end in enumerate((5, 23, 60)):
        process = subprocess.Popen([*command, *(["--resume"] if run else [])], stderr=subprocess.DEVNULL)
        while len(model.bodies) < end:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert main(["answer", *files, "--resume", *flags(model)]) == 0
    assert len(rows_of(tmp_path / "a")) == 40
    kept = rows_of(tmp_path / "draws")
    asked = [(body["messages"][-1]["content"], body["seed"], body["n"]) for body in model.bodies]
    assert len({row["key"] for row in kept}) == len(kept) == len(set(asked))
    assert len(asked) - len(set(asked)) <= 3 * 8  # those under way when it was killed


def test_a_full_disk_ends_the_run_and_sets_no_prompt_aside(model: Model, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("".join(f"question {n}\n" for n in range(40)))
    model.texts = lambda prompt: SPREAD
    files = [f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", "--save-draws", f"{tmp_path}/draws", "--window", "2"]
    command = [sys.executable, "-m", "mbrace", "answer", *files, "--on-error", "skip", *flags(model)]
    ended = subprocess.run(
        command,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 3
    assert "draws: cannot be written" in ended.stderr
    assert not (tmp_path / "a.errors.jsonl").exists()
    assert 1 <= len(rows_of(tmp_path / "a")) < 10


def test_the_budget_is_checked_before_each_request_and_never_exceeded(model: Model, tmp_path: Path) -> None:
    model.texts = lambda prompt: [f"{word} is what {other} said" for word in "abcdef" for other in "uvwxyz"]
    answers = {}
    for tokens in (300, 100_000):
        made = server(model, max_tokens=20, max_cost_tokens=tokens, concurrency=1)
        (answer,) = made.answer(["q"], n=16)
        cost = made.cost.prompt_tokens + made.cost.completion_tokens
        assert 0 < made.probe_tokens < made.budget.spent == made.probe_tokens + cost <= tokens
        answers[tokens] = answer
    assert answers[300].stopped == "cost"
    assert 1 <= answers[300].draws < 16
    assert answers[100_000].stopped == "all draws"
    made = server(model, max_tokens=20, max_cost_tokens=400, concurrency=1)
    made.abilities()
    model.usage = lambda body: {}  # type: ignore[method-assign]
    assert made.answer(["q"], n=16)[0].stopped == "cost"  # one that does not say it may have cost as much as allowed
    del model.usage  # type: ignore[method-assign]
    (tmp_path / "p.txt").write_text("".join(f"question {n}\n" for n in range(40)))
    out = tmp_path / "a.jsonl"
    limits = ["--max-tokens", "20", "--max-cost-tokens", "400", "--window", "4"]
    assert main(["answer", f"{tmp_path}/p.txt", "-o", str(out), *limits, *flags(model)]) == 3
    done = rows_of(out) if out.exists() else []
    assert sum(row["tokens_in"] + row["tokens_out"] for row in done) <= 400
    assert main(["answer", f"{tmp_path}/p.txt", "-o", str(out), *limits[:2], "--resume", *flags(model)]) == 0
    assert len(rows_of(out)) == 40


def test_requests_at_the_same_time_do_not_spend_the_same_tokens(model: Model) -> None:
    model.texts, together = lambda prompt: SPREAD, threading.Barrier(2)
    made = server(model, max_tokens=50, max_cost_tokens=800, concurrency=8)
    made.abilities()
    model.usage = lambda body: {"prompt_tokens": 80, "completion_tokens": 50 * body["n"]}  # type: ignore[method-assign]
    model.plan = lambda number: (together.wait(120), None)[1]  # two are paid for, and no third one
    with pytest.raises(ServiceError, match="has no whole draw, and what is left of max_cost_tokens pays for no more"):
        made.answer([str(number) for number in range(8)], n=4)
    assert len(model.bodies) == 2
    assert made.budget.spent <= 800


@pytest.mark.parametrize("tokens", [50, 250])
def test_a_budget_that_does_not_pay_for_the_first_requests_is_refused_with_its_number(
    model: Model, tmp_path: Path, tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "finding out what the server does may take 240 more; give more"
    made = server(model, max_cost_tokens=tokens)
    with pytest.raises(ServiceError, match=words):
        made.answer("q")
    assert made.budget.spent == 58 * len(model.probes) <= tokens
    (tmp_path / "p.txt").write_text("one\n")
    limit = ["--max-cost-tokens", str(tokens), "--on-error", "skip"]
    assert main(["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", *limit, *flags(model)]) == 3
    assert f"--max-cost-tokens {tokens}: {58 * (tokens > 240)} tokens are spent, and {words}" in capsys.readouterr().err
    assert not (tmp_path / "a.errors.jsonl").exists()


def test_the_requests_that_find_out_what_a_server_does_are_in_the_budget_and_said(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count_one_choice(model)
    (tmp_path / "p.txt").write_text("one\n")
    made = server(model, max_cost_tokens=100_000)
    made.abilities()
    assert made.budget.spent == sum(10 + 8 * body["n"] for body in model.probes) > 0
    assert main(["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", *flags(model)]) == 0
    assert f"{made.budget.spent} tokens more went to finding out what the server does" in capsys.readouterr().err


def test_the_bound_and_the_cost_are_said(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    assert (
        main(["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", "-n", "8", "--max-tokens", "9", *flags(model)]) == 0
    )
    said = " ".join(capsys.readouterr().err.split())
    assert "at most 8 draws of 9 tokens per prompt: 16 draws, 144 tokens out for 2 prompts" in said
    assert "stopped: " in said
    assert "tokens in " in said


def test_prompts_from_a_pipe_or_several_files_are_not_counted_before(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.write(write, b"one\ntwo\n")
    os.close(write)
    for prompts in (f"/dev/fd/{read}", f"{tmp_path}/?.txt"):
        (tmp_path / "1.txt").write_text("one\n")
        (tmp_path / "2.txt").write_text("two\n")
        assert main(["answer", prompts, "-o", f"{tmp_path}/a", "--force", *flags(model)]) == 0
        assert [row["prompt"] for row in rows_of(tmp_path / "a")] == ["one", "two"]
        assert "16 draws of 512 tokens per prompt; tokens in, and a few" in capsys.readouterr().err
    os.close(read)


def test_other_commands_read_the_answers_with_all_lines_and_turns(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mbrace.judge.items import read_prediction_pairs

    monkeypatch.chdir(tmp_path)
    model.texts = lambda prompt: [f"{text}\n\nThat is all." for text in SPREAD]
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Line one\nline two"}]
    Path("p.jsonl").write_text(
        json.dumps({"id": "x", "prompt": "one\ntwo"}) + "\n" + json.dumps({"id": 2, "messages": turns}) + "\n"
    )
    for name, seed in (("a", "0"), ("b", "1")):
        assert main(["answer", "p.jsonl", "-o", f"{name}.jsonl", "--nbest", "8", "--seed", seed, *flags(model)]) == 0
    answers = rows_of(Path("a.jsonl"))
    Path("ref.jsonl").write_text(
        "".join(json.dumps({"id": row["id"], "reference": row["text"]}) + "\n" for row in answers)
    )
    assert main(["compare", "a.jsonl", "b.jsonl", "--reference", "ref.jsonl"]) == 0
    assert "100.0000" in capsys.readouterr().out  # of the answers themselves
    pairs = read_prediction_pairs("a.jsonl", "b.jsonl", "p.jsonl")
    assert [pair.source for pair in pairs.different] == ["one\ntwo", "Line one\nline two"]
    assert [pair.a for pair in pairs.different] == [row["text"] for row in answers]
    assert main(["export", "a.jsonl", "-o", "sft.jsonl", "--chat"]) == 0
    assert [row["messages"][:-1] for row in rows_of(Path("sft.jsonl"))] == [
        [{"role": "user", "content": "one\ntwo"}],
        turns,
    ]
    assert main(["export", "a.jsonl", "-o", "pairs.jsonl", "--chat", "--format", "preference"]) == 0
    assert rows_of(Path("pairs.jsonl"))[1]["rejected"][0]["content"].endswith("\n\nThat is all.")
    assert main(["export", "a.jsonl", "-o", "plain.jsonl"]) == 2
    assert "a.jsonl:2: messages: more than one turn; give --chat" in capsys.readouterr().err


def test_prompts_with_the_same_id_have_draws_of_their_own(model: Model) -> None:
    model.texts = lambda prompt: [f"about {prompt}"]
    found = server(model).answer(["one", "two"], ids=[1, 1])
    assert [(answer.text, answer.draws) for answer in found] == [("about one", 4), ("about two", 4)]


@pytest.mark.parametrize("nbest", [1, 3])
def test_a_longer_list_changes_neither_the_answer_nor_its_draws(model: Model, nbest: int) -> None:
    model.texts = lambda prompt: ["a b c", "a b d", "x y z"]
    answer = server(model).answer("q", n=32, nbest=nbest, regret=0.01)
    plain = server(model).answer("q", n=32, regret=0.01)
    assert (answer.text, answer.draws, answer.utility) == (plain.text, plain.draws, plain.utility)
    assert len(answer.nbest) == nbest
    assert answer.nbest[0].text == answer.text


def test_with_log_probabilities_a_vote_is_weighted_and_stops_by_regret(model: Model) -> None:
    likely, often = "The answer is 1", "The answer is 2"
    made = model.made

    def with_logprobs(body: dict[str, Any]) -> list[dict[str, Any]]:
        choices = made(body)
        for choice in choices:
            value = -0.1 if choice["text"] == likely else -5.0
            choice["logprobs"] = {"content": [{"token": "x", "logprob": value}]}
        return choices

    model.made = with_logprobs  # type: ignore[method-assign]
    model.texts = lambda prompt: [likely, often, often]
    vote = mbrace.ExactMatch(pattern="[0-9]")
    assert server(model, logprobs=True).answer("q", utility=vote).text == likely
    assert server(model).answer("q", utility=vote).text == often
    with pytest.raises(
        mbrace.UserError, match=r"confidence 0\.9: only valid without logprobs=True, whose weights are no"
    ):
        server(model, logprobs=True).answer("q", utility=vote, confidence=0.9)


def test_a_cluster_writes_the_same_answers_and_their_costs(model: Model, tmp_path: Path) -> None:
    from mbrace.cli.answer import job_from
    from mbrace.cli.parser import make_parser
    from mbrace.cluster.shards import Block, add_costs, process_block
    from mbrace.jobs.run import Summary

    (tmp_path / "p.txt").write_text("one\ntwo\n")
    command = ["answer", f"{tmp_path}/p.txt", "-o", f"{tmp_path}/a", *flags(model)]
    assert main(command) == 0
    args = make_parser("answer").parse_args([*command, "--ray"])
    job = job_from(args)
    result = process_block(Block(0, 0, 1, b"one\ntwo\n"), job.start(1), job, path="p.txt", prefix="", skip=False)
    answers, kept = rows_of(tmp_path / "a"), [json.loads(line) for line in result.lines.splitlines()]
    assert [row | {"seconds": 0} for row in kept] == [row | {"seconds": 0} for row in answers]
    summary = Summary()
    add_costs(summary, result.costs)
    assert (summary.draws, summary.most_draws) == (sum(row["draws"] for row in answers), 32)
    assert summary.stopped_by_regret == sum(row["stopped"] == "regret" for row in answers) > 0
    assert summary.probe_tokens == 2 * 58
    assert summary.tokens_out == sum(row["tokens_out"] for row in answers)


# in a service


def test_an_answer_that_is_cancelled_asks_for_nothing_more(model: Model) -> None:
    waits, gone = threading.Event(), threading.Event()

    def plan(number: int) -> None:
        waits.set()
        gone.wait(120)

    made = server(model)
    made.abilities()
    model.plan = plan

    async def cancelled() -> None:
        task = asyncio.create_task(made.answer_async("q"))
        while not waits.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(cancelled(), 120))  # before the model answers
    gone.set()
    model.plan = lambda number: None
    count = len(model.bodies)
    assert asyncio.run(made.answer_async("q")).text == PEAKED[0]
    assert len(model.bodies) > count


def test_as_many_answers_wait_for_the_server_as_it_may_have_requests(model: Model) -> None:
    made = server(model, concurrency=40)
    made.abilities()
    together = threading.Barrier(40)  # no request is answered before 40 are there

    def plan(number: int) -> None:
        together.wait(120)

    model.plan = plan

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(made.answer_async("q", id=number, n=4) for number in range(40)))

    assert {answer.text for answer in asyncio.run(all_of_them())} <= set(PEAKED)
    made.close()


def test_a_server_that_fails_is_nobodys_fault(model: Model) -> None:
    model.fails_probes = True
    model.plan = lambda number: "503"
    with pytest.raises(ServiceError):
        server(model).answer(["q"])


def test_all_who_ask_at_the_same_time_learn_from_one_try_that_a_server_fails(model: Model) -> None:
    model.fails_probes, model.plan = True, lambda number: "503"
    made, begun = server(model), threading.Barrier(16)

    def status(_: int) -> int:
        begun.wait(120)
        with pytest.raises(StatusError) as raised:
            made.answer("q")
        return raised.value.status

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(status, range(16))) == {503}
    assert len(model.bodies) < 16
    model.fails_probes, model.plan = False, lambda number: None
    assert made.answer("q").text == PEAKED[0]


def test_a_race_that_fails_holds_up_no_other(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    made = server(model)
    made.abilities()
    monkeypatch.setattr(made, "finish", lambda requested: pytest.fail("requests of all races are ended"))
    model.plan = lambda number: "401" if "bad" in str(model.bodies[number - 1]["messages"]) else None

    async def both() -> list[Any]:
        return await asyncio.gather(made.answer_async("bad"), made.answer_async("good"), return_exceptions=True)

    failed, answered = asyncio.run(both())
    assert isinstance(failed, ServiceError)
    assert answered.text == PEAKED[0]


# a model here


def test_a_causal_model_answers_and_counts_its_tokens(tmp_path: Path) -> None:
    from real_servers import tiny_model

    model = mbrace.CausalLM(tiny_model(tmp_path / "m", samples=True), device="cpu")
    turns = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    found = model.answer(["hello", turns], n=8, max_tokens=200, epsilon=None)
    for answer, tokens in zip(found, (5, 2), strict=True):
        assert 4 <= answer.draws <= 8
        assert answer.receipt.tokens_in in (tokens, 2 * tokens)  # steps
        assert answer.receipt.requests == 0
        assert answer.decoded.pseudo_references == answer.draws - answer.receipt.cut - answer.receipt.blank
    assert model.answer(turns, ids=[1], n=8, max_tokens=200).text == found[1].text
    failed: list[Any] = []
    alone = model.answer(["hello"], n=4, max_tokens=1, on_error=lambda record, error: failed.append(str(error)))
    assert alone == []
    assert failed[0].startswith("record 0: none of 4 samples is")
    again = model.answer(["hello", turns], n=8, max_tokens=200)
    assert [answer.text for answer in again] == [answer.text for answer in found]
    prompts = tmp_path / "p.txt"
    prompts.write_text("hello\n")
    out = tmp_path / "a.jsonl"
    options = ["--model", str(tmp_path / "m"), "-n", "8", "--max-tokens", "200", "--device", "cpu"]
    assert main(["answer", str(prompts), "-o", str(out), *options]) == 0
    assert rows_of(out)[0]["draws"] >= 4


def test_a_draw_of_a_model_here_that_was_cut_is_no_candidate_however_its_text_splits() -> None:
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from mbrace.models.causal import PromptDraws

    torch.manual_seed(0)
    pairs = list(itertools.product("ab", repeat=2))  # one token of the tokenizer, often two of the model
    vocabulary = ["<s>", "</s>", "a", "b", *map("".join, pairs)]
    bpe = models.BPE(vocab={token: number for number, token in enumerate(vocabulary)}, merges=pairs)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(bpe), eos_token="</s>", pad_token="</s>")
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=128, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = mbrace.CausalLM(LlamaForCausalLM(config), tokenizer=tokenizer)

    def drawn(most: int) -> mbrace.Draws:
        draws = PromptDraws(model, max_tokens=most, seed=0, epsilon=None, temperature=1.0)
        return draws.start([prompt_of("ab", 0)]).draw([mbrace.Want(0, 0, 64)])[0]

    short, whole = drawn(6), drawn(120)
    assert whole.receipt is not None
    assert whole.receipt.cut == 0
    assert 0 < len(short.texts) < len(whole.texts)
    places = iter(whole.texts)
    assert all(text in places for text in short.texts)  # the same draws, without those that were cut
    assert short.receipt is not None
    assert short.receipt.tokens_out > sum(len(text) / 2 for text in short.texts) + 6 * short.receipt.cut
