"""One answer: brute force with fractions against plain MBR of every kind, for any seed, order, window and threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import mbrace
from mbrace import _native

NAMES = ["d", "b", "e", "a", "c"]
Numbers = dict[tuple[str, str], int]


class WholeNumbers(mbrace.Pairwise):
    """A table of whole numbers as a utility, of floats or doubles, on several threads."""

    group_size = 2
    encode_seconds = 0.0

    def __init__(self, table: Numbers, kind: type, workers: int) -> None:
        super().__init__(lambda h, r: float(table[h, r]), name="table")
        self.table, self.kind, self.workers = table, kind, workers

    def single_threaded(self) -> WholeNumbers:
        return WholeNumbers(self.table, self.kind, 1)

    def start(self, sentences: Sequence[mbrace.utility.Sentence]) -> Any:
        started = WholeNumbers(self.table, self.kind, 1)
        started.score = lambda asks: [self.scores(sentences[ask.sentence], ask) for ask in asks]  # type: ignore[attr-defined]
        return started

    def scores(self, sentence: mbrace.utility.Sentence, ask: mbrace.utility.Ask) -> NDArray[Any]:
        rows = [[self.table[sentence.hypotheses[h], r] for r in ask.references] for h in ask.hypotheses]
        return np.array(rows, dtype=self.kind).reshape(len(ask.hypotheses), len(ask.references))


def expected_utility(
    table: Numbers, text: str, references: list[str], weights: dict[str, Fraction] | None, own: bool
) -> Fraction:
    """By definition: the mean over all draws, less one of `own`; with weights, over the strings that are drawn."""
    draws = list(references)
    if own:
        draws.remove(text)
    draws = draws or references
    counted = draws if weights is None else sorted(set(draws))
    share = {r: Fraction(1) if weights is None else weights[r] for r in counted}
    return sum((share[r] * table[text, r] for r in counted), Fraction(0)) / sum(share[r] for r in counted)


KINDS = ["two lists", "one list", "pool"]


@settings(max_examples=150)
@given(
    st.integers(0, 2**32),
    st.sampled_from(KINDS),
    st.booleans(),
    st.sampled_from(["", "exact", "any"]),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([1, 2, 1000]),
)
def test_an_n_best_list_is_that_of_fractions_whatever_the_seed_order_window_and_threads(
    number: int, kind: str, exclude_self: bool, weighted: str, numbers: type, largest: int
) -> None:
    rng = np.random.default_rng(number)
    table: Numbers = {pair: int(rng.integers(0, largest, endpoint=True)) for pair in itertools.product(NAMES, NAMES)}
    references = [NAMES[i] for i in rng.integers(0, 5, rng.integers(2, 12))]
    given_texts = references if kind == "one list" else [] if kind == "pool" else NAMES[: int(rng.integers(2, 5))]
    # Equal probabilities make equal weights, whose products with whole numbers can be equal; others do so by chance.
    logs = dict.fromkeys(NAMES, 0.0) if weighted == "exact" else dict(zip(NAMES, rng.normal(-9, 3, 5), strict=True))
    weights = {r: Fraction(1) for r in NAMES} if weighted == "exact" else None
    options: dict[str, Any] = {"prune": None, "schedule": "all", "nbest": 5, "exclude_self": exclude_self}

    found = []
    for seed in range(4):
        order = rng.permutation(len(references)).tolist()
        shuffled = [references[i] for i in order]
        record = mbrace.Record(
            given_texts,
            None if kind == "one list" else shuffled,
            id=seed,
            logprobs=[logs[r] for r in (references if kind == "one list" else shuffled)] if weighted else None,
        )
        utility = WholeNumbers(table, numbers, 1 + seed % 2)
        corpus = [record] * (1 + seed % 3)
        answers = mbrace.decode_corpus(
            corpus, utility=utility, seed=seed, window=1 + seed % 2, pool=kind == "pool", **options
        )
        found += [answer.nbest for answer in answers]
    assert all(nbest == found[0] for nbest in found)
    if weighted == "any":
        return
    texts = list(dict.fromkeys(given_texts))
    texts += sorted(set(references) - set(texts)) if kind == "pool" else []
    means = []
    for text in texts:
        drawn = kind == "one list" or (text in references and text not in given_texts)
        means.append(expected_utility(table, text, references, weights, exclude_self and drawn))
    ranked = sorted(range(len(texts)), key=lambda i: -means[i])[:5]
    if len(texts) > 1:  # one alone needs no pseudo-reference
        utilities = [float(means[i]) for i in ranked]
        assert [one.text for one in found[0]] == [texts[i] for i in ranked]
        assert [one.utility for one in found[0]] == (pytest.approx(utilities) if weighted else utilities)


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
def test_diverse_lists_have_one_answer_too(number: int, weighted: bool, numbers: type) -> None:
    rng = np.random.default_rng(number)
    table: Numbers = {pair: int(rng.integers(0, 2, endpoint=True)) for pair in itertools.product(NAMES, NAMES)}
    references = [NAMES[i] for i in rng.integers(0, 5, rng.integers(3, 12))]
    logs = dict(zip(NAMES, np.log(2) * -rng.integers(0, 4, 5), strict=True))
    options: dict[str, Any] = {"prune": None, "schedule": "all", "nbest": 2, "method": "diverse"}
    found = []
    for seed in range(5):
        drawn = [references[i] for i in rng.permutation(len(references))]
        record = mbrace.Record(NAMES[:4], drawn, id=seed, logprobs=[logs[r] for r in drawn] if weighted else None)
        utility = WholeNumbers(table, numbers, 1 + seed % 2)
        found += [answer.nbest for answer in mbrace.decode_corpus([record] * 2, utility=utility, seed=seed, **options)]
    assert all(nbest == found[0] for nbest in found)


def test_equal_drawn_hypotheses_are_preferred_by_their_text() -> None:
    for order in itertools.permutations(["z", "y", "x"]):
        answer = mbrace.decode([], list(order), utility=lambda h, r: 1.0, prune=None, pool=True, nbest=4)
        assert [one.text for one in answer.nbest] == ["x", "y", "z"]


def test_with_weights_a_string_without_its_own_draw_is_compared_with_the_others_by_their_weights() -> None:
    # By hand: of a (drawn once) the others are b with .3 and c with .1; b is drawn twice, so one b stays.
    worth = {"a": 1.0, "b": 2.0, "c": 6.0}
    logs = {"a": math.log(0.6), "b": math.log(0.3), "c": math.log(0.1)}
    drawn = ["a", "b", "c", "b"]
    options: dict[str, Any] = {"prune": None, "exclude_self": True, "nbest": 3, "logprobs": [logs[r] for r in drawn]}
    found = mbrace.decode(drawn, utility=lambda h, r: worth[r], **options)
    wanted = {"a": (0.3 * 2 + 0.1 * 6) / 0.4, "b": 0.6 + 0.6 + 0.6, "c": (0.6 + 0.6) / 0.9}
    assert {one.text: one.utility for one in found.nbest} == pytest.approx(wanted)


@pytest.mark.parametrize("numbers", [np.float32, np.float64])
def test_ties_between_hypotheses_with_other_weights_are_those_of_fractions(numbers: type) -> None:
    """Without its own draw, each string is compared with others of another total weight."""
    ties = 0
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        table: Numbers = {pair: int(rng.integers(0, 3)) for pair in itertools.product(NAMES, NAMES)}
        texts = [str(text) for text in rng.permutation(NAMES)]
        logprobs = [-float(rng.integers(0, 3)) * math.log(2) for _ in texts]
        largest = np.exp(np.array(logprobs) - max(logprobs))
        weights = dict(zip(texts, map(Fraction, (largest / math.fsum(largest)).tolist()), strict=True))
        options: dict[str, Any] = {"prune": None, "exclude_self": True, "nbest": 5, "shuffle": False}
        found = mbrace.decode(texts, utility=WholeNumbers(table, numbers, 1), logprobs=logprobs, **options)
        means = [expected_utility(table, text, texts, weights, True) for text in texts]
        assert [one.index for one in found.nbest] == sorted(range(5), key=lambda i: -means[i]), seed
        assert [one.utility for one in found.nbest] == sorted(map(float, means), reverse=True)
        ties += len(set(means)) < 5
    assert ties > 500


@pytest.mark.parametrize("scale", [3e38, 1e-38, 1e-44])
def test_wins_and_regret_of_very_large_and_small_floats_are_those_of_floats_near_one(scale: float) -> None:
    signs = np.random.default_rng(0).integers(-1, 2, (6, 10)).astype(np.float32)
    table, counts = signs * np.float32(scale), np.ones(10, dtype=np.int64)
    resamples = _native.Resamples(1, 10, 200)
    assert resamples.wins(table, counts, None, 3).tolist() == resamples.wins(signs, counts, None, 3).tolist()
    wanted = resamples.regret(signs, counts, None, [2])
    assert wanted > 0.1
    assert resamples.regret(table, counts, None, [2]) / float(np.float32(scale)) == pytest.approx(wanted)
