"""Sentence embeddings from a server: real HTTP on localhost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_server import HYPOTHESES, REFERENCES, Server, serve

import mbrace


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    yield from serve(monkeypatch)


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
    assert utility.cost == mbrace.utility.Cost(requests=3, prompt_tokens=6)


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
    assert utility.cost == mbrace.utility.Cost(kept_answers=6)


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"index": 0, "embedding": [1.0, None]}],
        [{"index": 1, "embedding": [1.0]}],
        [{"index": 0, "embedding": []}],
        [{"index": 0, "embedding": [float("nan")]}],
        [{"index": 0, "embedding": [1e39]}],  # beyond float32
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_an_answer_without_the_embeddings_is_refused(server: Server, data: Any) -> None:
    server.reply = lambda body: {"data": data}
    with pytest.raises(mbrace.UserError, match="gave up after 2 tries; the last: an answer that cannot be read"):
        mbrace.EmbeddingServer(server.url, "m", retries=1).pairs(["a"], ["a"])


def test_embeddings_of_different_lengths_are_refused(server: Server) -> None:
    server.reply = lambda body: {"data": [{"index": 0, "embedding": [1.0] * len(body["input"][0])}]}
    with pytest.raises(mbrace.UserError, match="embeddings have 2 numbers for one text and 1 for another"):
        mbrace.EmbeddingServer(server.url, "m", per_request=1).pairs(["a"], ["bb"])
