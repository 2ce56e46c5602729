"""Races that stop by regret, whose one list is drawn live, and that run on one list: against naive transcriptions."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import overlap
from hypothesis import given
from hypothesis import strategies as st

import mbrace
from mbrace._native import Resamples
from mbrace.records import key
from mbrace.sampler import Draws

WORDS = ["a", "b", "c", "d", "e"]
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
texts = st.lists(sentences, min_size=1, max_size=10)
SCHEDULE = (2, 4, 8)


def totals(hypotheses: list[str], references: list[str], seed: int, bootstraps: int) -> np.ndarray:
    """(hypotheses, resamples): the mean utility of each in each resample. Equal references stand together."""
    distinct = list(dict.fromkeys(references))
    ordered = [text for text in distinct for _ in range(references.count(text))]
    counts = Resamples(key(seed, 0, "bootstrap"), len(ordered), bootstraps).counts()
    table = np.array([[np.float32(overlap(h, r)) for r in ordered] for h in hypotheses], dtype=np.float64)
    return table @ counts.T / len(ordered)


def naive_pool(
    hypotheses: list[str], references: list[str], *, alpha: float, regret: float, seed: int, bootstraps: int, pool: bool
) -> tuple[str, list[int], int, int]:
    """A pooled race, step by step: the answer, survivors of each step, utility calls and pairs scored."""
    alive = list(dict.fromkeys(hypotheses))
    raced, pruned, survivors, calls, pairs, before = set(alive), [], [], 0, 0, 0
    for size in SCHEDULE:
        if not (len(alive) > 1 or (pool and not survivors)) or before >= len(references):
            break
        drawn = references[:size]
        new = [text for text in dict.fromkeys(drawn) if text not in references[:before]]
        calls += len(alive) * (len(drawn) - before)
        pairs += len(alive) * len(new)
        newcomers = [text for text in new if text not in raced] if pool else []
        calls += len(newcomers) * len(drawn)
        pairs += len(newcomers) * len(set(drawn))
        alive, before = alive + newcomers, len(drawn)
        raced |= set(newcomers)
        sums = np.array([sum(float(np.float32(overlap(h, r))) for r in drawn) for h in alive])
        means = sums / len(drawn)
        leader = int(np.argmax(means))
        by_resample = totals(alive, drawn, seed, bootstraps)
        wins = (by_resample >= by_resample[leader] - 1e-9).sum(axis=1)
        keep = wins > int((1 - alpha) * bootstraps + 1e-9)
        keep[leader] = True
        spread = np.std(pruned + list(means))
        left = by_resample[keep]
        expected_regret = float(np.mean(left.max(axis=0) - by_resample[leader]))
        if regret > 0 and keep.sum() > 1 and expected_regret <= regret * spread:
            keep = np.arange(len(alive)) == leader
        pruned += list(means[~keep])
        alive = [text for text, stays in zip(alive, keep, strict=True) if stays]
        means = means[keep]
        survivors.append(len(alive))
    if not survivors:
        return alive[0], survivors, calls, pairs
    # Of equal ones: the first given, else the first drawn one by its text, whatever the order of the draws.
    given = list(dict.fromkeys(hypotheses))
    equal = [text for text, mean in zip(alive, means, strict=True) if mean == max(means)]
    best = min(equal, key=lambda text: (0, given.index(text), "") if text in given else (1, 0, text))
    return best, survivors, calls, pairs


@given(texts, texts, st.sampled_from([0.8, 0.99]), st.sampled_from([0.0, 0.05, 0.5]), st.booleans(), st.integers(0, 3))
def test_a_race_is_that_of_a_naive_transcription(
    h: list[str], r: list[str], alpha: float, regret: float, pool: bool, seed: int
) -> None:
    rule = mbrace.Confidence(alpha, bootstraps=60, regret=regret)
    h = [] if pool else h
    options: dict[str, Any] = {"utility": overlap, "schedule": SCHEDULE, "shuffle": False, "seed": seed, "pool": pool}
    found = mbrace.decode(h, r, prune=rule, **options)
    expected = naive_pool(h, r, alpha=alpha, regret=regret, seed=seed, bootstraps=60, pool=pool)
    assert (found.text, [step.survivors for step in found.steps]) == expected[:2]
    assert (found.utility_calls, found.pairs_scored) == expected[2:]
    if found.steps:
        assert found.strings == len({*h, *r[: found.pseudo_references]})
    assert found.index == (h.index(found.text) if found.text in h else None)
    # the same decisions where they are taken race by race
    one_by_one = mbrace.decode(h, r, prune=lambda standings: rule(standings), **options)
    assert (one_by_one.text, one_by_one.steps) == (found.text, found.steps)


def test_regret_by_hand() -> None:
    utilities = np.array([[3, 1], [1, 2]], dtype=np.float32)
    resamples = Resamples(5, 2, 100)
    counts = resamples.counts()
    both, first, second = (counts == 1).all(1).mean(), (counts[:, 0] == 2).mean(), (counts[:, 1] == 2).mean()
    assert both + first + second == 1
    # The first leads by mean (2 against 1.5). Only where the second reference was drawn twice is it worse: 1 against 2.
    once = np.ones(2, dtype=np.int64)
    assert resamples.regret(utilities, once, None, [0]) == pytest.approx(second * 1.0, rel=1e-4)
    assert resamples.regret(utilities, once, None, [1]) == pytest.approx(first * 2.0 + both * 0.5, rel=1e-4)
    assert resamples.regret(utilities, once, None, [0, 1]) == 0
    # With weights of .9 and .1 and both drawn: 2.8 against 1.1 (of the total weight).
    weights = np.array([0.9, 0.1])
    expected = first * 2 * 0.9 * 2.0 + both * (0.9 * 2 - 0.1 * 1)
    assert resamples.regret(utilities, once, weights, [1]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("nbest", [1, 2, 3])
def test_the_regret_of_a_list_is_that_of_its_hypotheses_on_average(nbest: int) -> None:
    rng = np.random.default_rng(nbest)
    utilities = rng.random((7, 12), dtype=np.float32)
    resamples = Resamples(1, 12, 300)
    by_resample = utilities.astype(float) @ resamples.counts().T / 12
    leaders = np.sort(np.argsort(-utilities.mean(1))[:nbest])
    best = np.sort(by_resample, axis=0)[-nbest:]
    expected = (best.sum(0) - by_resample[leaders].sum(0)).mean() / nbest
    found = resamples.regret(utilities, np.ones(12, dtype=np.int64), None, leaders.tolist())
    assert found == pytest.approx(expected, abs=1e-4)
    rule = mbrace.Confidence(0.999, regret=10.0)
    table = {(f"h{i}", f"r{j}"): float(utilities[i, j]) for i in range(7) for j in range(12)}
    answer = mbrace.decode(
        [f"h{i}" for i in range(7)],
        [f"r{j}" for j in range(12)],
        utility=lambda h, r: table[h, r],
        prune=rule,
        schedule=(4, 8, 12),
        nbest=nbest,
    )
    assert answer.steps[0].survivors == nbest  # so large a regret is allowed that the first step is the last
    assert len(answer.nbest) == nbest


@pytest.mark.parametrize("utility", [mbrace.ChrF(threads=1), overlap], ids=["native", "step by step"])
def test_regret_ends_the_race_for_a_list_of_the_best_too(utility: Any, demo_rows: list[dict]) -> None:
    rows, rule = demo_rows[:8], mbrace.Confidence(0.99, regret=0.5)
    for nbest in (1, 2, 3):
        found = [
            mbrace.decode(row["hypotheses"], row["pseudo_references"], utility=utility, prune=rule, nbest=nbest)
            for row in rows
        ]
        assert all(len(answer.nbest) == nbest for answer in found)
        for answer in found:  # never a step after only those that are listed are left
            assert all(step.survivors > nbest for step in answer.steps[:-1])
        assert min(answer.pseudo_references for answer in found) == 16


def test_hypotheses_that_are_all_alike_stop_at_once() -> None:
    best = mbrace.decode(["x", "y", "z"], ["r"] * 20, utility=lambda h, r: 0.5, prune=mbrace.Confidence(regret=0.01))
    assert (best.text, len(best.steps), best.utility) == ("x", 1, 0.5)


def test_the_order_of_draws_changes_no_bit_where_a_string_is_not_compared_with_itself() -> None:
    # By hand: x has (1e17 - 1e17 + 1) / 3. Added plainly, the 1 is lost wherever it comes between the large ones.
    others = {"a": 1e17, "b": -1e17, "c": 1.0, "x": 0.5}
    options: dict[str, Any] = {"prune": None, "schedule": "all", "exclude_self": True, "nbest": 9, "shuffle": False}
    for order in itertools.permutations("abcx"):
        best = mbrace.decode(list(order), utility=lambda h, r: others[r] if h == "x" else -1.0, **options)
        assert (best.text, best.utility) == ("x", pytest.approx(1 / 3)), order


def test_no_string_is_encoded_that_no_step_asked_for() -> None:
    encoded: list[str] = []

    class Noting:
        name, schedule, needs_source = "noting", (2, 4), False

        def pairs(self, hypotheses: Any, references: Any, sources: Any = None) -> np.ndarray:
            return np.array([overlap(h, r) for h, r in zip(hypotheses, references, strict=True)])

        def start(self, window: Any) -> Any:
            scorer = mbrace.Pairwise(overlap).start(window)
            plain = scorer.score

            def score(asks: Any) -> Any:
                for ask in asks:
                    encoded.extend(window[ask.sentence].hypotheses[i] for i in ask.hypotheses)
                    encoded.extend(ask.references)
                return plain(asks)

            scorer.score = score  # type: ignore[method-assign]
            return scorer

    references = ["a b", "a b", "c", "d", "e", "e a"]
    best = mbrace.decode([], references, utility=Noting(), prune=None, shuffle=False, pool=True)
    assert set(encoded) == {"a b", "c", "d"}
    assert best.strings == 3


@pytest.mark.parametrize("source", ["iterator", "function", "sampler"])
def test_one_list_is_drawn_live(source: str) -> None:
    """The same race, whatever draws: each draw becomes hypothesis and pseudo-reference, and regret stops it."""
    draws = [f"a {word}" for word in WORDS] * 6
    rest = iter(draws)

    class Sampler:
        def start(self, records: Any) -> Any:
            return SimpleNamespace(draw=lambda wants: [Draws(draws[w.first : w.first + w.count]) for w in wants])

    given: Any = {"iterator": iter(draws), "function": lambda n: list(itertools.islice(rest, n)), "sampler": None}[
        source
    ]
    options: dict[str, Any] = {"prune": mbrace.Confidence(0.9, regret=0.2), "schedule": (4, 8, 16), "pool": True}
    sampler = Sampler() if source == "sampler" else None
    (best,) = mbrace.decode_corpus([mbrace.Record([], given)], utility=overlap, sampler=sampler, **options)
    listed = mbrace.decode([], draws, utility=overlap, shuffle=False, **options)
    assert best == listed
    assert (best.index, best.steps[0].pseudo_references) == (None, 4)
    assert best.pseudo_references <= 16


def test_a_pool_has_no_hypotheses_and_other_races_have() -> None:
    best = mbrace.decode([], ["a b", "a c", "a"], utility=overlap, prune=None, pool=True)
    assert (best.text, best.index, best.pseudo_references) == ("a", None, 3)
    with pytest.raises(mbrace.UserError, match="pool: only valid without hypotheses"):
        mbrace.decode(["a"], ["a b"], utility=overlap, pool=True)
    with pytest.raises(mbrace.UserError, match="hypotheses: empty"):
        mbrace.decode([], ["a b"], utility=overlap)
