"""Sequential halving under a budget of utility calls: against a transcription of the paper's algorithm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from conftest import overlap
from hypothesis import given
from hypothesis import strategies as st

import mbrace

WORDS = ["a", "b", "c", "d", "e"]
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
texts = st.lists(sentences, min_size=1, max_size=24)


def naive_halving(hypotheses: list[str], references: list[str], budget: int, nbest: int) -> tuple[list[str], int]:
    """Correlated sequential halving over references in their order: the n best of those left, and utility calls.

    Algorithm 1 of Baharav and Tse (2019) as AMBR uses it: references are drawn without replacement; all so far count.
    """
    alive = list(dict.fromkeys(hypotheses))
    rounds = max(1, math.ceil(math.log2(len(alive) / nbest)))
    used, calls, means = 0, 0, [0.0] * len(alive)
    if 1 < len(alive) <= nbest:  # nobody to drop: the budget orders the list
        used = min(budget // len(alive), len(references))
        calls = used * len(alive)
        means = [math.fsum(overlap(h, r) for r in references[:used]) / used for h in alive]
    for _ in range(rounds):
        pulls = max(1, math.floor(budget / (len(alive) * rounds)))
        while pulls * len(alive) + calls > budget:
            pulls -= 1
        pulls = min(pulls, len(references) - used)
        if pulls < 1 or len(alive) <= nbest:
            break
        used, calls = used + pulls, calls + pulls * len(alive)
        means = [math.fsum(overlap(h, r) for r in references[:used]) / used for h in alive]
        ranked = sorted(range(len(alive)), key=lambda i: -means[i])
        stay = sorted(ranked[: max(nbest, math.ceil(len(alive) / 2))])
        alive, means = [alive[i] for i in stay], [means[i] for i in stay]
    ranked = sorted(range(len(alive)), key=lambda i: -means[i])
    return [alive[i] for i in ranked[:nbest]], calls


@given(texts, texts, st.integers(1, 300), st.integers(1, 4))
def test_halving_is_that_of_a_naive_transcription(h: list[str], r: list[str], budget: int, nbest: int) -> None:
    budget = max(budget, len(set(h)))
    options: dict[str, Any] = {"utility": overlap, "shuffle": False, "schedule": "all", "nbest": nbest}
    found = mbrace.decode(h, r, prune=mbrace.Halving(budget), **options)
    best, calls = naive_halving(h, r, budget, nbest)
    assert ([each.text for each in found.nbest], found.utility_calls) == (best, calls)
    assert found.utility_calls <= budget


def records(count: int) -> list[mbrace.Record]:
    rng = np.random.default_rng(5)

    def some(size: int) -> list[str]:
        return [" ".join(rng.choice(WORDS, 6)) for _ in range(size)]

    return [mbrace.Record(some(20 + i), some(40), id=i) for i in range(count)]


def test_more_calls_than_the_table_has_is_standard_mbr() -> None:
    one = records(1)[0]
    found = mbrace.decode(one.hypotheses, one.pseudo_references, prune=mbrace.Halving(10**6))
    standard = mbrace.decode(one.hypotheses, one.pseudo_references, prune=None)
    assert (found.text, found.utility, found.utility_calls) == (standard.text, standard.utility, standard.utility_calls)


def test_a_schedule_limits_the_draws() -> None:
    one = records(1)[0]
    found = mbrace.decode(one.hypotheses, one.pseudo_references, prune=mbrace.Halving(10**6), schedule=[4, 8])
    assert found.pseudo_references == 8
