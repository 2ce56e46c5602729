"""Races by hand: counts, ties, weights, and what is never asked for. Random races: test_combinations.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from conftest import overlap

import mbrace
from mbrace.prune import Standings
from mbrace.utility import Ask, Sentence


def test_alpha_one_prunes_only_what_never_wins() -> None:
    rng = np.random.default_rng(3)
    utilities = rng.random((30, 8), dtype=np.float32)
    counts = np.ones(8, dtype=np.int64)
    means = utilities.mean(axis=1, dtype=np.float64)
    standings = Standings(utilities, counts, counts / 8, means, 1, 7)
    rule = mbrace.Confidence(alpha=1.0)
    wins = rule.win_rates(standings)
    assert 0 < np.count_nonzero(wins) < 30
    np.testing.assert_array_equal(rule(standings), wins > 0)


class CountingUtility(mbrace.Pairwise):
    """Remembers every pair it is asked for."""

    def __init__(self) -> None:
        super().__init__(overlap)
        self.asked: list[tuple[str, str]] = []

    def start(self, sentences: Sequence[Sentence]):  # type: ignore[no-untyped-def]
        scorer, plain = super().start(sentences), None
        plain = scorer.score

        def score(asks: Sequence[Ask]) -> list[np.ndarray]:
            for ask in asks:
                texts = sentences[ask.sentence].hypotheses
                self.asked += [(texts[s], r) for s in ask.hypotheses for r in ask.references]
            return plain(asks)

        scorer.score = score  # type: ignore[method-assign]
        return scorer


def test_a_race_that_is_over_draws_and_scores_nothing_more() -> None:
    asked: list[int] = []

    def more(count: int) -> list[str]:
        asked.append(count)
        return ["a b c"] * count

    utility = CountingUtility()
    best = mbrace.decode(["a b c", "x", "y z"], more, utility=utility, schedule=[4, 8, 16])
    assert (best.text, best.pseudo_references, asked) == ("a b c", 4, [4])
    assert len(utility.asked) == 3  # one distinct reference
    assert best.utility_calls == 12
    assert best.pairs_scored == 3


def test_an_iterator_is_read_no_further_than_the_race_needs() -> None:
    source = iter(["a b c"] * 100)
    mbrace.decode(["a b c", "x"], source, utility=overlap, schedule=[4, 8, 16])
    assert len(list(source)) == 96


def test_one_distinct_hypothesis_needs_no_reference_at_all() -> None:
    def never(count: int) -> list[str]:
        raise AssertionError("asked")

    best = mbrace.decode(["same", "same"], never, utility=overlap)
    assert (best.text, best.index, best.utility, best.utility_calls, best.steps) == ("same", 0, None, 0, ())


def test_counters_by_hand() -> None:
    # 3 distinct of 4 hypotheses; references a a b | b c c c. Bottom(0.3) of 3 drops 1, of 2 drops 1.
    h = ["a", "b", "a", "c c"]
    r = ["a", "a", "b", "b", "c", "c", "c"]
    utility = CountingUtility()
    best = mbrace.decode(h, r, utility=utility, prune=mbrace.Bottom(0.3), schedule=[3, 7], shuffle=False)
    first, second = best.steps
    assert (first.pseudo_references, first.survivors, first.utility_calls, first.pairs_scored) == (3, 2, 9, 6)
    assert (second.pseudo_references, second.survivors, second.utility_calls, second.pairs_scored) == (7, 1, 8, 2)
    assert (best.utility_calls, best.pairs_scored, best.pseudo_references) == (17, 8, 7)
    assert len(utility.asked) == len(set(utility.asked)) == 8
    assert best.text == "a"
    assert best.utility == pytest.approx(2 / 7)


def test_equal_hypotheses_keep_the_callers_first_index() -> None:
    best = mbrace.decode(["x", "a b", "a b"], ["a b"] * 4, utility=overlap)
    assert (best.index, best.text) == (1, "a b")


def test_equal_references_weigh_by_how_often_they_were_drawn() -> None:
    best = mbrace.decode(["a", "b"], ["a", "b", "b"], utility=overlap, prune=None)
    assert (best.text, best.utility) == ("b", pytest.approx(2 / 3))


def test_an_equal_utility_ties_exactly_and_is_never_pruned_by_rounding() -> None:
    # Both hypotheses score 0.1, 0.2, 0.3 ... in every reference, so neither can be dropped at any alpha above 0.
    table = {("one", f"r{i}"): 0.1 * i for i in range(50)} | {("two", f"r{i}"): 0.1 * i for i in range(50)}
    best = mbrace.decode(
        ["one", "two"],
        [f"r{i}" for i in range(50)],
        utility=lambda h, r: table[h, r],
        prune=mbrace.Confidence(alpha=0.01),
        schedule=[8, 16, 50],
    )
    assert [step.survivors for step in best.steps] == [2, 2, 2]
    assert best.index == 0


def test_log_probabilities_weigh_each_distinct_reference_once() -> None:
    # u(a) = 1 under reference a (p = 0.2), u(b) = 1 under reference b (p = 0.6); a was drawn more often.
    logprobs = np.log([0.2, 0.2, 0.2, 0.6]).tolist()
    best = mbrace.decode(["a", "b"], ["a", "a", "a", "b"], utility=overlap, prune=None, logprobs=logprobs)
    assert (best.text, best.utility) == ("b", pytest.approx(0.75))


def test_weighted_win_rates_are_those_of_weighted_resample_means() -> None:
    rng = np.random.default_rng(2)
    utilities = rng.random((10, 7), dtype=np.float32)
    counts, weights = np.ones(7, dtype=np.int64), rng.dirichlet(np.ones(7))
    means = utilities.astype(float) @ weights
    standings = Standings(utilities, counts, weights, means, 1, 5, equal_draws=False)
    rule = mbrace.Confidence(bootstraps=300)
    resamples = rule.resamples(7, 0).counts()
    resampled = (utilities @ (resamples * weights).T) / (resamples @ weights)
    wins = (resampled >= resampled[np.argmax(means)] - 1e-12).mean(axis=1)
    np.testing.assert_allclose(rule.win_rates(standings), wins, atol=1 / 300 + 1e-9)
