"""The statistics of `mbrace judge-results`, against SciPy, brute force and published examples."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binomtest

from mbrace.cli import main
from mbrace.judge.items import PredictionPair
from mbrace.judge.results import (
    Rating,
    evaluate,
    evaluate_counts,
    krippendorff_alpha,
    paired_bootstrap,
    read_ratings,
    report,
    sign_test,
)
from mbrace.judge.store import open_study

# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", example C: 4 observers, 12 units, "." is missing.
KRIPPENDORFF = ["123321412...", "1233224125.3", ".33323422 51.".replace(" ", ""), "12332441251."]


def ratings(*rows: str) -> list[Rating]:
    """One string a rater, one letter an item: A, B, t(ie), s(kip)."""
    names = {"A": "A", "B": "B", "t": "tie", "s": "skip"}
    return [
        Rating(rater, position, str(position), names[letter], "A", "", "")
        for rater, row in enumerate(rows, start=1)
        for position, letter in enumerate(row)
    ]


@given(st.integers(0, 300), st.integers(0, 300))
@example(5_100, 4_900)
def test_sign_test_is_scipys_exact_binomial_test(wins: int, losses: int) -> None:
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-9)


def test_bootstrap_agrees_with_every_resample_of_a_small_sample() -> None:
    scores = [1, 1, 1, -1, 0]
    sums = [sum(drawn) for drawn in itertools.product(scores, repeat=5)]
    outcome = paired_bootstrap(scores, resamples=200_000)
    assert outcome.a_ahead == pytest.approx(np.mean(np.array(sums) > 0), abs=0.005)
    assert outcome.b_ahead == pytest.approx(np.mean(np.array(sums) < 0), abs=0.005)
    assert outcome == paired_bootstrap(scores, resamples=200_000)
    # where thirds cancel, neither is ahead
    assert paired_bootstrap([1 / 3, 2 / 3, -1]) == paired_bootstrap([1, 2, -3])


def test_krippendorffs_alpha_is_that_of_his_worked_example() -> None:
    units = [[row[unit] for row in KRIPPENDORFF if row[unit] != "."] for unit in range(12)]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(["aa", "bb"]) == 1
    assert krippendorff_alpha(["aa", "aa"]) is krippendorff_alpha(["a", "b"]) is krippendorff_alpha([]) is None


@pytest.mark.parametrize(
    ("wins", "losses", "ties", "says"),
    [
        (48, 42, 35, "difference between A and B is not significant at the 0.05 level: 48 to 42 with 35 ties"),  # paper
        (60, 30, 35, "A is significantly better than B"),
        (30, 60, 35, "B is significantly better than A"),
        (3, 0, 0, "not significant at the 0.05 level: 3 to 0 with 0 ties (sign test p = 0.25, ahead in 100.0%"),
    ],
)
def test_the_verdict_needs_both_tests(wins: int, losses: int, ties: int, says: str) -> None:
    results = evaluate_counts(wins, losses, ties)
    assert says in results.verdict
    assert results.items.sign_test == pytest.approx(binomtest(wins, wins + losses).pvalue)


def test_documentation_shows_the_report_as_it_is() -> None:
    page = (Path(__file__).parent.parent / "docs" / "judge.md").read_text(encoding="utf-8")
    assert f"```text\n{report(evaluate_counts(48, 42, 35))}\n```" in page


@pytest.mark.parametrize("swap", [False, True])
def test_nobody_wins_where_the_votes_and_the_bootstrap_favour_different_sides(swap: bool) -> None:
    one, other = "BA" if swap else "AB"
    rows = (one * 60 + other * 35, "t" * 60 + other * 35, "t" * 60 + other * 35)
    results = evaluate(ratings(*rows))
    assert sorted((results.items.wins, results.items.losses)) == [35, 60]
    ahead = results.items.bootstrap.a_ahead, results.items.bootstrap.b_ahead
    assert results.items.sign_test < 0.05  # for the side with 60 items ...
    assert max(ahead) > 0.95  # ... and this for the other
    assert not results.significant
    assert "not significant" in results.verdict
    assert f"ahead in {min(ahead):.1%} of" in results.verdict


def test_no_ratings_give_no_verdict() -> None:
    assert evaluate([]).verdict == "No ratings yet."
    assert report(evaluate([])).splitlines() == ["A = A, B = B", "", "No ratings yet."]
    assert evaluate(ratings("sss")).verdict == "No ratings yet: 3 answers, all of them skips."
    assert report(evaluate(ratings("sss")))


def test_raters_of_an_item_vote_together_and_are_counted_apart() -> None:
    results = evaluate(ratings("AABts", "ABBtA"))
    one, two = results.raters[1], results.raters[2]
    assert (one.wins, one.losses, one.ties, one.skips) == (2, 1, 1, 1)
    assert (two.wins, two.losses, two.ties, two.skips) == (2, 2, 1, 0)
    assert results.ratings.wins == 4
    assert (results.items.wins, results.items.losses, results.items.ties) == (2, 1, 2)
    assert results.agreement is not None
    assert results.agreement.items == 4  # the fifth was skipped by one
    assert results.agreement.same == 0.75
    # coincidences by hand: A 3, B 3, t 2 of n = 8; observed 2, expected (64 - 9 - 9 - 4) / 7 = 6
    assert results.agreement.krippendorff_alpha == pytest.approx(1 - 2 / 6)


def test_copies_of_one_raters_answers_do_not_make_a_result_significant() -> None:
    assert not evaluate(ratings(*["A" * 12 + "B" * 6] * 10)).significant


def test_preference_for_a_side_is_reported_as_such() -> None:
    results = evaluate([Rating(1, n, str(n), "AB"[n % 2], "AB"[n % 2], "", "") for n in range(20)])
    assert (results.left_chosen, results.right_chosen) == (20, 0)


def test_report_and_exports_hold_every_rating_and_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [PredictionPair(f"id-{n}", "s", "a", "b") for n in range(4)]
    about = {"name_a": "std.jsonl", "name_b": "race.jsonl", "equal": "16", "total": "20"}
    store = open_study(str(tmp_path / "r.db"), items, facts={"items": "4"}, about=about, seed=0, raters=2)
    for rater, position in itertools.product((1, 2), range(4)):
        side = "left" if store.turn(rater).a_left else "right"
        store.rate(rater, position, side if position else "skip", comment="ok", request=f"request-{position}")
    shown = []
    for options in ([], ["--json"]):
        assert main(["judge-results", str(tmp_path / "r.db"), *options]) == 0  # while the server still holds the file
        shown.append(capsys.readouterr().out)
    store.close()
    printed, exported = shown[0], json.loads(shown[1])
    assert "20 pairs of predictions: 16 equal (80.0%), 4 different" in printed
    assert printed.splitlines()[-1] == exported["verdict"]
    assert exported["ratings"] == {"wins": 6, "losses": 0, "ties": 0, "skips": 2}
    assert [own["wins"] for own in exported["raters"]] == [3, 3]
    assert len(exported["answers"]) == 8
    for token in store.tokens.values():
        assert token not in "".join(shown)


def test_reading_results_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    items = [PredictionPair("1", "s", "a", "b")]
    open_study(str(tmp_path / "r.db"), items, facts={}, about={}, seed=0, raters=1).close()
    assert read_ratings(str(tmp_path / "r.db")) == ({}, [])
    assert [path.name for path in tmp_path.iterdir()] == ["r.db"]
