"""Which hypotheses a forecast lets in, against naive formulas: n-grams in sets, Gaussian processes by inverses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mbrace._native import Forecast, build_forecasts, likeness, next_window

NOISE = 0.05
COLLIDED = ((320, 991), (528, 783))
ALPHABETS = ["ab ", "aé ß", "аб в", "中文 字", "a😀 \ud800", "\x00 \x1c"]


def naive_likeness(texts: Sequence[str]) -> NDArray[np.float64]:
    """Binary features, centred, and scaled so that the diagonal is 1 on average."""
    padded = [f" {text[:1000]} " for text in texts]
    grams = [{text[i : i + n] for n in (3, 4, 5) for i in range(len(text) - n + 1)} for text in padded]
    every = sorted(set().union(*grams))
    features = np.array([[gram in each for gram in every] for each in grams], dtype=float)
    features = features.reshape(len(texts), len(every))
    features -= features.sum(axis=0) / max(1, len(texts))
    table = features @ features.T
    return table * len(texts) / np.trace(table) if np.trace(table) > 1e-9 else np.zeros_like(table)


def sentences(count: int, seed: int) -> list[str]:
    """Different sentences that share most of their words, as the hypotheses of one source do."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("aeioubdfgklmnprstäж", k=chance.randint(2, 7))) for _ in range(25)]
    base, found = chance.choices(words, k=9), dict[str, None]()
    while len(found) < count:
        found[" ".join(word if chance.random() < 0.75 else chance.choice(words) for word in base)] = None
    return list(found)


class NaiveForecast:
    """The same choices from posterior means and variances, each from the inverse of a covariance matrix."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.covariance = naive_likeness(texts)
        self.entered: list[int] = []

    def unexplained(self, known: Sequence[int]) -> NDArray[np.float64]:
        """(texts, texts): the posterior covariance."""
        across = self.covariance[:, known]
        inner = across[list(known)] + NOISE * np.eye(len(known))
        return self.covariance - across @ np.linalg.inv(inner) @ across.T

    def start(self, count: int) -> list[int]:
        chosen = [0]
        while len(chosen) < min(count, len(self.covariance)):
            left = self.unexplained(chosen)
            worth = np.diag(left).copy()
            if len(chosen) % 2 == 0:
                worth = (left**2).sum(axis=1) / (worth + NOISE)
            worth[chosen] = -np.inf
            chosen.append(int(np.argmax(worth)))
        self.entered = sorted(chosen)
        return self.entered

    def next(self, means: Sequence[float], rival: float, least: float, most: int) -> list[int]:
        values, chosen = np.array(means), list[int]()
        across = self.covariance[:, self.entered]
        inverse = np.linalg.inv(across[self.entered] + NOISE * np.eye(len(self.entered)))
        ones = np.ones(len(values))
        level = ones @ inverse @ values / (ones @ inverse @ ones)  # generalised least squares
        left = values - level
        forecast = level + across @ inverse @ left
        scale = math.sqrt(left @ inverse @ left / len(values))  # by maximum likelihood
        while len(chosen) < most:
            variance = np.diag(self.unexplained(self.entered + chosen))
            gains = np.array(
                [improvement(m - rival, scale * v**0.5) for m, v in zip(forecast, variance.clip(0), strict=True)]
            )
            gains[self.entered + chosen] = -np.inf
            if not gains.max() > least * values.std():
                break
            chosen.append(int(np.argmax(gains)))
        self.entered = self.entered + chosen
        return chosen


def improvement(mean: float, deviation: float) -> float:
    """The mean of max(0, x) for a normal x: z Phi(z) + phi(z), times the deviation."""
    if deviation == 0:
        return max(mean, 0.0)
    z = mean / deviation
    return deviation * (z * math.erfc(-z / math.sqrt(2)) / 2 + math.exp(-z * z / 2) / math.sqrt(2 * math.pi))


def test_expected_improvement_is_that_of_many_draws() -> None:
    """So that the naive formula is right itself."""
    draws = np.random.default_rng(0).normal(-0.5, 2.0, 2_000_000)
    assert improvement(-0.5, 2.0) == pytest.approx(np.maximum(draws, 0).mean(), abs=5e-3)


@given(st.lists(st.sampled_from(ALPHABETS).flatmap(lambda letters: st.text(letters, max_size=12)), max_size=12))
def test_likeness_is_that_of_n_grams_in_sets(texts: list[str]) -> None:
    found = likeness(texts)
    assert found.dtype == np.float32
    assert found.shape == (len(texts), len(texts))
    np.testing.assert_allclose(found, naive_likeness(texts), rtol=1e-5, atol=1e-6)


HEAD = "".join(random.Random(1).choices("abcd ж", k=999))


@pytest.mark.parametrize(
    "texts",
    [
        *(sentences(70, seed) for seed in range(3)),
        [HEAD + "a" + "tail", HEAD + "a", HEAD + "bc", "short", HEAD[:500]],  # 1,000 code points are read
        ["abc def", "abc def", "abc defЖ", "abc def😀"],  # one, two and four bytes for each
    ],
    ids=["sentences", "others", "more", "long texts", "layouts"],
)
def test_likeness_of_texts(texts: list[str]) -> None:
    np.testing.assert_allclose(likeness(texts), naive_likeness(texts), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "texts",
    [
        ["one"],
        ["", ""],
        ["same text"] * 5,
        ["a" * 8, "a" * 9, "a" * 30],
        ["x" * 1000, "x" * 1000 + "yz"],
    ],
    ids=["one text", "empty ones", "equal ones", "other lengths alone", "after 1,000 code points"],
)
def test_texts_that_no_n_gram_tells_apart_have_no_likeness(texts: list[str]) -> None:
    assert not likeness(texts).any()


def test_n_grams_of_two_texts_and_those_of_two_others_are_not_taken_for_the_same() -> None:
    """Each set of texts has a sum of random numbers of its own. (These two pairs once had the same.)"""
    first, second = COLLIDED
    texts = [""] * 1024
    for text in first:
        texts[text] = "xxx"
    for text in second:
        texts[text] = "yyy"
    table = likeness(texts)
    assert table[first[0], first[1]] > 0 > table[first[0], second[0]]


@pytest.mark.parametrize(("count", "starters", "seed"), [(60, 24, 0), (61, 24, 1), (99, 24, 2), (30, 30, 3), (9, 4, 4)])
def test_the_first_say_most_about_the_others(count: int, starters: int, seed: int) -> None:
    texts = sentences(count, seed)
    assert Forecast(texts).start(starters).tolist() == NaiveForecast(texts).start(starters)


@pytest.mark.parametrize("least", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_those_who_may_win_are_let_in(least: float, seed: int) -> None:
    texts = sentences(80, seed)
    chance = np.random.default_rng(seed)
    utilities = naive_likeness(texts) @ chance.normal(size=80) * 0.01 + chance.normal(size=80) * 0.05 + seed - 3
    ours, naive = Forecast(texts), NaiveForecast(texts)
    entered = ours.start(12).tolist()
    assert entered == naive.start(12)
    let_in = 0
    for rank in (1, 1, 3):  # the rival is the leader, or in a race for the three best the third
        means = utilities[entered] + chance.normal(size=len(entered)) * 0.001
        rival = float(np.sort(means)[-rank])
        chosen = ours.next(means, rival, least, 7).tolist()
        assert chosen == naive.next(means.tolist(), rival, least, 7)
        entered += chosen
        let_in += len(chosen)
    assert len(set(entered)) == len(entered)
    assert let_in > 0 or least == 0.3


def test_texts_that_no_n_gram_tells_apart_are_let_in_only_where_the_mean_is_an_improvement() -> None:
    texts = ["a" * length for length in range(8, 40)]
    means = np.array([0.1, 0.2, 0.9, 0.4])
    for rival, expected in ((0.9, []), (0.3, [4, 5, 6])):
        forecast = Forecast(texts)
        assert forecast.start(4).tolist() == [0, 1, 2, 3]
        assert forecast.next(means, rival, 0.01, 3).tolist() == expected


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_forecasts_of_a_window_on_any_number_of_threads_are_those_one_by_one(threads: int) -> None:
    window = [sentences(30 + 11 * seed, seed) for seed in range(9)]
    alone = [Forecast(texts) for texts in window]
    entered = [forecast.start(12).tolist() for forecast in alone]
    built = build_forecasts(window, 12, threads=threads)
    together = [forecast for forecast, _ in built]
    assert [first.tolist() for _, first in built] == entered
    least = np.linspace(0.001, 0.02, len(window))
    let_in = 0
    for step in range(3):
        means = [np.random.default_rng(step).normal(size=len(rows)) for rows in entered]
        rivals = np.array([each.max() for each in means])
        found = [each.tolist() for each in next_window(together, means, rivals, least, 5, threads=threads)]
        expected = [
            forecast.next(*each, 5).tolist()
            for forecast, *each in zip(alone, means, rivals.tolist(), least.tolist(), strict=True)
        ]
        assert found == expected
        for rows, new in zip(entered, found, strict=True):
            rows += new
            let_in += len(new)
    assert let_in > 20
    assert build_forecasts([], 12, threads=threads) == []


def test_all_are_let_in_at_most_once() -> None:
    texts = sentences(40, 5)
    forecast = Forecast(texts)
    entered = forecast.start(10).tolist()
    for step in range(10):
        means = np.random.default_rng(step).random(len(entered))
        entered += forecast.next(means, float(means.min()) - 1, 1e-9, 16).tolist()
    assert sorted(entered) == list(range(40))


def test_what_makes_no_sense_is_refused() -> None:
    assert Forecast([]).start(3).tolist() == []
    assert likeness([]).shape == (0, 0)
    forecast = Forecast(["a b", "a c", "b c"])
    assert forecast.next(np.empty(0), 0.0, 0.0, 5).tolist() == []
    assert len(forecast.start(2)) == 2
    (one, first), (other, _) = build_forecasts([sentences(40, 1), sentences(40, 2)], 10)
    means = np.zeros(len(first))
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: forecast.start(2), ValueError, "the first hypotheses are in already"),
        (lambda: forecast.next(np.zeros(3), 0.0, 0.0, 5), ValueError, "the mean of each hypothesis that entered"),
        (lambda: Forecast(["a", 1]), TypeError, "expected a sequence of str"),  # type: ignore[list-item]
        (lambda: next_window([one], [means], np.zeros(1), np.zeros(2), 3), ValueError, "equally long"),
        (
            lambda: next_window([one, other], [means, means[1:]], np.zeros(2), np.zeros(2), 3),
            ValueError,
            "the mean of each hypothesis that entered",
        ),
        (lambda: next_window([one] * 2, [means] * 2, np.zeros(2), np.zeros(2), 3), ValueError, "give a forecast once"),
    ]
    for call, error, message in calls:
        with pytest.raises(error, match=message):
            call()
