"""The paper's claims, Table 1 and the recommended race: against scipy's t-tests, by hand, and in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_files import change, cut, outcomes_of, write_candidates
from scipy import stats

import mbrace
from mbrace.cli.evaluate import print_recommended
from mbrace.experiments.claims import claims, margins, table_rows
from mbrace.experiments.report import recommendation_cells, systems_table
from mbrace.experiments.significance import equivalence, ratio_interval
from mbrace.experiments.studies import recommended, schedule_settings
from mbrace.experiments.tables import CandidateFile, other_scores, tables
from mbrace.experiments.trials import (
    RACING,
    REGRET,
    REGRET_SETTINGS,
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


def test_decisions_are_scored_by_metrics_that_did_not_decode(tmp_path: Path, demo_rows: list[dict[str, Any]]) -> None:
    rows, metric = cut(demo_rows[:3], 9, 20), mbrace.BLEU()
    file = CandidateFile.from_path(str(write_candidates(tmp_path / "x.jsonl", rows)))
    stored = tables(file, file.records(), mbrace.ChrF(), tmp_path / "t", others={"BLEU": metric})
    found = run_trials(stored, name="x", schedule=(4, 8), settings=TEST, scored=TEST, sizes=(), trials=2)
    found.save(tmp_path / "x.npz")
    back = Outcomes.load(tmp_path / "x.npz")
    np.testing.assert_array_equal(back.other_scores["BLEU"], found.other_scores["BLEU"])
    for index, setting in enumerate(TEST):
        choice = found.measures["choice"][index]
        shown = back.other_scores_of(setting)["score by BLEU"]
        for sentence, record in enumerate(file.records()):
            texts = [list(dict.fromkeys(record.hypotheses))[n] for n in choice[sentence]]
            by_hand = np.float32(metric.pairs(texts, [record.reference or ""] * 2))
            np.testing.assert_array_equal(shown[sentence], by_hand)
    assert other_scores(file.records()[0], {"BLEU": metric})["BLEU"].dtype == np.float32


def test_the_test_table_holds_differences_against_the_margin() -> None:
    found = made_up("chrF++", [40, 50, 60, 70], [40.1, 49.9, 60.0, 70.0])
    rows = {(row["setting"], row["measure"]): row for row in table_rows(found, {"score": 0.2})}
    row = rows["alpha=0.99", "score"]
    assert row["difference"] == pytest.approx(0, abs=1e-9)
    assert row["inside_margin"] is True
    assert rows["beta=0", "score"]["margin"] is None
    # differences of 0.1, -0.1, 0 and 0: the 90% interval is 0 ± 2.353 x 0.0816 / 2 = ± 0.096, and a quarter is 0.05
    [line] = [line for line in systems_table(list(rows.values())).splitlines() if line.startswith("| alpha=0.99 |")]
    assert line.startswith("| alpha=0.99 | +0.000 (0%) |")
    assert line.endswith("| 1 of 1 | 0 of 1 |")


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


# The recommended race

SCORES = np.array([1.0, 3.0] * 25)  # a standard deviation of 1 between sentences
HARD = Setting("alpha", 0.8)


def outcomes(sentences: int = 50) -> Outcomes:
    """Every race costs 2,000 calls, standard MBR 10,000; nothing is lost."""
    found = outcomes_of((*TRADEOFF, *schedule_settings(256), *REGRET_SETTINGS), sentences)
    found.measures["score"][:] = SCORES[:sentences, None]
    found.measures["utility_calls"][:] = 2_000
    change(found, STANDARD, utility_calls=10_000)
    return found


def row_of(found: Outcomes, kind: str = "recommended") -> dict[str, Any]:
    [row] = [row for row in recommended(found) if row["kind"] == kind]
    return row


@pytest.mark.parametrize(
    ("changes", "alpha", "regret"),
    [
        # near ties: rank is lost, utility is not
        (
            {REGRET: {"utility_calls": 1_000, "lost": 0.019, "rr": -0.5}, HARD: {"utility_calls": 100, "lost": 0.021}},
            0.99,
            0.04,
        ),
        # the margin is 0.01 of a standard deviation of 1
        (
            {
                HARD: {"utility_calls": 100, "score": SCORES - 0.0101},
                REGRET: {"utility_calls": 1_000, "score": SCORES - 0.0099},
            },
            0.99,
            0.04,
        ),
        ({HARD: {"utility_calls": 100, "lost": [0.3, -0.3] * 25}}, 0.9, 0),  # a wide interval is as bad as a loss
    ],
)
def test_the_cheapest_race_that_loses_next_to_nothing_is_recommended(
    changes: dict[Setting, dict[str, Any]], alpha: float, regret: float
) -> None:
    found = outcomes()
    for setting, values in changes.items():
        change(found, setting, **values)
    row = row_of(found)
    assert (row["alpha"], row["regret"]) == (alpha, regret)
    assert row["saves"] == (10 if regret else 5)
    assert recommendation_cells(row)["options"] == f"--alpha {alpha} --schedule 16,32,64,128,256 --regret {regret}"


def test_the_command_is_one_line_that_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    found = outcomes()
    change(found, REGRET, utility_calls=1_000)
    found.about |= {"file": "my file.jsonl", "options": "--utility learned --metric-model /models/a-long-name"}
    print_recommended(recommended(found))
    command = "mbrace decode 'my file.jsonl' -o decoded.jsonl --utility learned --metric-model /models/a-long-name"
    race = "--alpha 0.99 --schedule 16,32,64,128,256 --regret 0.04"
    assert f"  {command} {race}\n" in capsys.readouterr().out


def test_a_race_with_a_forecast_is_recommended_with_it() -> None:
    found = outcomes_of((STANDARD, RACING, fast("encoder")), 50)
    change(found, fast("encoder"), utility_calls=-1)
    row = row_of(found)
    assert recommendation_cells(row)["options"].endswith(" --regret 0.04 --forecast 0.0005 --cover")


def test_nothing_is_recommended_from_fewer_than_thirty_sentences() -> None:
    kinds = {n: [row["kind"] for row in recommended(outcomes(n))] for n in (2, 29, 30)}
    assert kinds[2] == kinds[29] == ["standard", "default"]
    assert kinds[30] == ["standard", "default", "recommended"]


def test_standard_mbr_is_recommended_where_every_race_loses() -> None:
    found = outcomes()
    found.measures["lost"][:] = 1
    change(found, STANDARD, lost=0)
    row = row_of(found)
    assert (row["alpha"], row["saves"]) == (None, 1)
    assert recommendation_cells(row)["options"] == "--prune none"


def test_the_saving_has_the_interval_of_a_ratio_of_means_over_sentences() -> None:
    found = outcomes()
    change(found, RACING, utility_calls=[1_000, 3_000] * 25)
    row = row_of(found, "default")
    assert row["saves"] == 5
    # by the delta method: the mean of 50 draws of 1,000 or 3,000 has a standard deviation of 1,000 / sqrt(50) = 141
    assert row["saves_low"] == pytest.approx(10_000 / (2_000 + 1.96 * 141), rel=0.03)
    assert row["saves_high"] == pytest.approx(10_000 / (2_000 - 1.96 * 141), rel=0.03)
