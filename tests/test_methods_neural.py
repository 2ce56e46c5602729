"""Aggregation and centroids over embeddings: against NumPy on the vectors themselves, and `mbrs`' k-means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import mbrace
from mbrace.neural.comet import Comet
from mbrace.neural.embedding import Embedding
from mbrace.neural.scorer import k_means, lloyd, spread_out

HERE = Path(__file__).parent / "oracle"

ORACLE = json.loads((HERE / "scores_methods.json").read_text())


@pytest.fixture(scope="module")
def comet(tmp_path_factory: pytest.TempPathFactory) -> Comet:
    return Comet(tiny.make(tmp_path_factory.mktemp("comet"), "xlmr-sparsemax"), device="cpu")


@pytest.fixture(scope="module")
def records(demo_rows: list[dict[str, Any]]) -> list[mbrace.Record]:
    return [
        mbrace.Record(row["hypotheses"][:12], row["pseudo_references"][:40], id=row["id"], source=row["source"])
        for row in demo_rows[:6]
    ]


def vectors_of(comet: Comet, texts: list[str]) -> torch.Tensor:
    with torch.inference_mode():
        return comet.encoder.embed(texts).float()


def scores_against(comet: Comet, record: mbrace.Record, references: torch.Tensor) -> np.ndarray[Any, Any]:
    """(hypotheses, references): scores by the head over vectors, pair by pair."""
    assert record.source is not None
    texts = list(dict.fromkeys(record.hypotheses))
    own, source = vectors_of(comet, texts), vectors_of(comet, [record.source])
    rows, width = len(own), len(references)
    with torch.inference_mode():
        flat = comet.head.aligned(
            own.repeat_interleave(width, 0), references.repeat(rows, 1), source.repeat(rows * width, 1)
        )
    return flat.reshape(rows, width).numpy()


def utilities_by_text(answer: mbrace.Decoded) -> dict[str, float | None]:
    return {each.text: each.utility for each in answer.nbest}


@pytest.mark.parametrize("count", [1, 4, 7])
def test_aggregates_are_means_of_vectors(comet: Comet, records: list[mbrace.Record], count: int) -> None:
    method = mbrace.AggregateReferences(count)
    answers = mbrace.decode_corpus(records, utility=comet, method=method, nbest=12, shuffle=False)
    for record, answer in zip(records, answers, strict=True):
        drawn = list(record.pseudo_references or ())  # type: ignore[arg-type]
        parts = [[drawn[i] for i in part] for part in np.array_split(np.arange(len(drawn)), count)]
        means = torch.stack([vectors_of(comet, part).mean(0) for part in parts])
        expected = scores_against(comet, record, means) @ np.array([len(part) for part in parts]) / len(drawn)
        texts = list(dict.fromkeys(record.hypotheses))
        assert utilities_by_text(answer) == pytest.approx(dict(zip(texts, expected, strict=True)), abs=1e-5)
        assert answer.utility_calls == answer.pairs_scored == count * len(texts)
        assert answer.strings == len({*texts, *drawn})


def test_the_cosine_of_the_average_is_the_average_cosine(tmp_path: Path, records: list[mbrace.Record]) -> None:
    utility = Embedding(tiny.make_pretrained(tmp_path / "encoder"), device="cpu")
    plain = mbrace.decode_corpus(records, utility=utility, prune=None, nbest=12)
    found = mbrace.decode_corpus(records, utility=utility, method="aggregate", nbest=12)
    for one, other in zip(plain, found, strict=True):
        assert utilities_by_text(one) == pytest.approx(utilities_by_text(other), abs=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_hypotheses_are_scored_against_centroids(comet: Comet, records: list[mbrace.Record], weighted: bool) -> None:
    """With the assignment that k-means finds, centroids and their weights are worked out again by NumPy."""
    from mbrace.records import key

    method = mbrace.CentroidReferences(5, weighted)
    answers = mbrace.decode_corpus(records, utility=comet, method=method, nbest=12, shuffle=False, seed=3)
    for record, answer in zip(records, answers, strict=True):
        drawn = list(record.pseudo_references or ())  # type: ignore[arg-type]
        texts = list(dict.fromkeys(drawn))
        counts = np.array([drawn.count(text) for text in texts], dtype=np.float64)
        vectors = vectors_of(comet, texts)
        start = spread_out(vectors, counts, 5, np.random.Generator(np.random.PCG64(key(3, record.id, "centroids"))))
        _, assigned = lloyd(vectors, counts, vectors[torch.from_numpy(start)])
        members = [assigned == number for number in range(5)]
        assert all(own.any() for own in members)
        own = vectors.numpy().astype(np.float64)
        centres = np.stack([(own[m] * counts[m, None]).sum(0) / counts[m].sum() for m in members])
        scores = scores_against(comet, record, torch.from_numpy(centres).float())
        shares = np.array([counts[m].sum() for m in members]) / counts.sum() if weighted else np.full(5, 0.2)
        names = dict.fromkeys(record.hypotheses)
        assert utilities_by_text(answer) == pytest.approx(dict(zip(names, scores @ shares, strict=True)), abs=1e-5)
        assert answer.utility_calls == 5 * len(names)
        assert (answer.pseudo_references, answer.strings) == (len(drawn), len({*names, *texts}))


def test_as_many_centroids_as_pseudo_references_are_standard_mbr(comet: Comet, records: list[mbrace.Record]) -> None:
    plain = mbrace.decode_corpus(records, utility=comet, prune=None, nbest=12)
    found = mbrace.decode_corpus(records, utility=comet, method=mbrace.CentroidReferences(40), nbest=12)
    for one, other in zip(plain, found, strict=True):
        assert utilities_by_text(one) == pytest.approx(utilities_by_text(other), abs=1e-5)


def test_clusters_are_those_of_mbrs() -> None:
    shared = ORACLE["clusters"]
    vectors, start = torch.tensor(shared["vectors"]), torch.tensor(shared["start"])
    centres, assigned = lloyd(vectors, np.ones(len(vectors)), start, iterations=4)
    np.testing.assert_allclose(centres, shared["centres"], atol=1e-6)
    assert assigned.tolist() == shared["assigned"]


def test_starts_are_spread_out_in_proportion_to_squared_distances() -> None:
    vectors = torch.tensor([[0.0], [1.0], [3.0]])
    weights = np.array([2.0, 1.0, 1.0])
    draws = [spread_out(vectors, weights, 2, np.random.default_rng(seed)).tolist() for seed in range(4000)]
    after_first = [second for first, second in draws if first == 0]
    assert len(after_first) / 4000 == pytest.approx(0.5, abs=0.03)  # two of four draws
    assert after_first.count(2) / len(after_first) == pytest.approx(0.9, abs=0.03)  # 9 against 1
    assert sorted(spread_out(torch.zeros(3, 1), weights, 3, np.random.default_rng(0)).tolist()) != []


def test_a_string_drawn_twice_is_twice_in_its_cluster() -> None:
    vectors = torch.tensor([[0.0], [1.0], [10.0]])
    centres, shares = k_means(vectors, np.array([3.0, 1.0, 4.0]), 2, seed=0)
    found = dict(zip(centres[:, 0].tolist(), shares.tolist(), strict=True))
    assert found == pytest.approx({0.25: 0.5, 10.0: 0.5})


@pytest.mark.parametrize("method", ["aggregate", mbrace.CentroidReferences(6), "low-rank"], ids=str)
def test_the_window_changes_no_answer(comet: Comet, records: list[mbrace.Record], method: Any) -> None:
    one = list(mbrace.decode_corpus(records, utility=comet, method=method, window=1, nbest=3))
    assert list(mbrace.decode_corpus(records, utility=comet, method=method, window=6, nbest=3)) == one
