"""Which race is recommended, and that the numbers shown are those of the outcomes."""

from __future__ import annotations

from typing import Any

import pytest
from experiment_files import outcomes_of

from mbrace.cli.score import print_recommended
from mbrace.experiments.studies import DEFAULT, recommended, schedule_settings
from mbrace.experiments.summary import recommendation_cells
from mbrace.experiments.trials import STANDARD, STOPPING, TRADEOFF, Outcomes, Setting

STANDARD_CALLS = 10_000


def outcomes(*, sentences: int = 50) -> Outcomes:
    """Every race costs 2,000 calls, standard MBR 10,000; nothing is lost. Scores differ between sentences by 1."""
    found = outcomes_of((*TRADEOFF, *schedule_settings(256), *STOPPING), sentences)
    found.measures["score"][:, ::2], found.measures["score"][:, 1::2] = 1, 3
    found.measures["utility_calls"][:] = 2_000
    found.measures["utility_calls"][found.settings.index(STANDARD)] = STANDARD_CALLS
    return found


def change(found: Outcomes, setting: Setting, **values: float) -> None:
    for name, value in values.items():
        found.measures[name][found.settings.index(setting)] += value


def chosen(found: Outcomes) -> dict[str, Any]:
    [row] = [row for row in recommended(found) if row["kind"] == "recommended"]
    return row


REGRET = Setting("alpha", 0.99, regret=0.04)
HARD = Setting("alpha", 0.8)


def test_the_cheapest_race_that_loses_next_to_nothing_is_recommended() -> None:
    found = outcomes()
    change(found, REGRET, utility_calls=-1_000, lost=0.019, rr=-0.5)  # near ties: rank is lost, utility is not
    change(found, HARD, utility_calls=-1_900, lost=0.021)
    row = chosen(found)
    assert (row["alpha"], row["regret"], row["saves"]) == (0.99, 0.04, 10)
    assert row["lost"] == pytest.approx(0.019)
    race = "--alpha 0.99 --schedule 16,32,64,128,256 --regret 0.04"
    assert recommendation_cells(row)["options"] == race
    found.about |= {"file": "my file.jsonl", "options": "--utility learned"}
    whole = f"mbrace decode 'my file.jsonl' -o decoded.jsonl --utility learned {race}"
    assert recommendation_cells(chosen(found))["command"] == whole


def test_the_terminal_shows_the_command_in_one_line_that_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    found = outcomes()
    found.about |= {"file": "my file.jsonl", "options": "--utility learned --metric-model /models/a-long-name"}
    rows = recommended(found)
    print_recommended(rows)
    [row] = [row for row in rows if row["kind"] == "recommended"]
    assert f"  {recommendation_cells(row)['command']}\n" in capsys.readouterr().out


def test_nothing_is_recommended_from_fewer_than_thirty_sentences() -> None:
    kinds = {n: [row["kind"] for row in recommended(outcomes(sentences=n))] for n in (2, 29, 30)}
    assert kinds[2] == kinds[29] == ["standard", "default"]
    assert kinds[30] == ["standard", "default", "recommended"]


def test_a_race_that_loses_score_is_not_recommended() -> None:
    found = outcomes()
    change(found, HARD, utility_calls=-1_900, score=-0.0101)  # the margin: 0.01 of a standard deviation of 1
    change(found, REGRET, utility_calls=-1_000, score=-0.0099)
    assert chosen(found)["regret"] == 0.04


def test_a_wide_interval_is_as_bad_as_a_loss() -> None:
    found = outcomes()
    change(found, HARD, utility_calls=-1_900)
    found.measures["lost"][found.settings.index(HARD), ::2] = 0.3  # 0 on average
    found.measures["lost"][found.settings.index(HARD), 1::2] = -0.3
    assert chosen(found)["alpha"] != 0.8


def test_standard_mbr_is_recommended_where_every_race_loses() -> None:
    found = outcomes()
    found.measures["lost"][:] = 1
    found.measures["lost"][found.settings.index(STANDARD)] = 0
    row = chosen(found)
    assert (row["alpha"], row["saves"]) == (None, 1)
    assert recommendation_cells(row)["options"] == "--prune none"


def test_the_saving_has_the_interval_of_a_ratio_of_means_over_sentences() -> None:
    found = outcomes()
    calls = found.measures["utility_calls"][found.settings.index(DEFAULT)]
    calls[::2], calls[1::2] = 1_000, 3_000
    [row] = [row for row in recommended(found) if row["kind"] == "default"]
    assert row["saves"] == 5
    # by the delta method: the mean of 50 draws of 1,000 or 3,000 has a standard deviation of 1,000 / sqrt(50) = 141
    assert row["saves_low"] == pytest.approx(10_000 / (2_000 + 1.96 * 141), rel=0.03)
    assert row["saves_high"] == pytest.approx(10_000 / (2_000 - 1.96 * 141), rel=0.03)
