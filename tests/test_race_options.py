"""Options of a race: seeds, pruning functions, schedules, and bad arguments by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from conftest import overlap, records

import mbrace
from mbrace.prune import Standings


def test_another_seed_draws_other_resamples(demo_rows: list[dict]) -> None:
    corpus = records(demo_rows, 20)
    calls = [[a.utility_calls for a in mbrace.decode_corpus(corpus, seed=seed)] for seed in (0, 1)]
    assert calls[0] != calls[1]


def test_all_open_sentences_are_scored_in_one_call_a_step() -> None:
    calls: list[int] = []

    def batch(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        calls.append(len(hypotheses))
        return [overlap(h, r) for h, r in zip(hypotheses, references, strict=True)]

    corpus = [mbrace.Record(["a", "b"], ["a", "b", "c", "d"], id=i) for i in range(5)]
    utility = mbrace.Pairwise(batch, batch=True)
    list(mbrace.decode_corpus(corpus, utility=utility, schedule=[2, 4], prune=mbrace.Bottom(0)))
    assert calls == [5 * 2 * 2, 5 * 2 * 2]


def test_a_pruning_function_that_drops_all_leaves_the_best() -> None:
    best = mbrace.decode(
        ["x", "a"], ["a"] * 8, utility=overlap, prune=lambda s: np.zeros(len(s.means), dtype=bool), schedule=[2, 8]
    )
    assert (best.text, best.pseudo_references) == ("a", 2)


def test_bottom_drops_the_proportion_and_keeps_one() -> None:
    means = np.array([3.0, 1.0, 2.0, 0.0, 2.0])
    standings = Standings(means[:, None].astype(np.float32), np.array([1]), np.array([1.0]), means, 1, 0)
    assert mbrace.Bottom(0.4)(standings).tolist() == [True, False, True, False, True]
    assert mbrace.Bottom(0.6)(standings).tolist() == [True, False, True, False, False]  # ties: the earlier stays
    assert mbrace.Bottom(1.0)(standings).tolist() == [True, False, False, False, False]


def test_all_goes_on_to_the_last_reference_by_doubling() -> None:
    best = mbrace.decode(
        ["a", "b"],
        ["a", "b"] * 50,
        utility=mbrace.Pairwise(overlap, schedule=(16, 32)),
        schedule="all",
        prune=mbrace.Bottom(0),
    )
    assert [step.pseudo_references for step in best.steps] == [16, 32, 64, 100]


@pytest.mark.parametrize("prune", [None, mbrace.Bottom(0)])
def test_a_function_is_never_asked_for_all_at_once(prune: mbrace.Bottom | None) -> None:
    left, asked = ["a", "b"] * 50, []

    def more(count: int) -> list[str]:
        asked.append(count)
        given, left[:count] = left[:count], []
        return given

    best = mbrace.decode(["a", "b"], more, utility=overlap, schedule="all", prune=prune)
    assert best.pseudo_references == 100
    assert max(asked) <= 128


def test_a_default_schedule_that_leaves_references_unused_says_so() -> None:
    corpus = [mbrace.Record(["a", "b"], ["a", "b", "c"] * (100 + i), id=i) for i in range(3)]
    with pytest.warns(UserWarning, match=r"ends at 256 pseudo-references, .* schedule=\"all\"") as caught:
        answers = list(mbrace.decode_corpus(corpus, utility=overlap, prune=None))
    assert [answer.pseudo_references for answer in answers] == [256] * 3
    assert len({str(warning.message) for warning in caught}) == 1  # so that Python shows it once a run


def test_a_listed_order_is_no_sample_and_is_shuffled() -> None:
    ordered = ["a"] * 8 + ["b"] * 56  # a prefix would say "a"
    best = mbrace.decode(["a", "b"], ordered, utility=overlap, prune=None, schedule=[32])
    prefix = mbrace.decode(["a", "b"], ordered, utility=overlap, prune=None, schedule=[8], shuffle=False)
    assert (best.text, prefix.text) == ("b", "a")


def test_log_probabilities_are_taken_by_position_whatever_their_labels() -> None:
    pandas = pytest.importorskip("pandas")
    texts, logprobs = ["a", "b", "c", "d"], [-0.1, -3.0, -5.0, -9.0]
    wanted = mbrace.decode(texts, utility=overlap, logprobs=logprobs, prune=None, nbest=4)
    for labels in ([3, 2, 1, 0], ["w", "x", "y", "z"], [1, 1, 1, 1]):
        series = pandas.Series(logprobs, index=labels)
        for given in (series, series.to_numpy()):
            assert mbrace.decode(texts, utility=overlap, logprobs=given, prune=None, nbest=4) == wanted


def test_many_resamples_are_kept_within_bounds() -> None:
    from mbrace import prune

    for draws in range(1, 12):
        mbrace.Confidence(bootstraps=4_000_000 // draws // 40).resamples(draws * 40 * 10, 1)
    assert sum(draws * bootstraps for _, draws, bootstraps in prune._kept) <= prune._MOST_KEPT
