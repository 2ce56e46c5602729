"""Answers depend on utilities and pseudo-references alone: not on seeds, orders, windows, threads, or rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import mbrace
from mbrace import _native
from mbrace.sampler import Draws, Want


def test_copies_of_a_pseudo_reference_with_other_log_probabilities_count_by_their_average() -> None:
    # The average of log .2 and log .8 is log .4: of two strings with .4 and .6, the answer is that of the second.
    logprobs = np.log([0.2, 0.8, 0.6]).tolist()
    for seed in range(10):  # the first copy after the shuffle used to count
        best = mbrace.decode(
            ["a", "b"], ["a", "a", "b"], utility=lambda h, r: float(h == r), prune=None, logprobs=logprobs, seed=seed
        )
        assert (best.text, best.utility) == ("b", pytest.approx(0.6))


class Copies:
    """Draws "a" with another log-probability each time; "b" with one."""

    def start(self, records: Sequence[mbrace.Record]) -> Copies:
        return self

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        return [Draws(["a", "b"] * (w.count // 2), [-1.0 - w.first, -2.0] * (w.count // 2)) for w in wants]


def test_copies_of_later_steps_count_in_the_average() -> None:
    record = mbrace.Record(["a", "b"], source="")
    options: dict[str, Any] = {
        "prune": lambda seen: seen.means > -1,
        "schedule": [2, 4],
        "sampler": Copies(),
        "nbest": 2,
    }
    (found,) = mbrace.decode_corpus([record], utility=lambda h, r: float(h == r), **options)
    weights = np.exp([-2.0, -2.0])  # of "a": the average of -1 and -3
    assert [one.utility for one in found.nbest] == pytest.approx(weights / weights.sum())


class Forgetful(Copies):
    """Gives log-probabilities with the first draws alone."""

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        return [Draws(["a", "b"], [-1.0, -2.0] if w.first == 0 else None) for w in wants]


def test_log_probabilities_for_some_pseudo_references_alone_are_refused() -> None:
    records = [mbrace.Record(["a", "b"], source="")]
    with pytest.raises(mbrace.UserError, match="not with others"):
        list(mbrace.decode_corpus(records, utility=lambda h, r: 0.0, schedule=[2, 4], sampler=Forgetful()))


# 64 bits


def plus(offset: float, step: float) -> Callable[[str, str], float]:
    """A utility of numbers that float32 cannot tell apart: `offset`, and for the last hypothesis a step more."""
    return lambda h, r: offset + step * (h == "c")


@pytest.mark.parametrize("prune", [None, mbrace.Confidence(), mbrace.Confidence(regret=0.1), mbrace.Bottom(0.5)])
@pytest.mark.parametrize(("offset", "step"), [(1e6, 0.01), (-1e6, 0.01), (1e300, 1e290), (1.7e308, 1e304), (0, 5e-324)])
def test_utilities_keep_64_bits(prune: mbrace.prune.PruningFunction | None, offset: float, step: float) -> None:
    for batch in (False, True):
        utility: Any = plus(offset, step)
        if batch:
            one = utility
            utility = mbrace.Pairwise(lambda hs, rs, one=one: list(map(one, hs, rs)), batch=True)
        found = mbrace.decode(["a", "b", "c"], [f"r{i % 20}" for i in range(40)], utility=utility, prune=prune)
        assert (found.text, found.utility) == ("c", offset + step)
    if prune is not None:  # race by race too
        rule = prune
        again = mbrace.decode(
            ["a", "b", "c"], [f"r{i % 20}" for i in range(40)], utility=utility, prune=lambda seen: rule(seen)
        )
        assert (again.text, again.utility, again.steps) == (found.text, found.utility, found.steps)


def test_a_utility_object_with_tables_of_doubles_keeps_them() -> None:
    class Own(mbrace.Pairwise):
        def start(self, sentences: Sequence[mbrace.utility.Sentence]) -> Any:
            return self

        encode_seconds = 0.0

        def score(self, asks: Sequence[mbrace.utility.Ask]) -> list[NDArray[Any]]:
            return [np.array([[10**6 * 100 + h for _ in a.references] for h in a.hypotheses]) for a in asks]

    assert mbrace.decode(["a", "b"], ["x", "y"], utility=Own(len), prune=None).utility == 10**8 + 1


def test_an_excluded_draw_of_large_utilities_is_replaced_by_the_mean_of_the_others() -> None:
    values = {"a": 1.5e308, "b": 1.6e308, "c": 1.7e308}
    found = mbrace.decode(list(values), utility=lambda h, r: values[r], prune=None, exclude_self=True, nbest=3)
    assert [(one.text, one.utility) for one in found.nbest] == [
        ("a", pytest.approx(1.65e308)),
        ("b", pytest.approx(1.6e308)),
        ("c", pytest.approx(1.55e308)),
    ]


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from([0, 40, 290]), st.booleans())
def test_means_of_doubles_are_exact_sums_rounded_once(seed: int, distinct: int, exponent: int, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    table = rng.normal(0, 1, (4, distinct)) * 10.0 ** (exponent * rng.choice([-1, 1]))
    weights = rng.integers(1, 9, distinct).astype(float) if whole else rng.dirichlet(np.ones(distinct))
    means = _native.expected_utilities(table, weights)
    total = sum(map(Fraction, weights))
    for row, mean in zip(table, means, strict=True):
        exact = sum(Fraction(u) * Fraction(w) for u, w in zip(row, weights, strict=True))
        assert abs(Fraction(mean) - exact / total) <= abs(exact / total) * Fraction(2, 2**52)
        if whole:
            assert mean == float(exact) / float(total)
    order = rng.permutation(distinct)
    again = _native.expected_utilities(np.ascontiguousarray(table[:, order]), weights[order])
    assert again.tobytes() == means.tobytes()


@given(st.integers(0, 2**32), st.integers(1, 30), st.booleans())
def test_wins_and_regret_of_doubles_are_those_of_floats_that_they_equal(
    seed: int, distinct: int, weighted: bool
) -> None:
    rng = np.random.default_rng(seed)
    floats = rng.random((6, distinct), dtype=np.float32)
    counts = rng.integers(1, 4, distinct)
    weights = rng.dirichlet(np.ones(distinct)) if weighted else None
    resamples = _native.Resamples(seed, int(counts.sum()), 100)
    for scale in (1.0, 2.0**1000, 2.0**-1000):
        doubles = floats.astype(np.float64) * scale
        wins = resamples.wins(doubles, counts, weights, 3)
        assert wins.tolist() == resamples.wins(floats, counts, weights, 3).tolist()
        regret = resamples.regret(doubles, counts, weights, [2, 4])
        assert regret / scale == pytest.approx(resamples.regret(floats, counts, weights, [2, 4]), rel=1e-3, abs=1e-6)


def test_equal_drawn_hypotheses_are_preferred_by_their_text() -> None:
    for order in itertools.permutations(["z", "y", "x"]):
        answer = mbrace.decode([], iter(order), utility=lambda h, r: 1.0, prune=None, pool=True, nbest=4)
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


@pytest.mark.parametrize("scale", [3e38, 1e-38, 1e-44])
def test_wins_and_regret_of_very_large_and_small_floats_are_those_of_floats_near_one(scale: float) -> None:
    signs = np.random.default_rng(0).integers(-1, 2, (6, 10)).astype(np.float32)
    table, counts = signs * np.float32(scale), np.ones(10, dtype=np.int64)
    resamples = _native.Resamples(1, 10, 200)
    assert resamples.wins(table, counts, None, 3).tolist() == resamples.wins(signs, counts, None, 3).tolist()
    wanted = resamples.regret(signs, counts, None, [2])
    assert wanted > 0.1
    assert resamples.regret(table, counts, None, [2]) / float(np.float32(scale)) == pytest.approx(wanted)
