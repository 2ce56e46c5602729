"""Options of a race: seeds, pruning functions, schedules, and bad arguments by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedule": [0, 4]}, "start at 1"),
        ({"hypotheses": []}, "hypotheses: empty"),
        ({"hypotheses": ["a", 7]}, r"hypotheses\[1\]: expected a string, got a number"),
        ({"hypotheses": "a string"}, "hypotheses: expected a list of strings, got a string$"),
        (
            {"hypotheses": np.array(["a", "b"]), "pseudo_references": None},
            "hypotheses: .* got ndarray; list.* makes one",
        ),
        ({"pseudo_references": []}, "pseudo_references: empty"),
        ({"pseudo_references": iter([])}, "pseudo_references: empty"),
        ({"pseudo_references": ["a"], "logprobs": [0.0, 1.0]}, "logprobs: 2 for 1"),
        ({"logprobs": [0.0, float("nan")]}, r"logprobs\[1\]: expected a finite number"),
        ({"logprobs": [float("-inf"), float("-inf")]}, r"logprobs\[0\]: expected a finite number"),
        ({"logprobs": [0.0, 10**400]}, r"logprobs\[1\]: expected a finite number"),
        ({"pseudo_references": iter(["a", "b"]), "logprobs": [0.0, 0.0]}, "only valid with a list"),
        ({"pseudo_references": iter(["a", 7])}, "pseudo_references: expected strings"),
        ({"pseudo_references": {"a", "b"}}, "pseudo_references: expected a list, an iterator or a function .* got set"),
        ({"pseudo_references": np.array(["a", "b"])}, r"got ndarray; list\(...\) makes one"),
        ({"pseudo_references": lambda count: "ab"}, "expected a list of strings, got a str"),
        ({"schedule": 5}, "schedule 5: give growing whole numbers"),
        ({"utility": lambda h, r: float("nan")}, "returned nan for hypothesis"),
        ({"utility": lambda h, r: "x"}, "return one number"),
        ({"utility": mbrace.Pairwise(lambda h, r: [0.0], batch=True)}, "one number per pair"),
        ({"utility": 3}, "give a utility"),
        ({"logprobs": b"ab"}, "logprobs: expected a list of numbers, got bytes"),
        ({"logprobs": {0.0, 1.0}}, "logprobs: expected a list of numbers, got set"),
        ({"logprobs": np.array([True, False])}, r"logprobs\[0\]: expected a finite number, got True"),
        ({"id": object()}, "id: expected a string or a whole number, got object"),
        ({"id": True}, "id: expected a string or a whole number, got true/false"),
        ({"source": 5}, "source: expected a string, got a number"),
        ({"source": b"s"}, "source: expected a string, got bytes"),
        ({"prune": lambda s: [1, 2, 3, 4]}, "pruning function returned"),
        ({"pseudo_references": lambda count: None}, "expected a list of strings, got None"),
        ({"pseudo_references": lambda count: ["a"] * (count + 1)}, "asked for 16 more, got 17"),
        ({"schedule": np.array([[1, 2]])}, "give whole numbers"),
        ({"select": "diverse"}, 'select: is a method now: method="diverse" chooses a diverse n-best list'),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    fields = {"hypotheses": ["a", "b", "c"], "pseudo_references": ["a", "b"], "utility": overlap} | arguments
    with pytest.raises(mbrace.UserError, match=message):
        mbrace.decode(fields.pop("hypotheses"), fields.pop("pseudo_references"), **fields)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mbrace.Confidence(-0.1), "alpha -0.1: must be between 0 and 1"),
        (lambda: mbrace.Confidence(alpha="x"), "alpha 'x': must be a number"),  # type: ignore[arg-type]
        (lambda: mbrace.Confidence(bootstraps=10.5), "bootstraps 10.5: must be a whole number"),  # type: ignore[arg-type]
        (lambda: mbrace.Confidence(regret=float("inf")), "regret inf: must be 0 or more, and finite"),
        (lambda: mbrace.Bottom(float("nan")), "beta nan: must be between 0 and 1"),
        (lambda: mbrace.Bottom(None), "beta None: must be a number"),  # type: ignore[arg-type]
        (lambda: mbrace.AggregateReferences(0), "aggregates 0: must be 1 or more"),
        (lambda: mbrace.CentroidReferences(0), "centroids 0: must be 1 or more"),
        (lambda: mbrace.LowRank(rank=0), "rank 0: must be 1 or more"),
        (lambda: mbrace.LowRank(fraction=0.0), "fraction 0: must be above 0"),
        (lambda: mbrace.ChrF(char_order=1.5), "char_order 1.5: must be a whole number"),  # type: ignore[arg-type]
    ],
)
def test_a_number_out_of_range_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(mbrace.UserError, match=f"^{message}"):
        make()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"hypotheses": ["a"]}], r"got an object; mbrace.Record\(\*\*fields\) makes one of a dict"),
        ({"hypotheses": ["a"]}, r"got an object; mbrace.Record\(\*\*fields\) makes one of a dict"),
        (["a", "b"], "got a string"),
        ("ab", "got a string"),
        (b"ab", "got bytes"),
        (None, "got null"),
        (mbrace.Record(["a"]), "got Record"),
        ([("a", "b")], "got tuple"),
    ],
)
def test_what_is_no_record_is_named(records: Any, message: str) -> None:
    expected = f"records: expected objects of mbrace.Record or lists of strings, {message}$"
    with pytest.raises(mbrace.UserError, match=expected):
        list(mbrace.decode_corpus(records))


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
