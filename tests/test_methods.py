"""Low-rank completion: against a naive transcription of the paper, and against `mbrs` on a shared example
(oracle/scores_methods.json)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import overlap
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import mbrace
from mbrace.methods.low_rank import complete, least_squares

ORACLE = json.loads((Path(__file__).parent / "oracle" / "scores_methods.json").read_text())
WORDS = ["a", "b", "ab", "ba", "cab", "ä,"]
sentences = st.lists(st.sampled_from(WORDS), min_size=0, max_size=7).map(" ".join)
texts = st.lists(sentences, min_size=1, max_size=12)


def test_completion_is_that_of_mbrs() -> None:
    shared = ORACLE["completion"]
    matrix, mask = np.array(shared["matrix"]), np.array(shared["mask"])
    x, y = np.array(shared["start"][0]), np.array(shared["start"][1])
    for _ in range(6):
        x = least_squares(matrix, mask.astype(float), y, 0.1)
        y = least_squares(matrix.T, mask.T.astype(float), x, 0.1)
    np.testing.assert_allclose(x @ y.T, shared["product"], atol=2e-5)


def counting(function: Callable[[str, str], float], calls: list[tuple[str, str]]) -> Callable[[str, str], float]:
    def call(hypothesis: str, reference: str) -> float:
        calls.append((hypothesis, reference))
        return function(hypothesis, reference)

    return call


@given(texts, texts, st.floats(0.01, 1), st.integers(0, 5))
def test_low_rank_scores_no_more_pairs_than_its_fraction(
    h: list[str], r: list[str], fraction: float, seed: int
) -> None:
    h = [*h, "no other has this"]
    calls: list[tuple[str, str]] = []
    found = mbrace.decode(
        h, r, utility=counting(overlap, calls), method=mbrace.LowRank(3, fraction), schedule="all", seed=seed
    )
    pairs = len(set(h)) * len(set(r))
    assert len(calls) == len(set(calls)) == found.pairs_scored == max(1, math.floor(fraction * pairs + 1e-9))
    assert found.utility_calls == max(1, math.floor(fraction * len(set(h)) * len(r) + 1e-9))
    assert (found.pseudo_references, found.strings) == (len(r), len({*h, *r}))


def naive_completion(
    known: dict[tuple[int, int], float], shape: tuple[int, int], start: tuple[NDArray[Any], NDArray[Any]]
) -> NDArray[np.float64]:
    """Alternating least squares written out: for each row, the ridge regression of its known values."""
    x, y = start[0].copy(), start[1].copy()
    rank = x.shape[1]
    for _ in range(10):
        for side, other, axis in ((x, y, 0), (y, x, 1)):
            for row in range(len(side)):
                system, right = np.eye(rank), np.zeros(rank)
                for cell, value in known.items():
                    if cell[axis] == row:
                        vector = other[cell[1 - axis]]
                        system, right = system + np.outer(vector, vector), right + value * vector
                side[row] = np.linalg.solve(system, right)
    found: NDArray[np.float64] = x @ y.T
    return found


def test_low_rank_is_that_of_a_naive_transcription() -> None:
    rng = np.random.default_rng(0)
    table = 50 + 7 * rng.normal(size=(9, 3)) @ rng.normal(size=(3, 11))
    mask = rng.random((9, 11)) < 0.5
    other = np.random.default_rng(4)
    start = other.random((9, 3)) / 27**0.5, other.random((11, 3)) / 33**0.5
    known = table[mask]
    scaled = {(i, j): (table[i, j] - known.mean()) / known.std() for i, j in np.argwhere(mask).tolist()}
    expected = naive_completion(scaled, (9, 11), start) * known.std() + known.mean()
    found = complete(np.where(mask, table, 0), mask, 3, np.random.default_rng(4))
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_low_rank_does_not_depend_on_the_scale_of_a_utility() -> None:
    one = records(1)[0]
    plain = mbrace.decode(one.hypotheses, one.pseudo_references, utility=overlap, method="low-rank", nbest=5)
    scaled = mbrace.decode(
        one.hypotheses, one.pseudo_references, utility=lambda h, r: 1000 * overlap(h, r) - 7, method="low-rank", nbest=5
    )
    assert [each.text for each in scaled.nbest] == [each.text for each in plain.nbest]


def test_all_pairs_at_full_rank_are_standard_mbr() -> None:
    one = records(1)[0]
    options: dict[str, Any] = {"nbest": 4, "utility": overlap}
    found = mbrace.decode(one.hypotheses, one.pseudo_references, method=mbrace.LowRank(fraction=1), **options)
    assert found == mbrace.decode(one.hypotheses, one.pseudo_references, prune=None, **options)


def records(count: int) -> list[mbrace.Record]:
    rng = np.random.default_rng(5)

    def some(size: int) -> list[str]:
        return [" ".join(rng.choice(WORDS, 6)) for _ in range(size)]

    return [mbrace.Record(some(20 + i), some(40), id=i) for i in range(count)]


METHODS = ["low-rank", mbrace.LowRank(3, 0.2)]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_record_with_nothing_to_choose_costs_nothing(method: Any) -> None:
    found = list(mbrace.decode_corpus([mbrace.Record(["a", "a"], ["b"]), *records(2)], method=method))
    assert (found[0].text, found[0].utility_calls, found[0].strings, found[0].steps) == ("a", 0, 0, ())
    assert found[1].utility_calls > 0


def test_a_live_source_is_asked_once_for_all() -> None:
    asked = []

    def more(count: int) -> list[str]:
        asked.append(count)
        return [WORDS[i % 5] for i in range(count)]

    found = mbrace.decode(["a", "b b", "cab"], more, method="low-rank", schedule=[8, 32])
    assert (asked, found.pseudo_references) == ([32], 32)
    with pytest.raises(mbrace.UserError, match='schedule="all": this method takes all pseudo-references at once'):
        mbrace.decode(["a", "b b"], more, method="low-rank", schedule="all")
