"""Trials over stored utilities: against a naive transcription, hand-worked measures, resuming, the whole command."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import overlap
from experiment_files import SCHEDULE, outcomes_of, write_candidates

import mbrace
from mbrace.experiments import claims, figures, report, studies
from mbrace.experiments.tables import CandidateFile, Table, tables
from mbrace.experiments.trials import (
    ALPHA_SETTINGS,
    ALPHAS,
    BETAS,
    MEASURES,
    TRADEOFF,
    Outcomes,
    Setting,
    measure,
    run_trials,
    sample,
)
from mbrace.records import key

SETTINGS = (Setting("beta", 0.0), Setting("beta", 0.35), Setting("alpha", 0.8, (3, 12)), *ALPHA_SETTINGS)


SIZES = (4, 6, 16)


@pytest.fixture
def random_tables(tmp_path: Path) -> Any:
    """Six sentences with random utilities: 9 hypotheses (some rows equal), 24 draws of R* with repetitions."""
    rng = np.random.default_rng(5)
    rows, values = [], {}
    for sentence in range(6):
        hypotheses = [f"s{sentence} h{i}" for i in range(9)]
        distinct = [f"s{sentence} r{i}" for i in range(15)]
        quality = np.repeat(rng.normal(size=5), 2)[:9, None]
        table = np.round(quality * 0.4 + np.repeat(rng.normal(size=(5, 15)), 2, axis=0)[:9], 2)
        values.update({(h, r): table[i, j] for i, h in enumerate(hypotheses) for j, r in enumerate(distinct)})
        values.update({(h, "human"): float(i) for i, h in enumerate(hypotheses)})
        draws = [distinct[i] for i in rng.integers(15, size=24)]
        rows.append({"id": sentence, "hypotheses": hypotheses, "pseudo_references": draws, "reference": "human"})
    part = CandidateFile.from_path(str(write_candidates(tmp_path / "random.jsonl", rows)))
    utility = mbrace.Pairwise(lambda h, r: values[h, r], name="random", schedule=SCHEDULE)
    return tables(part, part.records(), utility, tmp_path / "tables"), values


def trials_of(stored: Sequence[Table], **options: Any) -> Outcomes:
    given = {"name": "random", "schedule": SCHEDULE, "settings": SETTINGS, "sizes": SIZES, "trials": 3} | options
    return run_trials(stored, **given)


def naive_keep(
    u: Callable[[str, str], float], alive: list[str], drawn: list[str], setting: Setting, seed: int
) -> list[str]:
    """One pruning decision as the paper writes it, over gathered resamples of the draws themselves."""
    U = {y: np.mean([u(y, r) for r in drawn]) for y in alive}
    if setting.rule == "beta":
        ranked = sorted(alive, key=lambda y: -U[y])
        kept = ranked[: max(1, int((1 - setting.value) * len(alive) + 1e-9))]
        return [y for y in alive if y in kept]
    leader = max(alive, key=lambda y: (U[y], -alive.index(y)))
    distinct = list(dict.fromkeys(drawn))
    grouped = sorted(drawn, key=distinct.index)
    resamples = [
        list(itertools.chain.from_iterable([r] * int(c) for r, c in zip(grouped, row, strict=True)))
        for row in mbrace.Confidence().resamples(len(drawn), seed).counts()
    ]
    kept = []
    for y in alive:
        ahead = {r: u(y, r) - u(leader, r) for r in distinct}
        wins = sum(sum(map(ahead.__getitem__, resample)) >= -1e-9 for resample in resamples)
        if wins / 500 > 1 - setting.value + 1e-9:
            kept.append(y)
    return kept


def test_trials_are_the_naive_transcription(random_tables: Any) -> None:
    stored, values = random_tables
    found = trials_of(stored)
    for trial, (sentence, table) in itertools.product((0, 2), enumerate(stored)):
        seed = key(0, trial, "trial")
        u = lambda h, r: float(np.float32(values[h, r]))  # noqa: E731
        drawn = list(sample(table, seed, 16).pseudo_references)
        full = {h: np.mean([u(h, r) for r in table.draws]) for h in table.hypotheses}
        best = max(full.values())
        for place, setting in enumerate(SETTINGS):
            alive, calls, used = list(table.hypotheses), 0, 0
            for size in (16,) if setting == SETTINGS[0] else setting.schedule or SCHEDULE:
                if len(alive) == 1:
                    break
                calls += len(alive) * (size - used)
                used = size
                alive = alive if setting == SETTINGS[0] else naive_keep(u, alive, drawn[:size], setting, seed)
            U = [np.mean([u(y, r) for r in drawn[:used]]) for y in alive]
            prediction = alive[int(np.argmax(np.round(U, 9)))]
            expected = {
                "score": table.hypotheses.index(prediction),
                "accuracy": full[prediction] >= best - 1e-9,
                "rr": 1 / sum(value >= full[prediction] - 1e-9 for value in full.values()),
                "lost": (best - full[prediction]) / np.std(list(full.values())),
                "choice": table.hypotheses.index(prediction),
                "utility_calls": calls,
                "pseudo_references": used,
            }
            for name, value in expected.items():
                assert found.measures[name][place, sentence, trial] == pytest.approx(value, abs=1e-6), (name, setting)
            if setting in ALPHA_SETTINGS:
                assert found.survivors[ALPHA_SETTINGS.index(setting), sentence, trial, -1] == len(alive)
        winners = [h for h in table.hypotheses if full[h] >= best - 1e-9]
        for (at, size), (column, alpha) in itertools.product(enumerate(SIZES), enumerate(ALPHAS)):
            kept = naive_keep(u, list(table.hypotheses), drawn[:size], Setting("alpha", alpha), seed)
            lost = not set(winners) & set(kept)
            assert found.pruned[at, column, sentence, trial] == lost


def stub(expected: list[float], human: list[float]) -> Any:
    return SimpleNamespace(expected=np.array(expected), human=np.array(human))


@pytest.mark.parametrize(
    ("expected", "choice", "accuracy", "rr", "strict_rr"),
    [
        ([7, 5, 3, 3, 1], 0, 1, 1, 1),
        ([7, 5, 3, 3, 1], 1, 0, 1 / 2, 1 / 2),
        ([7, 5, 3, 3, 1], 2, 0, 1 / 4, 1 / 3),
        ([7, 5, 3, 3, 1], 3, 0, 1 / 4, 1 / 4),
        ([7, 5, 3, 3, 1], 4, 0, 1 / 5, 1 / 5),
        # either of two equal winners is accurate and has rank two; by sorting, the first is best
        ([6, 1, 6], 0, 1, 1 / 2, 1),
        ([6, 1, 6], 2, 1, 1 / 2, 1 / 2),
    ],
)
def test_accuracy_and_reciprocal_rank_by_hand(
    expected: list[float], choice: int, accuracy: float, rr: float, strict_rr: float
) -> None:
    found = measure(stub(expected, [10, 20, 30, 40, 50]), choice)
    mean = sum(expected) / len(expected)
    spread = math.sqrt(sum((value - mean) ** 2 for value in expected) / len(expected))
    assert found.pop("lost") == pytest.approx((max(expected) - expected[choice]) / spread)
    strict = {"strict_accuracy": strict_rr == 1, "strict_rr": strict_rr}
    assert found == {"score": 10.0 * (choice + 1), "accuracy": accuracy, "rr": rr} | strict


def test_a_trial_draws_without_replacement_and_by_its_own_seed(random_tables: Any) -> None:
    table = random_tables[0][0]
    one, again, other = (list(sample(table, seed, 24).pseudo_references) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert sorted(one) == sorted(other) == sorted(table.draws)


def test_neither_workers_nor_the_order_of_sentences_nor_a_file_change_a_number(
    random_tables: Any, tmp_path: Path
) -> None:
    stored = random_tables[0]
    alone = trials_of(stored)
    backwards = trials_of(stored[::-1])
    spread = trials_of([Table(table.record, table.values) for table in stored], workers=2, chunk=3)
    spread.about = {"name": "x", "references": True}
    spread.save(tmp_path / "x.npz")
    back = Outcomes.load(tmp_path / "x.npz")
    assert (back.settings, back.sizes, back.about) == (alone.settings, alone.sizes, spread.about)
    for name in MEASURES:
        np.testing.assert_array_equal(alone.measures[name], backwards.measures[name][:, ::-1])
        np.testing.assert_array_equal(alone.measures[name], back.measures[name])
    np.testing.assert_array_equal(alone.pruned, back.pruned)
    np.testing.assert_array_equal(alone.survivors, back.survivors)


def test_a_resumed_table_equals_an_uninterrupted_one(tmp_path: Path, five_rows: list[dict[str, Any]]) -> None:
    part = CandidateFile.from_path(str(write_candidates(tmp_path / "a.jsonl", five_rows)))
    asked: list[str] = []

    def counted(hypothesis: str, reference: str) -> float:
        asked.append(hypothesis)
        if len(asked) == limit:
            raise KeyboardInterrupt
        return overlap(hypothesis, reference)

    limit = -1
    utility = mbrace.Pairwise(counted, name="overlap")
    whole = [np.array(table.stored) for table in tables(part, part.records(), utility, tmp_path / "whole", window=2)]
    calls = len(asked)
    asked.clear()
    limit = calls // 2
    with pytest.raises(KeyboardInterrupt):
        tables(part, part.records(), utility, tmp_path / "cut", window=2)
    limit = -1
    asked.clear()
    stored = tables(part, part.records(), utility, tmp_path / "cut", window=2)
    for one, other in zip(whole, stored, strict=True):
        np.testing.assert_array_equal(one, np.array(other.stored))
    assert 0 < len(asked) < calls  # what was there before was not computed again


def test_stored_utilities_are_the_utility_itself(tmp_path: Path, five_rows: list[dict[str, Any]]) -> None:
    part = CandidateFile.from_path(str(write_candidates(tmp_path / "a.jsonl", five_rows)))
    utility = mbrace.ChrF()
    stored = tables(part, part.records(), utility, tmp_path / "tables")
    replay = mbrace.Replay(stored, name="x", schedule=(16,))
    hypotheses = [row["hypotheses"][3] for row in five_rows]
    references = [row["pseudo_references"][-1] for row in five_rows]
    np.testing.assert_array_equal(replay.pairs(hypotheses, references), utility.pairs(hypotheses, references))
    human = [table.human[table.rows[h]] for table, h in zip(stored, hypotheses, strict=True)]
    given = utility.pairs(hypotheses, [row["reference"] for row in five_rows])
    np.testing.assert_array_equal(np.float32(human), given)
    raced = mbrace.decode_corpus(part.records(), utility=utility, schedule=(8, 32), shuffle=False)
    replayed = mbrace.decode_corpus(part.records(), utility=replay, schedule=(8, 32), shuffle=False)
    assert list(raced) == list(replayed)


@pytest.mark.parametrize(
    ("path", "name", "split"),
    [
        ("de-en.valid.jsonl.xz", "de-en", "valid"),
        ("tr-en.test.jsonl.gz", "tr-en", "test"),
        ("multi30k.de-en.jsonl", "multi30k.de-en", "all"),
    ],
)
def test_a_file_name_says_pair_and_split(tmp_path: Path, path: str, name: str, split: str) -> None:
    (tmp_path / path).write_bytes(b"")
    part = CandidateFile.from_path(str(tmp_path / path))
    assert (part.name, part.split) == (name, split)


def test_schedules_grow_by_their_factor_and_end_with_the_last_size() -> None:
    assert studies.growing(16, 2, 256) == mbrace.doubling(16, 256)
    assert studies.growing(64, 1.5, 256) == (64, 96, 144, 216, 256)
    assert studies.growing(4, 4, 256) == (4, 16, 64, 256)


def made_up() -> Outcomes:
    """Outcomes in which everything has reciprocal rank 0.8 and costs 1000 calls, until a test says otherwise."""
    found = outcomes_of(TRADEOFF, 40, 3, value=0.8)
    found.measures["utility_calls"][:] = 1000
    return found


def test_alpha_is_compared_with_the_line_between_betas_at_its_own_calls() -> None:
    found = made_up()

    def put(setting: Setting, calls: float, accuracy: float) -> None:
        place = found.settings.index(setting)
        found.measures["utility_calls"][place], found.measures["accuracy"][place] = calls, accuracy

    for place, beta in enumerate((0.0, *BETAS)):  # from 2000 calls and 0.8 down to 100 calls and 0.04
        put(Setting("beta", beta), 2000 - 100 * place, 0.8 - 0.04 * place)
    put(Setting("alpha", 0.8), 50, 1.0)  # no beta makes so few calls
    put(Setting("alpha", 0.9), 150, 0.5)  # the betas' line is at 0.06
    put(Setting("alpha", 0.95), 1000, 0.4)
    put(Setting("alpha", 0.98), 1500, 0.5)  # 0.6
    rows = [row for row in studies.alpha_over_beta(found) if row["measure"] == "accuracy"]
    assert [row["alpha"] for row in rows] == [0.9, 0.95, 0.98, 0.99]
    assert [row["difference"] for row in rows[:3]] == pytest.approx([0.44, 0, -0.1])
    assert [row["low"] for row in rows[:3]] == pytest.approx([0.44, 0, -0.1])  # all sentences are alike


def test_survivors_have_their_mean_and_quartiles() -> None:
    found = made_up()
    found.survivors[:] = np.array([1, 11, 21])[:, None]  # hypotheses in the three trials
    row = studies.survivors(found)[0]
    assert (row["mean"], row["q25"], row["median"], row["q75"]) == (11, 1, 11, 21)


def test_a_trade_off_ends_where_it_is_cut_and_has_intervals_of_the_difference() -> None:
    rows = [
        {"utility": "chrF++", "rule": rule, "value": value, "utility_calls": calls, "accuracy": accuracy}
        | {"pseudo_references": 200.4, "accuracy_minus_standard_low": low, "accuracy_minus_standard_high": high}
        for rule, value, calls, accuracy, low, high in (
            ("beta", 0.0, 65000, 0.75, 0, 0),
            ("alpha", 0.9, 5000, 0.65, -0.12, -0.08),
            ("alpha", 0.99, 10000, 0.74, -0.02, 0.005),
            ("beta", 0.5, 15900, 0.75, -0.01, 0.01),
            ("beta", 0.4, 16100, 0.75, -0.01, 0.01),
        )
    ]
    chart = figures.tradeoff(rows, "accuracy")
    assert chart["x"]["high"] == 1.6 * 10000
    alpha, beta = chart["series"]
    assert [point["label"] for point in alpha["points"]] == ["0.9", "0.99"]
    assert [point["label"] for point in beta["points"]] == ["0.5"]  # 0.4 makes more calls than 16,000
    more = {"label": "0.9", "more": "200 pseudo-references"}
    assert alpha["points"][0] == {"x": 5000.0, "y": 0.65, "low": 0.63, "high": 0.67, **more}
    assert chart["lines"] == [{"y": 0.75, "name": "standard MBR, 65,000 calls"}]


@pytest.mark.parametrize(
    ("notes", "shown"),
    [
        ("## What it says\n\nA **word**.\n", ("What it says", "<p>A <strong>word</strong>.</p>\n")),
        ("Only words <b>.\n", ("Notes", "<p>Only words &lt;b&gt;.</p>\n")),
        ("", None),
        (" \n", None),
        ("## A title alone\n", None),
    ],
)
def test_notes_are_shown_under_their_own_title(notes: str, shown: tuple[str, str] | None) -> None:
    found = report.shown_notes(notes)
    assert found == (None if shown is None else {"title": shown[0], "text": shown[1]})


def test_the_paper_tables_add_up() -> None:
    for phases in claims.TABLE_2.values():
        assert sum(phases.values()) == pytest.approx(2 * phases["total"], abs=0.011)
    assert (
        claims.paper_table_1("en-et", "learned", "alpha=0.9", "utility_calls") == 2250
    )  # 3.5% of standard, says section 4.2
    assert 2250 / claims.TABLE_1["COMET"]["utility_calls"][3] == pytest.approx(0.035, abs=0.0005)
    assert claims.paper_table_1("multi30k.de-en", "chrF++", "beta=0", "score") is None
