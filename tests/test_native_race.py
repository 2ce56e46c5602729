"""The kernel's side of a race: resamples, wins, expected utilities and tallies."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mbrace import _native


def resamples(seed: int, owners: list[int], distinct: int, bootstraps: int) -> NDArray[np.float64]:
    """(bootstraps, distinct): draws of the kernel's resamples added up by owner."""
    draws = _native.Resamples(seed, len(owners), bootstraps).counts()
    return draws @ np.eye(distinct)[owners]


def exact_wins(utilities: NDArray[np.float32], counts: NDArray[np.float64], rival: int) -> NDArray[np.int64]:
    """Wins by fractions: no rounding anywhere."""
    rows = [[Fraction(float(value)) for value in row] for row in utilities]
    wins = [
        sum(sum(int(c) * (u - v) for c, u, v in zip(b, row, rows[rival], strict=True)) >= 0 for b in counts)
        for row in rows
    ]
    return np.array(wins)


@pytest.mark.parametrize("weights", [None, np.ones(7)], ids=["equal", "weighted"])
@pytest.mark.parametrize("bootstraps", [1, 31, 32, 33, 100])
def test_wins_are_those_of_exact_arithmetic(bootstraps: int, weights: NDArray[np.float64] | None) -> None:
    rng = np.random.default_rng(bootstraps)
    utilities = rng.choice(np.float32([0.1, 0.2, 0.3, 1 / 3, 50.5, 50.6]), (9, 7))
    utilities[4] = utilities[2]  # an exact tie
    drawn = np.array([1, 2, 1, 1, 3, 1, 1])
    resamples = _native.Resamples(5, drawn.sum(), bootstraps)
    counts = resamples.counts() @ np.eye(7)[np.repeat(np.arange(7), drawn)]
    wins = resamples.wins(utilities, drawn, weights, 2)
    np.testing.assert_array_equal(wins, exact_wins(utilities, counts, 2))
    np.testing.assert_array_equal(wins, resamples.wins(utilities, drawn, weights, 2, portable=True))
    assert wins[2] == wins[4] == bootstraps


@given(st.integers(0, 2**32), st.sampled_from([1e-45, 1e-38, 1e-3, 1.0, 1e30]), st.integers(1, 40))
@settings(deadline=None)  # fractions are slow where the machine is busy
def test_wins_of_any_size_of_utilities_are_those_of_exact_arithmetic(seed: int, size: float, distinct: int) -> None:
    rng = np.random.default_rng(seed)
    utilities = (rng.integers(-9, 9, (5, distinct)) * rng.choice([1, 3, 1000], (5, distinct)) * size).astype(np.float32)
    utilities[1] = np.nextafter(utilities[0], np.float32(rng.choice([-1, 1]) * np.inf))  # as near as can be
    drawn = rng.integers(1, 4, distinct)
    resamples = _native.Resamples(seed, drawn.sum(), 70)
    expected = exact_wins(utilities, resamples.counts() @ np.eye(distinct)[np.repeat(np.arange(distinct), drawn)], 0)
    for weights in (None, np.ones(distinct)):
        np.testing.assert_array_equal(resamples.wins(utilities, drawn, weights, 0), expected)


@given(st.integers(0, 60), st.integers(0, 2**32))
def test_stopping_early_changes_no_decision(max_losing_wins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    utilities = rng.random((23, 12), dtype=np.float32)
    resamples, drawn = _native.Resamples(seed, 12, 60), np.ones(12, dtype=np.int64)
    full = resamples.wins(utilities, drawn, np.ones(12), 0)
    early = resamples.wins(utilities, drawn, np.ones(12), 0, max_losing_wins=max_losing_wins)
    np.testing.assert_array_equal(early > max_losing_wins, full > max_losing_wins)


def test_counts_follow_the_multinomial_distribution() -> None:
    owners = [0] * 1 + [1] * 2 + [2] * 7
    counts = resamples(2, owners, 3, 20_000)
    share = np.array([0.1, 0.2, 0.7])
    np.testing.assert_allclose(counts.mean(axis=0), 10 * share, atol=0.06)
    covariance = 10 * (np.diag(share) - np.outer(share, share))
    np.testing.assert_allclose(np.cov(counts.T), covariance, atol=0.06)


def test_resamples_equal_a_transcription_of_the_published_generator() -> None:
    """xoshiro256** after splitmix64, Lemire's bounded numbers: what any platform must draw."""
    mask, seed, owners, bootstraps = 2**64 - 1, 12345, [0, 1, 1, 2, 2, 2, 3], 40
    state, z = [], seed
    for _ in range(4):
        z = (z + 0x9E3779B97F4A7C15) & mask
        x = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        state.append(x ^ (x >> 31))

    def rotate(x: int, k: int) -> int:
        return ((x << k) | (x >> (64 - k))) & mask

    def halves():
        while True:
            result = (rotate((state[1] * 5) & mask, 7) * 9) & mask
            shifted = (state[1] << 17) & mask
            state[2] ^= state[0]
            state[3] ^= state[1]
            state[1] ^= state[2]
            state[0] ^= state[3]
            state[2] ^= shifted
            state[3] = rotate(state[3], 45)
            yield result & 0xFFFFFFFF
            yield result >> 32

    draws, threshold, stream = len(owners), (2**32 - len(owners)) % len(owners), halves()
    rows = []
    for _ in range(bootstraps):
        row: Counter[int] = Counter()
        while row.total() < draws:
            product = next(stream) * draws
            if product & 0xFFFFFFFF >= threshold:
                row[owners[product >> 32]] += 1
        rows.append([row[i] for i in range(4)])
    assert resamples(seed, owners, 4, bootstraps).tolist() == rows


@pytest.mark.parametrize(("draws", "hypotheses", "bootstraps"), [(301, 37, 130), (5001, 9, 66)])
def test_wins_of_many_draws_equal_a_product_in_exact_arithmetic(draws: int, hypotheses: int, bootstraps: int) -> None:
    """Odd numbers of draws and hypotheses, near ties, and totals far from 32 bits."""
    rng = np.random.default_rng(8)
    utilities = np.round(rng.normal(40, 3, (hypotheses, draws)), 1).astype(np.float32)
    near = hypotheses // 2
    utilities[5 : 5 + near] = utilities[4]
    utilities[5 : 5 + near, ::7] += rng.choice(np.float32([0, 1e-4, -1e-4, 4e-6, -4e-6]), (near, (draws + 6) // 7))
    utilities[5, ::7] = utilities[4, ::7] + np.resize(np.float32([4e-6, -4e-6]), (draws + 6) // 7)  # nearly the rival
    resamples = _native.Resamples(3, draws, bootstraps)
    differences = (utilities.astype(np.float64) - utilities[4].astype(np.float64)) * 2.0**20
    whole = np.rint(differences).astype(object)  # utilities are float32 below 64: 2**20 of them are whole numbers
    assert (whole == differences).all()
    expected = (whole @ resamples.counts().astype(int).astype(object).T >= 0).sum(axis=1)
    assert 0 < expected[5] < bootstraps
    for portable in (False, True):
        wins = resamples.wins(utilities, np.ones(draws, dtype=np.int64), np.ones(draws), 4, portable=portable)
        np.testing.assert_array_equal(wins, expected.astype(int))
        equal = resamples.wins(utilities, np.ones(draws, dtype=np.int64), None, 4, portable=portable)
        np.testing.assert_array_equal(equal, expected.astype(int))


def test_counts_that_are_not_those_of_the_draws_are_refused() -> None:
    for bad in ([0, 2], [1, 2], [2]):
        with pytest.raises(ValueError, match="counts"):
            _native.Resamples(1, 2, 3).wins(np.zeros((1, 2), np.float32), np.array(bad), np.ones(2), 0)


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from([1, 1000, 2**24 - 1]))
@settings(deadline=None)  # fractions are slow where the machine is busy
def test_means_of_whole_numbers_are_exact_in_any_order_and_with_copies_merged_or_not(
    seed: int, distinct: int, largest: int
) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(-largest, largest, (7, distinct), endpoint=True).astype(np.float32)
    drawn = rng.integers(1, 9, distinct)
    exact = [Fraction(int(total), int(drawn.sum())) for total in table.astype(np.int64) @ drawn]
    merged = _native.expected_utilities(table, drawn.astype(float))
    assert merged.tolist() == [float(mean) for mean in exact]
    order = rng.permutation(np.repeat(np.arange(distinct), drawn))
    apart = _native.expected_utilities(np.ascontiguousarray(table[:, order]), np.ones(len(order)))
    assert apart.tobytes() == merged.tobytes()
    tally = _native.Tally(7)
    tally.draw([str(i) for i in order])
    tally.add(np.ascontiguousarray(table[:, list(dict.fromkeys(order))]))
    (decided,) = _native.decide_window([tally], [None], [None], nbest=1, max_losing_wins=0)
    assert decided.tobytes() == merged.tobytes()


@given(st.integers(0, 2**32), st.integers(1, 300), st.sampled_from([0, 5, 30]), st.booleans())
@settings(deadline=None)  # fractions are slow where the machine is busy
def test_means_of_any_numbers_are_the_same_in_every_order(seed: int, distinct: int, spread: int, whole: bool) -> None:
    """Utilities and weights of sizes up to 10**spread apart, against sums by fractions."""
    rng = np.random.default_rng(seed)
    table = (rng.normal(0, 1, (5, distinct)) * 10.0 ** rng.uniform(-spread, spread / 3, (5, distinct))).astype(
        np.float32
    )
    table[1] = 0
    weights = rng.integers(1, 9, distinct).astype(float) if whole else np.exp(-rng.exponential(1 + spread, distinct))
    means = _native.expected_utilities(table, weights)
    for _ in range(3):
        order = rng.permutation(distinct)
        again = _native.expected_utilities(np.ascontiguousarray(table[:, order]), weights[order])
        assert again.tobytes() == means.tobytes()
    total = sum(Fraction(float(weight)) for weight in weights)
    for row, mean in zip(table.astype(float), means, strict=True):
        products = [Fraction(u) * Fraction(w) for u, w in zip(row.tolist(), weights.tolist(), strict=True)]
        exact = sum(products) / total
        if whole:
            assert mean == float(sum(products)) / float(total)
        # What the sum leaves out is less than 2^-64 of the largest product; it and the division are rounded once each.
        rounding = abs(exact) * Fraction(3, 2**53) + max(map(abs, products)) / total / 2**64
        assert abs(Fraction(float(mean)) - exact) <= rounding


def test_equal_sums_of_weighted_floats_are_equal_though_products_of_them_are_not_exact() -> None:
    table = np.array([[3, 5, 0], [4, 4, 0], [0, 8, 0], [1, 7, 0], [2, 6, 0]], dtype=np.float32)
    for share in (0.2, 0.1, 1 / 3, 0.7):
        assert len(set(_native.expected_utilities(table, np.array([share, share, 0.05])).tolist())) == 1


def test_a_tally_keeps_the_utilities_of_those_alive() -> None:
    rng = np.random.default_rng(1)
    tally, table = _native.Tally(6), rng.random((6, 9), dtype=np.float32)
    assert tally.draw(["a", "b", "a"]) == ["a", "b"]
    assert tally.add(table[:, :2].copy()) is None
    tally.keep(np.array([0, 2, 5]))
    assert tally.draw(["c", "b"]) == ["c"]
    assert tally.add(table[[0, 2, 5], 2:3].copy()) is None
    tally.keep(np.array([1, 2]))
    assert (len(tally), tally.alive.tolist(), tally.counts.tolist(), tally.draws) == (2, [2, 5], [2, 2, 1], 5)
    np.testing.assert_array_equal(tally.utilities, table[[2, 5], :3])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_tally_says_where_a_value_is_not_finite_and_does_not_take_it(value: float) -> None:
    tally, table = _native.Tally(5), np.zeros((5, 40), dtype=np.float32)
    tally.draw([str(i) for i in range(40)])
    table[3, 17] = table[4, 2] = value
    assert tally.add(table) == (3, 17)
    assert tally.utilities.shape == (5, 0)


def test_a_tally_refuses_what_does_not_fit() -> None:
    tally = _native.Tally(3)
    with pytest.raises(TypeError, match="sequence of str"):
        tally.draw(["a", 7])
    assert tally.draws == 0
    tally.draw(["a", "b"])
    for shape in ((2, 2), (3, 3)):
        with pytest.raises(ValueError, match="table"):
            tally.add(np.zeros(shape, dtype=np.float32))
    with pytest.raises(ValueError, match="some are missing"):
        _native.decide_window([tally], [None], [None], nbest=1, max_losing_wins=0)
    tally.add(np.zeros((3, 2), dtype=np.float32))
    for places in ([0, 3], [1, 0], [-1]):
        with pytest.raises(IndexError, match="growing indexes"):
            tally.keep(np.array(places))
    for resamples, weights, message in (
        (_native.Resamples(0, 3, 4), None, "draws of a resample"),
        (None, np.ones(3), "one for each"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.decide_window([tally], [resamples], [weights], nbest=1, max_losing_wins=0)
    assert _native.decide_window([tally], [None], [None], nbest=1, max_losing_wins=0)[0].tolist() == [0, 0, 0]


def test_one_tally_twice_in_a_window_is_refused_and_stays_as_it_was() -> None:
    tally, other = _native.Tally(["a", "b"]), _native.Tally(["a", "b"])
    for each in (tally, other):
        each.draw(["c"])
        each.add(np.array([[1.0], [0.0]], dtype=np.float32))
    resamples = [_native.Resamples(0, 1, 4)] * 3
    with pytest.raises(ValueError, match="the same one twice; give each race once"):
        _native.decide_window([tally, other, tally], resamples, [None] * 3, nbest=1, max_losing_wins=0)
    assert tally.alive.tolist() == other.alive.tolist() == [0, 1]


def test_expected_utilities_follow_every_change_of_a_tally() -> None:
    """A tally remembers them until something changes; the oracle has no memory."""
    rng = np.random.default_rng(7)
    tally = _native.Tally([f"h{row}" for row in range(6)])

    def made_up(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)).astype(np.float32)

    def check() -> None:
        for _ in range(2):
            expected = _native.expected_utilities(tally.utilities, tally.counts.astype(np.float64))
            assert tally.expected_utilities(None).tolist() == expected.tolist()

    tally.draw(["a", "b"])
    tally.add(made_up(6, 2))
    check()
    tally.draw(["b"])  # weighs more now
    check()
    tally.draw(["c"])
    tally.add(made_up(6, 1))
    check()
    weights = np.array([0.7, 0.2, 0.1])
    assert tally.expected_utilities(weights).tolist() == _native.expected_utilities(tally.utilities, weights).tolist()
    check()
    tally.enter(made_up(2, 3))
    check()
    tally.keep(np.array([0, 2, 5, 7]))
    check()
    before = tally.expected_utilities(None).tolist()
    (means,) = _native.decide_window([tally], [None], [None], nbest=1, max_losing_wins=0)
    assert means.tolist() == before
    tally.leave_out(1, 0)
    after = tally.expected_utilities(None).tolist()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True, True]
