"""The studies of calibration, ratings and confirmation: against scipy, by hand, on made-up tables, exact power."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import calibration
import confirmation
import numpy as np
import pytest
import ratings
from experiment_files import change, outcomes_of
from scipy import stats

from mbrace.experiments.tables import Table
from mbrace.experiments.trials import RACING, STANDARD, TRADEOFF
from mbrace.judge.results import sign_test
from mbrace.prune import Bottom, Standings
from mbrace.records import Record


def standings(utilities: np.ndarray, counts: list[int]) -> Standings:
    counted = np.array(counts)
    weights = counted / counted.sum()
    return Standings(utilities.astype(np.float32), counted, weights, utilities @ weights, 1, 0)


def test_the_t_bound_drops_whom_a_one_sided_paired_t_test_rejects() -> None:
    rng = np.random.default_rng(0)
    counts = [1, 2, 1, 3, 1, 4]
    utilities = rng.normal(0, 1, (40, 6)) + rng.normal(0, 1, (40, 1))
    seen = standings(utilities, counts)
    drawn = np.repeat(seen.utilities.astype(float), counts, axis=1)
    leader = seen.leaders()[0]
    for alpha, comparisons in ((0.9, 1), (0.99, 1), (0.9, 20)):
        keep = calibration.PairedBound(alpha, comparisons=comparisons)(seen)
        for index, own in enumerate(drawn):
            if index != leader:
                p = stats.ttest_1samp(own - drawn[leader], 0, alternative="less").pvalue
                assert keep[index] == (p >= (1 - alpha) / comparisons)
        assert keep[leader]


def test_the_bernstein_bound_is_that_of_maurer_and_pontil() -> None:
    utilities = np.array([[60.0, 70.0, 80.0, 50.0], [30.0, 50.0, 40.0, 40.0]])
    gaps = utilities[1] - utilities[0]  # -30, -20, -40, -10
    log = math.log(2 / 0.1)
    bound = gaps.mean() + math.sqrt(2 * gaps.var(ddof=1) * log / 4) + 7 * 200 * log / (3 * 3)
    assert bound > 0  # four draws show nothing
    assert calibration.PairedBound(0.9, "bernstein")(standings(utilities, [1] * 4)).all()
    many = standings(np.repeat(utilities, 200, axis=1), [1] * 800)
    assert calibration.PairedBound(0.9, "bernstein")(many).tolist() == [True, False]


def test_both_roundings_of_beta_by_hand() -> None:
    seen = standings(np.arange(10.0)[::-1, None] + np.zeros((1, 4)), [1] * 4)
    for beta, floor, before in ((0.05, 9, 10), (0.25, 7, 8), (0.5, 5, 5), (0.3, 7, 7), (0.9, 1, 1), (0.99, 1, 1)):
        assert (Bottom(beta)(seen).sum(), calibration.RoundedUp(beta)(seen).sum()) == (floor, before)


def test_what_is_dropped_is_counted_against_the_truth() -> None:
    """Draws of R* that are all alike in half of the columns: the first hypothesis wins there, the second under R*."""
    record = Record(["a", "b", "c"], [f"r{n}" for n in range(8)], id=1)
    values = np.array([[9.0] * 4 + [0.0] * 4, [8.0] * 8, [0.0] * 8], dtype=np.float32)
    table = Table(record, np.hstack([values, np.zeros((3, 1), np.float32)]))
    found = calibration.Calibration()
    found.add(table, standings(values[:, :4].astype(float), [1] * 4), {"alone": lambda seen: seen.means == 9})
    own = found.applied["alone", 4]
    assert (own.races, own.winner_lost, own.dropped, own.as_good, own.hypotheses) == (1, 1, 2, 1, 2)
    assert own.row() == [1.0, 0.5, 1.0]
    assert found.flattery[4] == [pytest.approx(4.5 / np.std([4.5, 8, 0]))]


def test_whole_races_lose_the_winner_as_often_as_their_rule_says() -> None:
    rng = np.random.default_rng(1)
    tables = []
    for number in range(6):
        record = Record([f"h{n}" for n in range(8)], [f"r{n}" for n in range(300)], id=number)
        tables.append(Table(record, rng.normal(50, 10, (8, 301)).astype(np.float32)))
    rules = {"standard": None, "all stay": Bottom(0), "one stays": Bottom(1)}
    rows = {row[0]: row[1:] for row in calibration.race_rows(tables, 2, rules)}
    assert rows["standard"] == rows["all stay"]
    assert rows["standard"][0] == 0
    assert rows["standard"][3] == 8 * 256
    assert rows["one stays"][3] == 8 * 16
    assert rows["one stays"][0] == pytest.approx(1 - rows["one stays"][1])  # the one who stays is the answer


def test_the_power_of_a_sign_test_is_that_of_all_outcomes() -> None:
    ties, net, count = 0.3, 0.4, 9
    chances = {1: (0.7 + net) / 2, -1: (0.7 - net) / 2, 0: ties}
    expected = 0.0
    for outcome in itertools.product(chances, repeat=count):
        wins, losses = outcome.count(1), outcome.count(-1)
        if sign_test(wins, losses) < 0.05:
            expected += math.prod(chances[each] for each in outcome)
    assert ratings.power(count, ties, net) == pytest.approx(expected)


def test_with_the_ratings_needed_equivalence_is_shown_as_often_as_wanted() -> None:
    count = ratings.needed(0.15, 0.28)
    drawn = np.random.default_rng(2).multinomial(count, [0.36, 0.36, 0.28], size=4000)
    inside = [low > -0.15 and high < 0.15 for _, low, high in (ratings.interval(*map(int, row)) for row in drawn)]
    assert np.mean(inside) == pytest.approx(0.8, abs=0.03)


def test_the_papers_ratings_leave_much_open() -> None:
    net, low, high = ratings.interval(*ratings.PAPER)
    assert (net, low, high) == pytest.approx((0.048, -0.0767, 0.1727), abs=5e-4)
    assert ratings.detectable(125, 0.28) == 0.22


def test_confirmation_sets_are_judged_by_margins_of_validation_and_corrected_p_values(tmp_path: Path) -> None:
    scores = np.array([40.0, 50.0, 60.0, 70.0] * 10)
    for folder, split in (("data", "valid"), ("confirmation/data", "wmt21")):
        found = outcomes_of(TRADEOFF, len(scores), name="de-en", split=split)
        found.measures["score"][:] = scores[:, None]
        found.measures["utility_calls"][:] = 100
        change(found, STANDARD, utility_calls=np.arange(1000, 1000 + len(scores)))
        change(found, RACING, score=scores + np.array([0.04, -0.04] * 20))
        found.save(tmp_path / folder / f"de-en.{split}.chrf++.npz")
    rows, claimed = confirmation.judged(tmp_path)
    verdicts = {row["claim"]: confirmation.verdict(row) for row in claimed}
    assert verdicts == {
        "at least 7x fewer utility calls at alpha = 0.99": "**shown**",
        "accuracy indistinguishable from standard MBR's at alpha = 0.99": "holds",
        "the same score as standard MBR at alpha = 0.99, by chrF++ (decoding metric)": "**shown**",
    }
    page = confirmation.page(rows, claimed)
    assert "2 of 2 tested claims are shown,\ncorrected for all 3 tests (Holm)." in page
    assert "### de-en wmt21, chrF++: 40 sentences" in page
    claimed[0]["p_holm"] = 0.05
    assert confirmation.verdict(claimed[0]) == "not shown"
