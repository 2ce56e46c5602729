"""Races into which a forecast lets hypotheses: against the naive race, and what the utility never sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import overlap
from naive_race import STARTERS, NaiveRace
from test_forecast import NaiveForecast, sentences

import mbrace
from mbrace.prune import Standings

SCHEDULE = (4, 8, 16, 32)


def above_average(standings: Standings) -> Any:
    """A pruning function of a user."""
    return standings.means >= standings.means.mean()


CASES = [
    *((mbrace.Confidence(0.99, bootstraps=100), SCHEDULE, 1, 0.01, seed) for seed in range(3)),
    *((mbrace.Confidence(0.9, bootstraps=100, regret=0.04), SCHEDULE, 1, 0.01, seed) for seed in range(3)),
    (mbrace.Confidence(0.8, bootstraps=50, regret=0.5), SCHEDULE, 1, 0.002, 3),  # one is left, and others are let in
    (mbrace.Confidence(0.99, bootstraps=100), (8,), 1, 0.01, 4),  # all draws at once
    (mbrace.Confidence(0.9, bootstraps=100, regret=0.02), SCHEDULE, 3, 0.01, 5),
    (mbrace.Confidence(0.9, bootstraps=100), SCHEDULE, 30, 0.01, 6),  # more than race from the start otherwise
    (mbrace.Confidence(0.99, bootstraps=100), (8, 16, 32, 64, 128), 1, 0.01, 7),  # the draws run out
    (mbrace.Bottom(0.5), SCHEDULE, 1, 0.01, 8),
    (mbrace.Bottom(0.9), SCHEDULE, 2, 0.05, 9),
    (above_average, SCHEDULE, 1, 0.01, 10),
    (lambda standings: standings.means < 0, SCHEDULE, 1, 0.001, 11),  # only the best stays
]


def lists(seed: int) -> tuple[list[str], list[str]]:
    """70 hypotheses, some twice, and 40 draws, some of them repeated, some hypotheses too."""
    texts = sentences(100, seed)
    chance = np.random.default_rng(seed)
    hypotheses = [*texts[:60], *(texts[i] for i in chance.integers(60, size=10))]
    order = chance.permutation(len(hypotheses)).tolist()
    return [hypotheses[i] for i in order], [texts[50 + i] for i in chance.integers(50, size=40)]


def naive_race(hypotheses: list[str], references: list[str], utility: Any = overlap, **options: Any) -> NaiveRace:
    plain = {"schedule": SCHEDULE, "nbest": 1, "seed": 0, "pool": False, "shuffle": False, "cover": False}
    record = mbrace.Record(hypotheses, references)
    return NaiveRace(record, utility, SCHEDULE, plain | {"exclude_self": False} | options)


def test_races_are_the_naive_ones() -> None:
    let_in, reduced_to_one_and_went_on = 0, 0
    for prune, schedule, nbest, least, seed in CASES:
        hypotheses, references = lists(seed)
        seen: list[tuple[str, str]] = []

        def noting(hypothesis: str, reference: str, seen: list[tuple[str, str]] = seen) -> float:
            seen.append((hypothesis, reference))
            return overlap(hypothesis, reference)

        options: dict[str, Any] = {
            "prune": prune,
            "schedule": schedule,
            "nbest": nbest,
            "seed": seed,
            "forecast": least,
        }
        found = mbrace.decode(
            hypotheses, references, utility=mbrace.Pairwise(noting, source=False), shuffle=False, **options
        )
        naive = naive_race(hypotheses, references, **options)
        assert [tuple(step) for step in found.steps] == naive.steps
        assert [(each.text, each.index, each.utility) for each in found.nbest] == naive.nbest_list
        assert found.pseudo_references == naive.used
        # The utility is asked about each pair once, and never about a hypothesis that was not let in.
        assert len(seen) == len(set(seen)) == found.pairs_scored
        assert {hypothesis for hypothesis, _ in seen} == naive.raced
        assert found.strings == len({text for pair in seen for text in pair})
        let_in += STARTERS < len(naive.raced) < 60
        reduced_to_one_and_went_on += 1 in [step.survivors for step in found.steps[:-1]]
    assert let_in > len(CASES) / 2
    assert reduced_to_one_and_went_on > 0


@pytest.mark.parametrize("seed", range(4))
def test_utilities_of_which_later_ones_are_much_larger(seed: int) -> None:
    hypotheses, references = lists(seed)
    late = set(references[SCHEDULE[1] :])

    def growing(hypothesis: str, reference: str) -> float:
        return overlap(hypothesis, reference) * (2.0**10 if reference in late else 1.0)

    options: dict[str, Any] = {"prune": mbrace.Bottom(0.3), "schedule": SCHEDULE, "forecast": 0.01}
    found = mbrace.decode(hypotheses, references, utility=growing, shuffle=False, **options)
    naive = naive_race(hypotheses, references, growing, **options)
    assert (found.text, [tuple(step) for step in found.steps]) == (naive.nbest_list[0][0], naive.steps)


class Watched:
    """A utility that notes at every call which hypotheses it could have looked at."""

    name, schedule, needs_source = "watched", SCHEDULE, False

    def __init__(self) -> None:
        self.visible: set[str] = set()
        self.asked: set[str] = set()

    def pairs(self, hypotheses: Any, references: Any, sources: Any = None) -> Any:
        raise AssertionError("a race asks for tables")

    def start(self, window: Any) -> Any:
        scorer = mbrace.Pairwise(overlap).start(window)
        plain = scorer.score
        self.visible |= set(window[0].hypotheses)

        def score(asks: Any) -> Any:
            self.visible |= set(window[0].hypotheses)
            self.asked |= {window[0].hypotheses[row] for ask in asks for row in ask.hypotheses}
            return plain(asks)

        scorer.score = score
        return scorer


def test_a_utility_cannot_look_at_those_who_were_not_let_in() -> None:
    hypotheses, references = lists(1)
    watched = Watched()
    mbrace.decode(hypotheses, references, utility=watched, schedule=SCHEDULE, forecast=0.01)
    assert watched.visible == watched.asked < set(hypotheses)


def test_of_equal_ones_the_callers_first_wins_though_it_was_let_in_late() -> None:
    texts = sentences(60, 2)
    starters = set(NaiveForecast(texts).start(STARTERS))
    late = next(row for row in range(60) if row not in starters)
    early = max(starters)
    assert late < early
    value = {text: 0.5 + 0.01 * np.sin(row) for row, text in enumerate(texts)}
    value |= {texts[late]: 2.0, texts[early]: 2.0}
    utility = mbrace.Pairwise(lambda hypothesis, reference: value[hypothesis])
    best = mbrace.decode(texts, ["r"] * 32, utility=utility, forecast=1e-9, prune=mbrace.Bottom(0.01), nbest=2)
    assert [each.index for each in best.nbest] == [late, early]


def test_up_to_as_many_as_race_from_the_start_it_is_the_race_without_a_forecast() -> None:
    hypotheses, references = sentences(STARTERS, 0), sentences(40, 1)
    options: dict[str, Any] = {"utility": overlap, "schedule": SCHEDULE}
    assert mbrace.decode(hypotheses, references, forecast=0.01, **options) == mbrace.decode(
        hypotheses, references, **options
    )


def test_an_n_best_list_is_as_long_as_without_a_forecast() -> None:
    hypotheses, references = lists(3)
    for nbest in (STARTERS, STARTERS + 1, 59, 60, 99):
        options: dict[str, Any] = {"utility": overlap, "schedule": SCHEDULE, "nbest": nbest}
        found = mbrace.decode(hypotheses, references, forecast=0.01, **options)
        assert len({each.text for each in found.nbest}) == min(nbest, len(set(hypotheses)))


def test_equal_log_probabilities_change_nothing() -> None:
    hypotheses, references = lists(4)
    references = list(dict.fromkeys(references))
    options: dict[str, Any] = {"utility": overlap, "schedule": SCHEDULE, "forecast": 0.01}
    weighted = mbrace.decode(hypotheses, references, logprobs=[-2.0] * len(references), **options)
    plain = mbrace.decode(hypotheses, references, **options)
    assert (weighted.text, weighted.steps, weighted.strings) == (plain.text, plain.steps, plain.strings)
