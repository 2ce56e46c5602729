"""Aggregation, centroids and low-rank completion: against naive transcriptions of the papers, and against `mbrs` and
`fastchrf` on a shared example (oracle/scores_methods.json)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import overlap
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_word_ngrams

import mbrace
from mbrace import _native
from mbrace.cli import main
from mbrace.low_rank import chosen_pairs, complete, factorize, starting
from mbrace.utilities.mixture import Mixture

ORACLE = json.loads((Path(__file__).parent / "oracle" / "scores_methods.json").read_text())
WORDS = ["a", "b", "ab", "ba", "cab", "ä,"]
sentences = st.lists(st.sampled_from(WORDS), min_size=0, max_size=7).map(" ".join)
texts = st.lists(sentences, min_size=1, max_size=12)
chrf_options = st.fixed_dictionaries(
    {
        "char_order": st.sampled_from([1, 3, 6, 8]),
        "word_order": st.integers(0, 2),
        "beta": st.sampled_from([1, 2]),
        "whitespace": st.booleans(),
        "lowercase": st.booleans(),
        "eps_smoothing": st.booleans(),
    }
)


def ngrams_of(text: str, metric: CHRF) -> list[Counter[str]]:
    text = metric._preprocess_segment(text)
    found = extract_all_char_ngrams(text, metric.char_order, metric.whitespace)
    words = metric._remove_punctuation(text)
    return found + [extract_word_ngrams(words, n) for n in range(1, metric.word_order + 1)]


def naive_aggregate(hypothesis: str, references: list[str], options: dict[str, Any]) -> float:
    """F of a hypothesis and the mean n-gram counts of the references, by sacreBLEU's own counting and formula."""
    metric = CHRF(**options)
    means: list[Counter[str]] = []
    for order in zip(*(ngrams_of(reference, metric) for reference in references), strict=True):
        total: Counter[str] = sum(order, Counter())
        means.append(Counter({gram: count / len(references) for gram, count in total.items()}))
    statistics: list[float] = []
    for own, mean in zip(ngrams_of(hypothesis, metric), means, strict=True):
        matches = sum(min(count, mean[gram]) for gram, count in own.items())
        statistics += [sum(own.values()) if mean else 0, sum(mean.values()), matches]
    return float(metric._compute_f_score(statistics))


@settings(max_examples=150)
@given(texts, texts, chrf_options)
def test_full_aggregation_is_chrf_of_mean_counts(h: list[str], r: list[str], options: dict[str, Any]) -> None:
    h = [*h, "no other has this"]
    found = mbrace.decode(h, r, utility=mbrace.ChrF(**options), method="aggregate", nbest=len(h))
    for each in found.nbest:
        assert each.utility == pytest.approx(naive_aggregate(each.text, r, options), abs=2e-4)
    assert len(found.nbest) == len(set(h)) == found.utility_calls == found.pairs_scored
    assert (found.pseudo_references, found.strings) == (len(r), len({*h, *r}))


@given(texts, texts, st.integers(2, 5))
def test_partial_aggregation_averages_over_consecutive_parts(h: list[str], r: list[str], count: int) -> None:
    h = [*h, "no other has this"]
    method = mbrace.AggregateReferences(count)
    found = mbrace.decode(h, r, method=method, nbest=len(h), shuffle=False)
    options = {"char_order": 6, "word_order": 2, "beta": 2}
    parts = [[r[i] for i in part] for part in np.array_split(np.arange(len(r)), min(count, len(r)))]
    for each in found.nbest:
        scores = [len(part) * naive_aggregate(each.text, part, options) for part in parts]
        assert each.utility == pytest.approx(sum(scores) / len(r), abs=2e-4)
    assert found.utility_calls == len(set(h)) * len(parts)


@given(texts, sentences, st.integers(1, 9))
def test_equal_references_aggregate_to_the_plain_score(h: list[str], reference: str, copies: int) -> None:
    h = [*h, "no other has this"]
    plain = mbrace.decode(h, [reference], prune=None, nbest=len(h))
    for count in (1, 3):
        found = mbrace.decode(h, [reference] * copies, method=mbrace.AggregateReferences(count), nbest=len(h))
        assert {each.text: each.utility for each in found.nbest} == pytest.approx(
            {each.text: each.utility for each in plain.nbest}, abs=1e-4
        )


def test_aggregates_are_those_of_mbrs_and_fastchrf() -> None:
    hypotheses, references = ORACLE["hypotheses"], ORACLE["references"]
    for name, order in (("chrf", 0), ("chrf++", 2)):
        utility = mbrace.ChrF(word_order=order)
        found = mbrace.decode(hypotheses, references, utility=utility, method="aggregate", nbest=9)
        scores = {each.index: each.utility for each in found.nbest}
        assert [scores[i] for i in range(len(hypotheses))] == pytest.approx(ORACLE[name], abs=1e-4)
    distinct = list(dict.fromkeys(references))
    weighted = mbrace.decode(hypotheses, distinct, logprobs=ORACLE["logprobs"], method="aggregate", nbest=9)
    scores = {each.index: each.utility for each in weighted.nbest}
    assert [scores[i] for i in range(len(hypotheses))] == pytest.approx(ORACLE["chrf++ by probability"], abs=1e-4)


def test_completion_is_that_of_mbrs() -> None:
    shared = ORACLE["completion"]
    matrix, mask = np.array(shared["matrix"]), np.array(shared["mask"])
    start = np.array(shared["start"][0]), np.array(shared["start"][1])
    x, y = factorize(matrix, mask, start, iterations=6, regularization=0.1)
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
    mask = chosen_pairs(9, 11, 0.5, rng)
    start = starting(table.shape, 3, np.random.default_rng(4))
    known = table[mask]
    scaled = {(i, j): (table[i, j] - known.mean()) / known.std() for i, j in np.argwhere(mask).tolist()}
    expected = naive_completion(scaled, (9, 11), start) * known.std() + known.mean()
    found = complete(np.where(mask, table, 0), mask, 3, np.random.default_rng(4))
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_pairs_that_were_not_scored_are_completed_to_near_their_values() -> None:
    rng = np.random.default_rng(0)
    table = 50 + 7 * rng.normal(size=(60, 3)) @ rng.normal(size=(3, 60))
    mask = chosen_pairs(60, 60, 0.4, rng)
    found = complete(np.where(mask, table, 0), mask, 3, rng)
    assert np.abs(found - table)[~mask].mean() < 0.2 * np.abs(table - table[mask].mean())[~mask].mean()


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


METHODS = ["aggregate", mbrace.AggregateReferences(4), "aggregate-to-fine", mbrace.AggregateToFine(3, 2), "low-rank"]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_window_and_threads_change_no_answer(method: Any) -> None:
    one = list(mbrace.decode_corpus(records(12), utility=mbrace.ChrF(threads=1), method=method, window=1, nbest=3))
    many = list(mbrace.decode_corpus(records(12), utility=mbrace.ChrF(threads=2), method=method, window=16, nbest=3))
    assert one == many
    assert all(len(answer.nbest) == 3 for answer in one)


def test_the_best_by_aggregates_go_on_to_a_race_with_every_pseudo_reference() -> None:
    for record in records(5):
        given: dict[str, Any] = {"pseudo_references": record.pseudo_references, "id": record.id}
        coarse = mbrace.decode(record.hypotheses, **given, method="aggregate", nbest=6)
        chosen = {each.text for each in coarse.nbest}
        options: dict[str, Any] = {"nbest": 6, "prune": None}
        found = mbrace.decode(record.hypotheses, **given, method=mbrace.AggregateToFine(6), **options)
        alone = mbrace.decode([h for h in record.hypotheses if h in chosen], **given, **options)
        assert [(each.text, each.utility) for each in found.nbest] == [(e.text, e.utility) for e in alone.nbest]
        assert (found.utility_calls, found.coarse_calls) == (alone.utility_calls, coarse.utility_calls)
        assert found.strings == len({*record.hypotheses, *(record.pseudo_references or ())})  # type: ignore[misc]


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

    found = mbrace.decode(["a", "b b", "cab"], more, method="aggregate", schedule=[8, 32])
    assert (asked, found.pseudo_references) == ([32], 32)
    with pytest.raises(mbrace.UserError, match='schedule "all": method aggregate takes all pseudo-references at once'):
        mbrace.decode(["a", "b b"], more, method="aggregate", schedule="all")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "nothing"}, "method 'nothing': unknown; choose from race, aggregate"),
        ({"method": mbrace.LowRank}, "give a name such as 'aggregate', or an object"),
        ({"method": "centroid"}, "method centroid: utility chrF2.* has no embeddings to cluster; choose comet"),
        ({"method": "aggregate", "utility": overlap}, "method aggregate: utility overlap cannot average references"),
        (
            {"method": "aggregate", "prune": mbrace.Bottom(0.5)},
            "only valid without method aggregate, which prunes none",
        ),
        ({"method": "low-rank", "pool": True}, "pool: only valid without method low-rank"),
        ({"method": "low-rank", "exclude_self": True}, "exclude_self: only valid without method low-rank"),
        ({"method": "aggregate", "select": "medoids", "nbest": 2}, "select 'medoids': only valid without method"),
        ({"method": "low-rank", "keep_utilities": True}, "utilities: cannot be saved with method low-rank"),
        ({"method": mbrace.AggregateToFine(2), "nbest": 3}, r"fine_top 2: must be at least nbest \(3\)"),
        ({"method": "low-rank", "utility": Mixture([(mbrace.ChrF(), 1.0)])}, "is scaled by whole tables"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(mbrace.UserError, match=says):
        mbrace.decode(["a", "b", "ab"], ["a", "b"], **options)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: mbrace.AggregateReferences(0), "aggregates 0: must be 1 or more"),
        (lambda: mbrace.AggregateToFine(fine_top=0), "fine_top 0: must be 1 or more"),
        (lambda: mbrace.CentroidReferences(0), "centroids 0: must be 1 or more"),
        (lambda: mbrace.LowRank(rank=0), "rank 0: must be 1 or more"),
        (lambda: mbrace.LowRank(fraction=1.5), "fraction 1.5: must be between 0 and 1"),
        (lambda: mbrace.LowRank(fraction=0.0), "fraction 0: must be above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(mbrace.UserError, match=says):
        make()


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ("--method aggregate --aggregates 4", mbrace.AggregateReferences(4)),
        ("--method aggregate-to-fine --fine-top 5 --aggregates 2", mbrace.AggregateToFine(5, 2)),
        ("--method low-rank --rank 3 --fraction 0.2", mbrace.LowRank(3, 0.2)),
    ],
)
def test_the_command_writes_what_the_library_finds(options: str, method: Any, tmp_path: Path) -> None:
    rows = [{"id": r.id, "hypotheses": r.hypotheses, "pseudo_references": r.pseudo_references} for r in records(5)]
    given_file, out = tmp_path / "c.jsonl", tmp_path / "o.jsonl"
    given_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["decode", str(given_file), "-o", str(out), "--nbest", "2", *options.split()]
    assert main(command) == 0
    whole = out.read_bytes()
    expected = list(mbrace.decode_corpus(records(5), method=method, nbest=2))
    written = [json.loads(line) for line in whole.splitlines()]
    assert [(row["text"], row["utility_calls"], row["pairs_scored"], row["strings"]) for row in written] == [
        (each.text, each.utility_calls, each.pairs_scored, each.strings) for each in expected
    ]
    # a run that was cut short goes on to the same file; one with another method does not
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert main([*command, "--resume"]) == 0
    assert out.read_bytes() == whole
    assert main([*command[:6], "--resume"]) == 2


def test_the_kernel_refuses_aggregates_that_are_none() -> None:
    [index] = _native.build_indexes([["a", "b"]], char_order=6, word_order=2, whitespace=False)
    rows = np.arange(2)

    def score(texts: list[str], weights: list[float], rows: NDArray[np.int64] = rows) -> None:
        aggregates: list[Any] = [[(texts, np.array(weights, dtype=np.float64))]]
        _native.score_aggregates([index], [rows], aggregates, beta=2, eps_smoothing=False)

    score(["a", "b"], [1, 2])
    for texts, weights in (
        ([], []),
        (["a"], [1, 2]),
        (["a"], [0]),
        (["a"], [-1]),
        (["a"], [np.nan]),
        (["a"], [np.inf]),
    ):
        with pytest.raises(ValueError, match="aggregate"):
            score(texts, weights)
    with pytest.raises(IndexError, match="a survivor is not in the index"):
        score(["a"], [1], np.array([2]))
    with pytest.raises(ValueError, match="equally long"):
        _native.score_aggregates([index], [], [], beta=2, eps_smoothing=False)


@given(st.lists(sentences, min_size=257, max_size=300, unique=True), texts)
@settings(max_examples=5)
def test_more_hypotheses_than_a_block_of_the_kernel_holds(h: list[str], r: list[str]) -> None:
    found = mbrace.decode(h, r, method="aggregate", nbest=len(h))
    options = {"char_order": 6, "word_order": 2, "beta": 2}
    for each in found.nbest[::17]:
        assert each.utility == pytest.approx(naive_aggregate(each.text, r, options), abs=2e-4)
