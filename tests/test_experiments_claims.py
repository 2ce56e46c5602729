"""The paper's claims: equivalence against scipy's t-tests, margins by hand, verdicts that say what was tested."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_files import outcomes_of
from scipy import stats

import mbrace
from mbrace.cli import main
from mbrace.experiments.claims import claims, margins, table_rows
from mbrace.experiments.significance import equivalence, ratio_interval
from mbrace.experiments.tables import CandidateFile, other_scores, tables
from mbrace.experiments.trials import (
    RACING,
    REGRET,
    STANDARD,
    TRADEOFF,
    Outcomes,
    Setting,
    fast,
    run_trials,
    table_settings,
)

TEST = (STANDARD, RACING, Setting("alpha", 0.9), REGRET)


@pytest.mark.parametrize("count", [2, 5, 11, 12, 40, 3000])
@pytest.mark.parametrize("shift", [0.0, 0.12, 0.5])
def test_equivalence_is_two_one_sided_t_tests(count: int, shift: float) -> None:
    rng = np.random.default_rng(count)
    a, b = rng.normal(shift, 1, (count, 4)), rng.normal(0, 1, (count, 4))
    differences = (a - b).mean(axis=1)
    for margin in (0.1, 0.2, 0.6, 5.0):
        found = equivalence(a, b, margin)
        below = stats.ttest_1samp(differences, margin, alternative="less").pvalue
        above = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
        assert found.p == pytest.approx(max(below, above), abs=1e-9)
        assert found.inside == (max(below, above) < 0.05)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_one_sentence_shows_nothing() -> None:
    found = equivalence(np.array([1.0]), np.array([1.0]), 0.2)
    assert not found.inside
    assert not found.outside


def made_up(label: str, scores: list[float], racing: list[float], others: dict[str, list[float]] | None = None) -> Any:
    """Outcomes of two trials with these human scores of standard MBR and of racing at alpha = 0.99."""
    found = outcomes_of((*TRADEOFF, REGRET), len(scores), value=0.5, name="de-en", label=label)
    found.measures["utility_calls"][:] = 700
    found.measures["score"][:] = np.array(scores)[None, :, None]
    change(found, RACING, score=racing, utility_calls=[100] * len(scores))
    found.scored = TEST
    for name, values in (others or {}).items():
        found.other_scores[name] = np.broadcast_to(np.float32(values)[None, :, None], (len(TEST), len(values), 2))
    return found


def change(found: Outcomes, setting: Setting, **values: list[float]) -> None:
    for name, by_sentence in values.items():
        found.measures[name][found.settings.index(setting)] = np.array(by_sentence)[:, None]


def test_a_margin_is_to_its_metric_what_a_fifth_of_a_point_is_to_chrf() -> None:
    lexical = made_up("chrF++", [40, 50, 60], [40, 50, 60])
    neural = made_up("learned", [-0.5, 0, 0.5], [-0.5, 0, 0.5], {"chrF++": [1, 2, 3], "BLEU": [10, 30, 50]})
    assert margins(lexical, None) == {"score": 0.2}
    assert margins(lexical, lexical) == {"score": 0.2}
    found = margins(neural, lexical)  # standard deviations 10, 0.5 and 20
    assert found == pytest.approx({"score": 0.01, "score by chrF++": 0.2, "score by BLEU": 0.4})
    assert margins(neural, None) == {"score by chrF++": 0.2}
    lexical.about["digest"] = "of other sentences"
    assert margins(neural, lexical) == {"score by chrF++": 0.2}


@pytest.mark.parametrize(
    ("claim", "setting", "measure", "values", "holds", "verdict"),
    [
        ("same score", RACING, "score", [40.1, 49.9, 60.0, 70.0], True, "shown: 90% interval inside ±0.2 chrF++"),
        ("same score", RACING, "score", [43, 47, 62, 68], None, "not shown: 90% interval not inside ±0.2 chrF++"),
        ("same score", RACING, "score", [38, 48.1, 58, 67.9], False, "not so here: 90% interval outside ±0.2 chrF++"),
        (
            "little",
            REGRET,
            "lost",
            [0.52, 0.53, 0.51, 0.52],
            True,
            "shown: 95% interval below 0.05",
        ),  # standard MBR: 0.5
        ("little", REGRET, "lost", [0.60, 0.62, 0.61, 0.6], False, "not so here: 95% interval above 0.05"),
        ("little", REGRET, "lost", [0.50, 0.60, 0.53, 0.55], None, "not shown: 95% interval includes 0.05"),
        ("fewer", RACING, "utility_calls", [100, 100, 100, 100], True, "shown: 95% interval above 7"),
        ("fewer", RACING, "utility_calls", [300, 200, 200, 300], False, "not so here: 95% interval below 7"),
        ("fewer", RACING, "utility_calls", [50, 150, 100, 100], None, "not shown: 95% interval includes 7"),
    ],
)
def test_a_verdict_says_what_was_tested(
    claim: str, setting: Setting, measure: str, values: list[float], holds: bool | None, verdict: str
) -> None:
    found = made_up("chrF++", [40, 50, 60, 70], [40, 50, 60, 70])
    change(found, setting, **{measure: values})
    row = next(row for row in claims(found, found, {"score": 0.2}) if claim in row["claim"])
    assert (row["holds"], row["verdict"]) == (holds, verdict)


def test_fast_is_judged_by_the_same_score_too() -> None:
    found = made_up("chrF++", [40, 50, 60], [40, 50, 60])
    rows = {row["claim"]: row for row in claims(found, found, {"score": 0.2})}
    assert rows["the same score as standard MBR with --preset fast, by chrF++ (decoding metric)"]["holds"]


def test_without_a_margin_nothing_is_judged() -> None:
    found = made_up("learned", [0.1, 0.2], [0.1, 0.2])
    row = next(row for row in claims(found, found, {}) if "same score" in row["claim"])
    assert row["holds"] is None
    assert row["verdict"].startswith("not tested: no margin")


def test_the_interval_of_a_ratio_covers_it_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        a, b = rng.gamma(9, 100, 60), rng.gamma(4, 10, 60)
        low, high = ratio_interval(a, b, resamples=300)
        covered += low <= 900 / 40 <= high
    assert 0.88 <= covered / 200 <= 0.99


@pytest.fixture
def three_rows(demo_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row | {"hypotheses": row["hypotheses"][:9], "pseudo_references": row["pseudo_references"][:20]}
        for row in demo_rows[:3]
    ]


def test_decisions_are_scored_by_metrics_that_did_not_decode(tmp_path: Path, three_rows: list[dict[str, Any]]) -> None:
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in three_rows), encoding="utf-8")
    file = CandidateFile.from_path(str(tmp_path / "x.jsonl"))
    metric = mbrace.BLEU()
    stored = tables(file, file.records(), mbrace.ChrF(), tmp_path / "t", others={"BLEU": metric})
    found = run_trials(stored, name="x", schedule=(4, 8), settings=TEST, scored=TEST, sizes=(), trials=2)
    answers = list(mbrace.decode_corpus(file.records(), utility=mbrace.ChrF(), prune=None, schedule="all"))
    for sentence, row in enumerate(three_rows):
        scores = other_scores(file.records()[sentence], {"BLEU": metric})["BLEU"]
        kept = found.other_scores["BLEU"][:, sentence]
        assert np.isin(kept, scores).all()
        assert kept.shape == (len(TEST), 2)
        by_hand = metric.pairs([answers[sentence].text], [row["reference"]])
        assert np.float32(by_hand[0]) in scores
    found.save(tmp_path / "x.npz")
    back = Outcomes.load(tmp_path / "x.npz")
    np.testing.assert_array_equal(back.other_scores["BLEU"], found.other_scores["BLEU"])
    shown = back.other_scores_of(STANDARD)["score by BLEU"]
    np.testing.assert_array_equal(shown, found.other_scores["BLEU"][0].astype(np.float64))


def test_a_table_names_the_metric_that_decoded_and_those_that_did_not(
    tmp_path: Path, three_rows: list[dict[str, Any]]
) -> None:
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in three_rows), encoding="utf-8")
    options = ["-o", str(tmp_path / "out"), "--trials", "2", "--workers", "1"]
    assert main(["experiment", str(tmp_path / "x.jsonl"), *options, "--no-report"]) == 0
    assert main(["experiment", str(tmp_path / "x.jsonl"), *options, "--utility", "chrf"]) == 0
    words = (tmp_path / "out" / "RESULTS.md").read_text(encoding="utf-8")
    first, second = words[words.index("### x, chrF++") : words.index("## Every row")].split("### x, chrF ")
    assert "| Score by chrF++ (decoding metric) | **" in first
    assert "| Score by BLEU (another metric) | **" in first
    assert "chrF++ (another metric)" not in first
    assert "| Score by chrF (decoding metric) | **" in second
    assert "| Score by chrF++ (another metric) | **" in second
    assert "by chrF (decoding metric)" in words  # a claim, with a margin from the spread of chrF++
    assert "no margin" not in words
    assert "| beta=0, R=32 |" not in words  # races use 10 of 20 pseudo-references here
    with open(tmp_path / "out" / "test_table.csv", encoding="utf-8") as file:
        assert {row["sentences"] for row in csv.DictReader(file)} == {"3"}


def test_the_test_table_holds_differences_against_the_margin() -> None:
    found = made_up("chrF++", [40, 50, 60, 70], [40.1, 49.9, 60.0, 70.0])
    rows = {(row["setting"], row["measure"]): row for row in table_rows(found, {"score": 0.2})}
    row = rows["alpha=0.99", "score"]
    assert row["difference"] == pytest.approx(0, abs=1e-9)
    assert row["inside_margin"] is True
    assert rows["beta=0", "score"]["margin"] is None


def test_the_abstracts_claim_about_accuracy_is_a_paired_test() -> None:
    found = made_up("chrF++", [50] * 40, [50] * 40)
    right = np.ones(40)
    for wrong, told in ((3, False), (12, True)):  # all other sentences are equal: 2^-2 and 2^-11 by chance
        right[:wrong] = 0
        change(found, STANDARD, accuracy=[1.0] * 40)
        change(found, RACING, accuracy=right.tolist())
        row = next(row for row in claims(found, found, {}) if "accuracy indistinguishable" in row["claim"])
        assert row["p"] == pytest.approx(2.0 ** (1 - wrong), abs=0.015)
        assert row["holds"] is not told


def test_fast_is_what_the_presets_say_of_the_kind_of_utility() -> None:
    assert fast("string") == REGRET
    assert fast("encoder") == Setting("alpha", 0.99, regret=0.04, forecast=0.0005, cover=True)
    assert [setting.label for setting in table_settings((8, 64), "encoder")] == [
        "beta=0", "alpha=0.99", "alpha=0.9", "alpha=0.99, regret=0.04",
        "alpha=0.99, regret=0.04, forecast=0.0005, cover", "beta=0.6", "beta=0, R=32",
    ]  # fmt: skip


def test_equal_predictions_are_counted_with_and_without_ties_and_beams_have_rows() -> None:
    found = made_up("chrF++", [50] * 4, [51] * 4)
    found.measures["choice"][:] = 0
    change(found, RACING, choice=[0, 0, 1, 2], lost=[0.5, 0.5, 0.5, 0.9])  # standard MBR: 0, and 0.5 lost
    found.baselines["beam 5"] = {"score": np.float32([50, 49, 50, 51])}
    rows = {(row["setting"], row["measure"]): row for row in table_rows(found, {"score": 0.2})}
    assert (rows["alpha=0.99", "same"]["value"], rows["alpha=0.99", "tied"]["value"]) == (0.5, 0.75)
    assert ("beta=0", "same") not in rows
    assert rows["beam 5", "score"]["difference"] == pytest.approx(0)
    assert rows["alpha=0.99", "score"]["inside_margin"] is False
