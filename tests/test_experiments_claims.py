"""The paper's claims: equivalence against scipy's t-tests, margins by hand, verdicts that say what was tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import mbrace
from mbrace.cli import main
from mbrace.experiments import studies
from mbrace.experiments.claims import claims, margins
from mbrace.experiments.significance import equivalence, ratio_interval
from mbrace.experiments.tables import CandidateFile, other_scores, tables
from mbrace.experiments.trials import FAST, MEASURES, STANDARD, TEST, TRADEOFF, Outcomes, Setting, run_trials

RACING = Setting("alpha", 0.99)


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
        assert found.inside == (max(below, above) < 0.05)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=2e-3, abs=2e-3)


def test_one_sentence_shows_nothing() -> None:
    found = equivalence(np.array([1.0]), np.array([1.0]), 0.2)
    assert not found.inside
    assert not found.outside


def made_up(label: str, scores: list[float], racing: list[float], others: dict[str, list[float]] | None = None) -> Any:
    """Outcomes of two trials with these human scores of standard MBR and of racing at alpha = 0.99."""
    shape = (len(TRADEOFF), len(scores), 2)
    measures: dict[str, Any] = {name: np.full(shape, 0.5) for name in MEASURES}
    measures["utility_calls"] = np.full(shape, 700)
    measures["score"][:] = np.array(scores)[None, :, None]
    measures["score"][TRADEOFF.index(RACING)] = np.array(racing)[:, None]
    measures["utility_calls"][TRADEOFF.index(RACING)] = 100
    about = {"name": "de-en", "label": label, "split": "valid", "digest": "d", "references": True}
    kept = {
        name: np.broadcast_to(np.float32(values)[None, :, None], (len(TEST), len(values), 2)).copy()
        for name, values in (others or {}).items()
    }
    left, pruned = np.ones((*shape, 5), np.int16), np.zeros((0, 5, len(scores), 2), bool)
    return Outcomes(TRADEOFF, measures, left, pruned, (), about, kept)


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
    ("racing", "holds", "verdict"),
    [
        ([40.1, 49.9, 60.0, 70.0], True, "shown: 90% interval inside ±0.2 chrF++"),
        ([43, 47, 62, 68], None, "not shown: 90% interval not inside ±0.2 chrF++"),
        ([38, 48.1, 58, 67.9], False, "contradicted: 90% interval outside ±0.2 chrF++"),
    ],
)
def test_a_verdict_says_what_was_tested(racing: list[float], holds: bool | None, verdict: str) -> None:
    found = made_up("chrF++", [40, 50, 60, 70], racing)
    [row] = [row for row in claims(found, found, {"score": 0.2}) if "same score" in row["claim"]]
    assert (row["holds"], row["verdict"]) == (holds, verdict)
    assert row["claim"].endswith("by chrF++ (which decoded)")


@pytest.mark.parametrize(
    ("lost", "holds", "verdict"),
    [
        ([0.52, 0.53, 0.51], True, "shown: 95% interval below 0.05"),
        ([0.60, 0.62, 0.61], False, "contradicted: 95% interval above 0.05"),
        ([0.50, 0.60, 0.53], None, "not shown: 95% interval includes 0.05"),
    ],
)
def test_fast_is_judged_by_the_utility_that_it_loses(lost: list[float], holds: bool | None, verdict: str) -> None:
    found = made_up("chrF++", [40, 50, 60], [40, 50, 60])
    found.settings = (*found.settings, FAST)
    found.measures = {name: np.concatenate([values, values[:1]]) for name, values in found.measures.items()}
    found.measures["lost"][-1] = np.array(lost)[:, None]  # standard MBR loses 0.5
    rows = {row["claim"]: row for row in claims(found, found, {"score": 0.2})}
    row = rows["little expected utility lost with --preset fast (regret 0.04)"]
    assert (row["holds"], row["verdict"]) == (holds, verdict)
    assert rows["the same score as standard MBR with --preset fast (regret 0.04), by chrF++ (which decoded)"]["holds"]


def test_without_a_margin_nothing_is_judged() -> None:
    found = made_up("learned", [0.1, 0.2], [0.1, 0.2])
    [row] = [row for row in claims(found, found, {}) if "same score" in row["claim"]]
    assert row["holds"] is None
    assert row["verdict"].startswith("not tested: no margin")


@pytest.mark.parametrize(
    ("calls", "holds", "verdict"),
    [
        ([100, 100, 100], True, "shown: 95% interval above 7"),
        ([300, 200, 200], False, "contradicted: 95% interval below 7"),
        ([50, 150, 100], None, "not shown: 95% interval includes 7"),
    ],
)
def test_fewer_calls_are_judged_by_the_interval_of_their_ratio(
    calls: list[int], holds: bool | None, verdict: str
) -> None:
    found = made_up("chrF++", [1, 2, 3], [1, 2, 3])
    found.measures["utility_calls"][TRADEOFF.index(RACING)] = np.array(calls)[:, None]
    row = claims(found, found, {})[0]
    assert (row["holds"], row["verdict"]) == (holds, verdict)


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
    found = run_trials(stored, name="x", schedule=(4, 8), settings=TEST, sizes=(), trials=2)
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
    options = ["-o", str(tmp_path / "out"), "--trials", "2", "--workers", "1", "--races", "1"]
    assert main(["experiment", str(tmp_path / "x.jsonl"), *options, "--no-report"]) == 0
    assert main(["experiment", str(tmp_path / "x.jsonl"), *options, "--utility", "chrf"]) == 0
    words = (tmp_path / "out" / "RESULTS.md").read_text(encoding="utf-8")
    first, second = words[words.index("### x, chrF++") :].split("### x, chrF ")
    assert "| Score by chrF++, which decoded | **" in first
    assert "| Score by BLEU, not decoded with | **" in first
    assert "chrF++, not decoded with" not in first
    assert "| Score by chrF, which decoded | **" in second
    assert "| Score by chrF++, not decoded with | **" in second
    assert "by chrF (which decoded)" in words  # a claim, with a margin from the spread of chrF++
    assert "no margin" not in words
    table = json.loads((tmp_path / "out" / "results.json").read_text())["test_table"]
    assert {row["sentences"] for row in table} == {3}


def test_the_test_table_holds_differences_against_the_margin() -> None:
    found = made_up("chrF++", [40, 50, 60, 70], [40.1, 49.9, 60.0, 70.0])
    rows = {(row["setting"], row["measure"]): row for row in studies.test_table(found, {"score": 0.2})}
    row = rows["alpha=0.99", "score"]
    assert row["difference"] == pytest.approx(0, abs=1e-9)
    assert row["inside_margin"] is True
    assert rows["beta=0", "score"]["margin"] is None
