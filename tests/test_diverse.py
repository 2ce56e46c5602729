"""Diverse n-best lists: against naive transcriptions, brute force, and any number of threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cli_helpers import Row
from conftest import overlap
from numpy.typing import NDArray

import mbrace


def containment(hypothesis: str, reference: str) -> float:
    """How many of the hypothesis' words are in the reference; the other way round it is another number."""
    ours = hypothesis.split()
    return float(np.float32(sum(word in reference.split() for word in ours) / max(1, len(ours))))


def matrix(function: Callable[[str, str], float], texts: list[str], others: list[str]) -> NDArray[np.float64]:
    return np.array([[function(one, other) for other in others] for one in texts])


def dmbr_objective(
    chosen: tuple[int, ...], means: NDArray[np.float64], similar: NDArray[np.float64], k: int, diversity: float
) -> float:
    """As the paper's authors compute it, times k: quality minus the mean similarity of ordered pairs."""
    pairs = sum(similar[i, j] for i in chosen for j in chosen if i != j)
    return float(sum(means[i] for i in chosen) - diversity * pairs / (k - 1))


def greedy_by_objective(
    means: NDArray[np.float64], similar: NDArray[np.float64], k: int, diversity: float
) -> list[int]:
    chosen: tuple[int, ...] = ()
    for _ in range(min(k, len(means))):
        left = [i for i in range(len(means)) if i not in chosen]
        worth = [dmbr_objective((*chosen, i), means, similar, k, diversity) for i in left]
        chosen = (*chosen, left[int(np.argmax(np.round(worth, 12)))])
    return list(chosen)


@pytest.mark.parametrize("diversity", [0.0, 0.2, 0.5, 2.0])
@pytest.mark.parametrize("nbest", [2, 3, 5])
@pytest.mark.parametrize("utility", [overlap, containment])
def test_a_diverse_list_is_the_authors_greedy_one(
    utility: Callable[[str, str], float], nbest: int, diversity: float, demo_rows: list[Row]
) -> None:
    for row in demo_rows[:3]:
        hypotheses, drawn = list(dict.fromkeys(row["hypotheses"]))[:9], row["pseudo_references"][:20]
        found = mbrace.decode(
            hypotheses,
            drawn,
            utility=utility,
            prune=None,
            schedule="all",
            nbest=nbest,
            method="diverse",
            method_options={"diversity": diversity},
        )
        means = matrix(utility, hypotheses, drawn).mean(axis=1)
        similar = matrix(utility, hypotheses, hypotheses)
        want = greedy_by_objective(means, similar, nbest, diversity)
        assert [each.index for each in found.nbest] == want
        assert found.index == int(np.argmax(means))  # the first is the MBR answer
        np.testing.assert_allclose([each.utility for each in found.nbest], means[want], rtol=1e-12)
        if diversity == 0:
            best = mbrace.decode(hypotheses, drawn, utility=utility, prune=None, schedule="all", nbest=nbest)
            assert found.nbest == best.nbest
        if diversity == 0.2:  # more of them is always worth more here, so that the greedy bound holds
            every = itertools.combinations(range(len(hypotheses)), nbest)
            optimum = max(dmbr_objective(some, means, similar, nbest, diversity) for some in every)
            assert dmbr_objective(tuple(want), means, similar, nbest, diversity) >= (1 - 1 / math.e) * optimum


def test_comparisons_of_hypotheses_are_counted_and_none_is_made_twice(demo_rows: list[Row]) -> None:
    asked: list[tuple[str, str]] = []

    def noting(hypothesis: str, reference: str) -> float:
        asked.append((hypothesis, reference))
        return overlap(hypothesis, reference)

    row = demo_rows[0]
    hypotheses = list(dict.fromkeys(row["hypotheses"]))[:8]
    lists: list[list[str] | None] = [
        row["pseudo_references"][:10],
        [*hypotheses[:3], *row["pseudo_references"][:5]],
        None,
    ]
    for drawn in lists:
        for method, nbest in ((None, 4), ("diverse", 4), ("diverse", 8), ("diverse", 99)):
            asked.clear()
            found = mbrace.decode(
                hypotheses, drawn, utility=noting, prune=None, schedule="all", nbest=nbest, method=method
            )
            assert len(asked) == len(set(asked)) == found.pairs_scored
            assert found.utility_calls == found.pairs_scored  # no string was drawn twice
            assert len(found.nbest) == min(nbest, len(hypotheses))
            distinct = {*hypotheses, *(drawn or [])}
            assert found.strings == len(distinct)
            if drawn is None or nbest >= len(hypotheses) or method != "diverse":  # all that is needed is known
                assert len(asked) == len(hypotheses) * len(drawn or hypotheses)
            elif drawn is lists[0] and not set(drawn) & set(hypotheses):
                assert len(asked) == 8 * 10 + 2 * (7 + 6 + 5)


def test_ties_go_to_the_first() -> None:
    hypotheses, drawn = ["b", "c", "a", "d"], ["x", "y"]
    for method in (None, "diverse"):
        found = mbrace.decode(
            hypotheses, drawn, utility=lambda h, r: 1.0, prune=None, schedule="all", nbest=3, method=method
        )
        assert [each.index for each in found.nbest] == [0, 1, 2], method


def test_repeated_hypotheses_one_hypothesis_and_drawn_ones() -> None:
    options: dict[str, Any] = {"utility": overlap, "prune": None, "nbest": 2, "schedule": "all"}
    options["method"] = "diverse"
    one = mbrace.decode(["a b", "a b"], ["a", "b"], **options)
    assert ([each.text for each in one.nbest], one.utility_calls) == (["a b"], 0)
    own = mbrace.decode(["a b", "a c", "d e", "d f"], exclude_self=True, **options)
    assert {each.text[0] for each in own.nbest} == {"a", "d"}


def test_a_utility_that_fails_only_for_two_hypotheses_is_named() -> None:
    def fails(hypothesis: str, reference: str) -> float:
        return math.nan if reference.startswith("h") else float(len(hypothesis))

    with pytest.raises(mbrace.RecordError, match=r"record 'x': utility fails returned"):
        mbrace.decode(["h1", "h", "h2"], ["r"], utility=fails, prune=None, nbest=2, method="diverse", id="x")


def test_equal_numbers_give_one_list_whatever_the_seed_and_order() -> None:
    names = ["d", "b", "e", "a", "c"]
    for number in range(40):
        rng = np.random.default_rng(number)
        table = {pair: float(rng.integers(0, 2)) for pair in itertools.product(names, names)}
        logs = dict(zip(names, np.log(2) * -rng.integers(0, 4, 5), strict=True))
        references = [names[i] for i in rng.integers(0, 5, rng.integers(3, 12))]
        found = []
        for seed in range(5):
            drawn = [references[i] for i in rng.permutation(len(references))]
            found.append(
                mbrace.decode(
                    names[:4],
                    drawn,
                    utility=lambda h, r, table=table: table[h, r],
                    logprobs=[logs[text] for text in drawn] if number % 2 else None,
                    prune=None,
                    nbest=2,
                    method="diverse",
                    seed=seed,
                ).nbest
            )
        assert all(nbest == found[0] for nbest in found)
