"""The kernel itself: variants, threads, lifetimes, bad calls, and the bootstrap's counts."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sacrebleu.metrics import CHRF

from mbrace import _native

DEFAULT = {"char_order": 6, "word_order": 2, "whitespace": False}


def sentences(count: int, seed: int) -> list[str]:
    """Texts in all three string layouts, of many lengths, with many repeated n-grams."""
    rng = random.Random(seed)
    words = ["a", "aa", "aba", "(ab)", "über", "naïve", "the", "of", "Zug.", "αβγ", "中文", "😀", "x" * 90]
    return [" ".join(rng.choices(words, k=rng.choice([0, 1, 3, 20, 60]))) for _ in range(count)]


def scores(
    hypotheses: list[str],
    references: list[str],
    *,
    threads: int = 1,
    simd: str = "",
    eps: bool = False,
    options: dict[str, Any] = DEFAULT,
) -> NDArray[np.float32]:
    indexes = _native.build_indexes([hypotheses], **options, threads=threads)
    chosen = [np.arange(len(hypotheses))]
    return _native.score_window(indexes, chosen, [references], beta=2.0, eps_smoothing=eps, threads=threads, simd=simd)[
        0
    ][0]


@pytest.mark.parametrize("simd", _native.simd_variants())
@pytest.mark.parametrize("eps", [False, True])
def test_every_instruction_set_gives_the_same_bits(simd: str, eps: bool) -> None:
    hypotheses, references = sentences(37, 1), sentences(43, 2)
    portable = scores(hypotheses, references, simd="portable", eps=eps)
    assert portable.std() > 5
    assert scores(hypotheses, references, simd=simd, eps=eps).tobytes() == portable.tobytes()


def test_threads_change_no_bit() -> None:
    hypotheses, references = sentences(30, 3), sentences(200, 4)
    alone = scores(hypotheses, references)
    assert scores(hypotheses, references, threads=4).tobytes() == alone.tobytes()


def test_window_equals_its_sentences_one_by_one() -> None:
    texts = [sentences(count, seed) for seed, count in enumerate([3, 1, 17, 40])]
    others = [sentences(count, seed) for seed, count in enumerate([9, 0, 33, 5], start=10)]
    indexes = _native.build_indexes(texts, **DEFAULT, threads=3)
    chosen = [np.arange(len(own)) for own in texts]
    window, share = _native.score_window(indexes, chosen, others, beta=2.0, eps_smoothing=False, threads=3)
    assert 0 < share < 1
    for own, other, got in zip(texts, others, window, strict=True):
        assert got.shape == (len(own), len(other))
        assert got.tobytes() == scores(own, other).tobytes()


def test_score_does_not_depend_on_the_other_hypotheses_and_references() -> None:
    hypotheses, references = sentences(12, 5), sentences(13, 6)
    together = scores(hypotheses, references)
    for i, hypothesis in enumerate(hypotheses):
        for j, reference in enumerate(references):
            assert scores([hypothesis], [reference])[0, 0] == together[i, j]


def test_real_beams_score_as_each_pair_alone(demo_rows: list[dict[str, Any]]) -> None:
    """Hypotheses that begin and repeat alike in every way that beams do; sacreBLEU's scores of pairs: test_chrf.py."""
    for row in demo_rows[::4]:
        hypotheses, references = list(dict.fromkeys(row["hypotheses"])), row["pseudo_references"][:6]
        pairs = [(h, r) for h in hypotheses for r in references]
        alone, _ = _native.score_pairs(
            [h for h, _ in pairs], [r for _, r in pairs], **DEFAULT, beta=2.0, eps_smoothing=False
        )
        assert scores(hypotheses, references).tobytes() == alone.tobytes()


@pytest.mark.parametrize("longest", [0, 70_000])
@pytest.mark.parametrize("options", [DEFAULT, {"char_order": 8, "word_order": 3, "whitespace": True}])
def test_many_hypotheses_score_as_each_alone(longest: int, options: dict[str, Any]) -> None:
    """More than 256, so in two blocks, with or without a long text among them."""
    rng = random.Random(11)
    hypotheses = [f"{text} {rng.choice('abc')}{i}x {i % 50} {i % 17}" for i, text in enumerate(sentences(400, 12))]
    hypotheses.append("ab " * (longest // 3))
    references = [*sentences(12, 13), *rng.sample(hypotheses[:-1], 12), "a1x b2x c3x 17 17 1"]
    together = scores(hypotheses, references, options=options)
    for simd in _native.simd_variants():
        assert scores(hypotheses, references, options=options, simd=simd).tobytes() == together.tobytes()
    for i in [*range(0, 400, 23), 400]:
        assert scores([hypotheses[i]], references, options=options).tobytes() == together[i].tobytes()


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_survivors_score_as_in_the_full_table(data: st.DataObject) -> None:
    """Few survivors are counted by bytes, many by bits, and more than 256 hypotheses in blocks: the same bits."""
    options = {
        "char_order": data.draw(st.sampled_from([0, 1, 2, 3, 6, 8])),
        "word_order": data.draw(st.integers(1, 3)),
        "whitespace": data.draw(st.booleans()),
    }
    beta, eps = data.draw(st.sampled_from([0.0, 1.0, 2.0, 3.5])), data.draw(st.booleans())
    simd = data.draw(st.sampled_from(_native.simd_variants()))
    seed = data.draw(st.integers(0, 99))
    hypotheses = sentences(data.draw(st.sampled_from([3, 40, 270, 530])), seed)
    references = sentences(data.draw(st.sampled_from([1, 7, 40])), seed + 100)
    size = data.draw(st.integers(1, min(36, len(hypotheses))))
    chosen = np.array(random.Random(seed).sample(range(len(hypotheses)), size))
    indexes = _native.build_indexes([hypotheses], **options)
    full, some = (
        _native.score_window(indexes, [rows], [references], beta=beta, eps_smoothing=eps, simd=simd)[0][0]
        for rows in (np.arange(len(hypotheses)), chosen)
    )
    assert some.tobytes() == full[chosen].tobytes()
    row, column = chosen[0], len(references) - 1
    alone = _native.build_indexes([[hypotheses[row]]], **options)
    pair = _native.score_window(alone, [np.arange(1)], [references[-1:]], beta=beta, eps_smoothing=eps)[0][0]
    assert pair[0, 0] == full[row, column]


@pytest.mark.parametrize("orders", [(0, 1), (0, 2), (0, 4), (1, 1), (4, 3), (6, 2), (9, 0), (9, 4)])
def test_nothing_is_left_over_from_the_text_before(orders: tuple[int, int]) -> None:
    """Long and short texts in turns, by the same thread: each scores as it does alone."""
    options = {"char_order": orders[0], "word_order": orders[1], "whitespace": False}
    texts = [" ".join(["ab", "c", "ab."] * 40)[:length] for length in (200, 1, 90, 0, 47, 50, 53, 34, 160, 17, 60)]
    together = scores(texts, texts, options=options)
    pairs = [(text, other) for text in texts for other in texts]
    alone, _ = _native.score_pairs(
        [h for h, _ in pairs], [r for _, r in pairs], **options, beta=2.0, eps_smoothing=False
    )
    for i, (hypothesis, reference) in enumerate(pairs):
        single = scores([hypothesis], [reference], options=options)[0, 0]
        assert together.flat[i] == alone[i] == single, (hypothesis, reference)
        oracle = CHRF(char_order=orders[0], word_order=orders[1]).sentence_score(hypothesis, [reference]).score
        assert abs(single - oracle) < 1e-4


def test_scores_outlive_the_index_and_the_strings() -> None:
    got = scores(sentences(5, 7), sentences(5, 8))
    copy = got.copy()
    gc.collect()
    sentences(500, 9)
    assert (got == copy).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_empty_sides_give_empty_tables(threads: int) -> None:
    assert scores(["a"], [], threads=threads).shape == (1, 0)
    assert scores([], ["a"], threads=threads).shape == (0, 1)


def test_survivor_outside_the_index_is_refused() -> None:
    indexes = _native.build_indexes([["a", "b"]], **DEFAULT)
    for bad in (2, -1):
        with pytest.raises(IndexError, match="survivor"):
            _native.score_window(indexes, [np.array([bad])], [["a"]], beta=2.0, eps_smoothing=False)


def test_anything_but_a_string_is_refused() -> None:
    with pytest.raises(TypeError, match="str"):
        _native.build_indexes([["a", 1]], **DEFAULT)  # type: ignore[list-item]
    indexes = _native.build_indexes([["a"]], **DEFAULT)
    with pytest.raises(TypeError, match="str"):
        _native.score_window(indexes, [np.array([0])], [[b"a"]], beta=2.0, eps_smoothing=False)  # type: ignore[list-item]


def test_lists_of_different_length_are_refused() -> None:
    indexes = _native.build_indexes([["a"]], **DEFAULT)
    with pytest.raises(ValueError, match="equally long"):
        _native.score_window(indexes, [], [["a"]], beta=2.0, eps_smoothing=False)
    with pytest.raises(ValueError, match="equally long"):
        _native.score_pairs(["a"], [], **DEFAULT, beta=2.0, eps_smoothing=False)


def test_orders_out_of_range_are_refused() -> None:
    for bad in (
        {"char_order": 0, "word_order": 0},
        {"char_order": -1, "word_order": 2},
        {"char_order": 25, "word_order": 0},
    ):
        with pytest.raises(ValueError, match="order"):
            _native.build_indexes([["a"]], **bad, whitespace=False)


def test_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="portable"):
        scores(["a"], ["b"], simd="mmx")


def test_index_reports_its_memory() -> None:
    small, large = _native.build_indexes([sentences(2, 1), sentences(200, 1)], **DEFAULT)
    assert len(large) == 200
    assert 0 < small.nbytes < large.nbytes
    texts = ["".join(text.split()) for text in sentences(200, 1)]
    sixgrams = {text[i : i + 6] for text in texts for i in range(len(text) - 5)}
    assert large.nbytes >= len(sixgrams) * 256 / 8  # a bit for each of up to 256 hypotheses


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


def test_each_resample_has_as_many_draws_as_there_are_pseudo_references() -> None:
    counts = resamples(1, [0, 1, 1, 2, 3], 4, 200)
    assert counts.shape == (200, 4)
    assert (counts.sum(axis=1) == 5).all()
    assert (counts == np.rint(counts)).all()


def test_counts_follow_the_multinomial_distribution() -> None:
    owners = [0] * 1 + [1] * 2 + [2] * 7
    counts = resamples(2, owners, 3, 20_000)
    share = np.array([0.1, 0.2, 0.7])
    np.testing.assert_allclose(counts.mean(axis=0), 10 * share, atol=0.06)
    covariance = 10 * (np.diag(share) - np.outer(share, share))
    np.testing.assert_allclose(np.cov(counts.T), covariance, atol=0.06)


def test_resamples_repeat_with_the_seed_and_differ_without_it() -> None:
    owners = list(range(50))
    assert (resamples(3, owners, 50, 20) == resamples(3, owners, 50, 20)).all()
    assert (resamples(3, owners, 50, 20) != resamples(4, owners, 50, 20)).any()
    assert (resamples(2**64 - 1, owners, 50, 20).sum(axis=1) == 50).all()


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


@given(st.lists(st.text(alphabet="aβ中😀\ud800 ", max_size=20), max_size=300))
def test_distinct_strings_are_those_of_a_dictionary(texts: list[str]) -> None:
    copies = [text[:1] + text[1:] for text in texts]  # equal, and not the same objects
    assert _native.distinct(texts + copies) == list(dict.fromkeys(texts))
    tally = _native.Tally(2)
    new = [tally.draw(texts[first : first + 7]) for first in range(0, len(texts), 7)]
    assert [text for step in new for text in step] == list(dict.fromkeys(texts))
    assert tally.counts.tolist() == list(Counter(texts).values())
    assert tally.draws == len(texts)


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


def test_what_others_keep_to_the_end_of_a_program_is_not_reported_as_a_leak() -> None:
    program = "import ctypes, mbrace._native as native; kept = native.Resamples(0, 2, 2)\n"
    program += "ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == ""


WITHOUT_THREADS = """
import resource, sys, threading
import numpy as np
from mbrace import _native

pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26,) * 2)
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("no thread can be started")
texts = [[f"{word} {i}" for i in range(20)] for word in ("a", "b", "c")]
for threads in (1, 8):
    indexes = _native.build_indexes(texts, char_order=6, word_order=2, whitespace=False, threads=threads)
    chosen = [np.arange(20)] * 3
    tables, _ = _native.score_window(indexes, chosen, texts, beta=2.0, eps_smoothing=False, threads=threads)
    print(b"".join(table.tobytes() for table in tables).hex())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_that_cannot_be_started_are_done_without() -> None:
    """A thread's stack of 1 GiB does not fit the address space that is left."""
    program = ["bash", "-c", 'ulimit -S -s 1048576 && exec "$0" -c "$1"', sys.executable, WITHOUT_THREADS]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)
    refused, alone, many = ended.stdout.splitlines()
    assert refused == "no thread can be started"
    assert alone == many
