"""Races into which a forecast lets hypotheses: against a naive transcription, and what the utility never sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conftest import overlap
from test_forecast import NaiveForecast, sentences

import mbrace
from mbrace.prune import PruningFunction, Standings

STARTERS, AT_ONCE = 24, 16
SCHEDULE = (4, 8, 16, 32)


class Naive:
    """One race, step by step, in the words of the paper and of `mbrace.forecast`."""

    utility = staticmethod(overlap)

    def __init__(self, hypotheses: Sequence[str], references: Sequence[str], least: float, nbest: int) -> None:
        self.texts, self.references, self.least, self.nbest = list(dict.fromkeys(hypotheses)), references, least, nbest
        starters = max(STARTERS, nbest)
        self.forecast = NaiveForecast(self.texts) if len(self.texts) > starters else None
        self.raced = self.forecast.start(starters) if self.forecast else list(range(len(self.texts)))
        self.alive, self.called = list(self.raced), list[int]()
        self.known: dict[int, float] = {}  # expected utilities, of those pruned as moved since
        self.drawn, self.exhausted = 0, False
        self.survivors, self.pruned, self.calls, self.pairs = list[int](), list[float](), 0, 0
        self.means: list[float] = []

    def run(self, schedule: Sequence[int], prune: PruningFunction, seed: int) -> None:
        sizes = iter(schedule)
        while self._needs_draws() or self.called:
            size = next(sizes, None)
            if size is None and not self.called:
                return
            wanted = size - self.drawn if size is not None and self._needs_draws() else 0
            new = self.references[self.drawn : self.drawn + wanted]
            self.exhausted |= len(new) < wanted
            if new or not wanted:
                self._step(new, prune, seed)

    def _needs_draws(self) -> bool:
        return len(self.alive) > 1 and not self.exhausted

    def _step(self, new: Sequence[str], prune: PruningFunction, seed: int) -> None:
        before = set(self.references[: self.drawn])
        self.drawn += len(new)
        drawn = self.references[: self.drawn]
        self.calls += len(self.alive) * len(new) + len(self.called) * len(drawn)
        self.pairs += len(self.alive) * len(set(new) - before) + len(self.called) * len(set(drawn))
        self.alive, self.raced, self.called = self.alive + self.called, self.raced + self.called, []
        columns = list(dict.fromkeys(drawn))
        counts = np.array([drawn.count(text) for text in columns])
        table = np.array([[self.utility(self.texts[row], text) for text in columns] for row in self.alive])
        self.means = [math.fsum(line) / len(drawn) for line in table * counts]
        self._look()
        standings = Standings(
            table, counts, counts / len(drawn), np.array(self.means), self.nbest, seed=0, run_seed=seed,
            spread=float(np.std(self.pruned + self.means)),
        )  # fmt: skip
        keep = np.ones(len(self.alive), dtype=bool)
        if len(self.alive) > self.nbest:
            keep = prune(standings)
            keep[np.argsort(-np.array(self.means), kind="stable")[: self.nbest]] = True
        self.pruned += [mean for mean, stays in zip(self.means, keep, strict=True) if not stays]
        self.alive = [row for row, stays in zip(self.alive, keep, strict=True) if stays]
        self.means = [mean for mean, stays in zip(self.means, keep, strict=True) if stays]
        self.survivors.append(len(self.alive))

    def _look(self) -> None:
        if self.forecast is None:
            return
        now = dict(zip(self.alive, self.means, strict=True))
        both = now.keys() & self.known.keys()
        moved = sum(now[row] - self.known[row] for row in both) / len(both) if both else 0.0
        self.known = {row: now[row] if row in now else self.known[row] + moved for row in self.raced}
        rival = sorted(self.means)[-self.nbest]
        if len(set(self.known.values())) > 1:
            self.called = self.forecast.next(list(self.known.values()), rival, self.least, AT_ONCE)

    def ranking(self) -> list[str]:
        """The n best; of equal ones the caller's first."""
        order = sorted(zip(self.means, self.alive, strict=True), key=lambda each: (-each[0], each[1]))
        return [self.texts[row] for _, row in order[: self.nbest]]


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


@pytest.mark.parametrize(("prune", "schedule", "nbest", "least", "seed"), CASES)
def test_a_race_is_that_of_a_naive_transcription(
    prune: PruningFunction, schedule: Sequence[int], nbest: int, least: float, seed: int
) -> None:
    hypotheses, references = lists(seed)
    seen: dict[tuple[str, str], int] = {}

    def noting(hypothesis: str, reference: str) -> float:
        seen[hypothesis, reference] = seen.get((hypothesis, reference), 0) + 1
        return overlap(hypothesis, reference)

    found = mbrace.decode(
        hypotheses, references, utility=noting, prune=prune, schedule=schedule, nbest=nbest, forecast=least,
        seed=seed, shuffle=False,
    )  # fmt: skip
    naive = Naive(hypotheses, references, least, nbest)
    naive.run(schedule, prune, seed)
    assert [step.survivors for step in found.steps] == naive.survivors
    assert [each.text for each in found.nbest] == naive.ranking()
    assert [each.index for each in found.nbest] == [hypotheses.index(text) for text in naive.ranking()]
    assert (found.utility_calls, found.pairs_scored) == (naive.calls, naive.pairs)
    assert found.pseudo_references == naive.drawn
    # The utility is asked about each pair once, and never about a hypothesis that was not let in.
    assert sum(seen.values()) == len(seen) == found.pairs_scored
    assert {hypothesis for hypothesis, _ in seen} == {naive.texts[row] for row in naive.raced}
    assert found.strings == len({text for pair in seen for text in pair})


def test_the_cases_let_some_in_and_leave_some_out() -> None:
    """So that the test above can fail."""
    raced, pruned_to_one_and_went_on = [], 0
    for prune, schedule, nbest, least, seed in CASES:
        naive = Naive(*lists(seed), least, nbest)
        naive.run(schedule, prune, seed)
        raced.append(len(naive.raced))
        pruned_to_one_and_went_on += 1 in naive.survivors[:-1]
    assert sum(STARTERS < count < 60 for count in raced) > len(CASES) / 2, raced
    assert pruned_to_one_and_went_on > 0


class Listed:
    """A live source of pseudo-references: a list."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def start(self, records: Any) -> Listed:
        return self

    def draw(self, wants: Any) -> Any:
        return [mbrace.Draws(self._texts[want.first : want.first + want.count]) for want in wants]


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


@pytest.mark.parametrize("seed", range(4))
def test_utilities_of_which_later_ones_are_much_larger(seed: int) -> None:
    hypotheses, references = lists(seed)
    late = set(references[SCHEDULE[1] :])

    def growing(hypothesis: str, reference: str) -> float:
        return overlap(hypothesis, reference) * (2.0**10 if reference in late else 1.0)

    naive, prune = Naive(hypotheses, references, 0.01, 1), mbrace.Bottom(0.3)
    naive.utility = growing  # type: ignore[method-assign]
    naive.run(SCHEDULE, prune, 0)
    found = mbrace.decode(
        hypotheses, references, utility=growing, prune=prune, schedule=SCHEDULE, forecast=0.01, shuffle=False
    )
    assert (found.text, found.utility_calls) == (naive.ranking()[0], naive.calls)
    assert [step.survivors for step in found.steps] == naive.survivors


def test_equal_log_probabilities_change_nothing() -> None:
    hypotheses, references = lists(4)
    references = list(dict.fromkeys(references))
    options: dict[str, Any] = {"utility": overlap, "schedule": SCHEDULE, "forecast": 0.01}
    weighted = mbrace.decode(hypotheses, references, logprobs=[-2.0] * len(references), **options)
    plain = mbrace.decode(hypotheses, references, **options)
    assert (weighted.text, weighted.steps, weighted.strings) == (plain.text, plain.steps, plain.strings)
