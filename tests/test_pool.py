"""Regret by hand, and races over one list that is drawn."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from conftest import overlap

import mbrace
from mbrace._native import Resamples

WORDS = ["a", "b", "c", "d", "e"]


def test_regret_by_hand() -> None:
    utilities = np.array([[3, 1], [1, 2]], dtype=np.float32)
    resamples = Resamples(5, 2, 100)
    counts = resamples.counts()
    both, first, second = (counts == 1).all(1).mean(), (counts[:, 0] == 2).mean(), (counts[:, 1] == 2).mean()
    assert both + first + second == 1
    # The first leads by mean (2 against 1.5). Only where the second reference was drawn twice is it worse: 1 against 2.
    once = np.ones(2, dtype=np.int64)
    assert resamples.regret(utilities, once, None, [0]) == pytest.approx(second * 1.0, rel=1e-4)
    assert resamples.regret(utilities, once, None, [1]) == pytest.approx(first * 2.0 + both * 0.5, rel=1e-4)
    assert resamples.regret(utilities, once, None, [0, 1]) == 0
    # With weights of .9 and .1 and both drawn: 2.8 against 1.1 (of the total weight).
    weights = np.array([0.9, 0.1])
    expected = first * 2 * 0.9 * 2.0 + both * (0.9 * 2 - 0.1 * 1)
    assert resamples.regret(utilities, once, weights, [1]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("nbest", [1, 2, 3])
def test_the_regret_of_a_list_is_that_of_its_hypotheses_on_average(nbest: int) -> None:
    rng = np.random.default_rng(nbest)
    utilities = rng.random((7, 12), dtype=np.float32)
    resamples = Resamples(1, 12, 300)
    by_resample = utilities.astype(float) @ resamples.counts().T / 12
    leaders = np.sort(np.argsort(-utilities.mean(1))[:nbest])
    best = np.sort(by_resample, axis=0)[-nbest:]
    expected = (best.sum(0) - by_resample[leaders].sum(0)).mean() / nbest
    found = resamples.regret(utilities, np.ones(12, dtype=np.int64), None, leaders.tolist())
    assert found == pytest.approx(expected, abs=1e-4)
    rule = mbrace.Confidence(0.999, regret=10.0)
    table = {(f"h{i}", f"r{j}"): float(utilities[i, j]) for i in range(7) for j in range(12)}
    answer = mbrace.decode(
        [f"h{i}" for i in range(7)],
        [f"r{j}" for j in range(12)],
        utility=lambda h, r: table[h, r],
        prune=rule,
        schedule=(4, 8, 12),
        nbest=nbest,
    )
    assert answer.steps[0].survivors == nbest  # so large a regret is allowed that the first step is the last
    assert len(answer.nbest) == nbest


@pytest.mark.parametrize("utility", [mbrace.ChrF(threads=1), overlap], ids=["native", "step by step"])
def test_regret_ends_the_race_for_a_list_of_the_best_too(utility: Any, demo_rows: list[dict]) -> None:
    rows, rule = demo_rows[:8], mbrace.Confidence(0.99, regret=0.5)
    for nbest in (1, 2, 3):
        found = [
            mbrace.decode(row["hypotheses"], row["pseudo_references"], utility=utility, prune=rule, nbest=nbest)
            for row in rows
        ]
        assert all(len(answer.nbest) == nbest for answer in found)
        for answer in found:  # never a step after only those that are listed are left
            assert all(step.survivors > nbest for step in answer.steps[:-1])
        assert min(answer.pseudo_references for answer in found) == 16


def test_hypotheses_that_are_all_alike_stop_at_once() -> None:
    best = mbrace.decode(["x", "y", "z"], ["r"] * 20, utility=lambda h, r: 0.5, prune=mbrace.Confidence(regret=0.01))
    assert (best.text, len(best.steps), best.utility) == ("x", 1, 0.5)


def test_the_order_of_draws_changes_no_bit_where_a_string_is_not_compared_with_itself() -> None:
    # By hand: x has (1e17 - 1e17 + 1) / 3. Added plainly, the 1 is lost wherever it comes between the large ones.
    others = {"a": 1e17, "b": -1e17, "c": 1.0, "x": 0.5}
    options: dict[str, Any] = {"prune": None, "schedule": "all", "exclude_self": True, "nbest": 9, "shuffle": False}
    for order in itertools.permutations("abcx"):
        best = mbrace.decode(list(order), utility=lambda h, r: others[r] if h == "x" else -1.0, **options)
        assert (best.text, best.utility) == ("x", pytest.approx(1 / 3)), order


def test_no_string_is_encoded_that_no_step_asked_for() -> None:
    encoded: list[str] = []

    class Noting:
        name, schedule, needs_source = "noting", (2, 4), False

        def pairs(self, hypotheses: Any, references: Any, sources: Any = None) -> np.ndarray:
            return np.array([overlap(h, r) for h, r in zip(hypotheses, references, strict=True)])

        def start(self, window: Any) -> Any:
            scorer = mbrace.Pairwise(overlap).start(window)
            plain = scorer.score

            def score(asks: Any) -> Any:
                for ask in asks:
                    encoded.extend(window[ask.sentence].hypotheses[i] for i in ask.hypotheses)
                    encoded.extend(ask.references)
                return plain(asks)

            scorer.score = score  # type: ignore[method-assign]
            return scorer

    references = ["a b", "a b", "c", "d", "e", "e a"]
    best = mbrace.decode([], iter(references), utility=Noting(), prune=None, pool=True)
    assert set(encoded) == {"a b", "c", "d"}
    assert best.strings == 3


def test_a_pool_has_no_hypotheses() -> None:
    best = mbrace.decode([], iter(["a b", "a c", "a"]), utility=overlap, prune=None, pool=True)
    assert (best.text, best.index, best.pseudo_references) == ("a", None, 3)
