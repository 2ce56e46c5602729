"""Cascades: a cheap utility races first, and the dear one compares those that go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import mbrace
from mbrace import Record
from mbrace.prune import PruningFunction, Standings
from mbrace.sampler import Draws, Want

SCHEDULE = (4, 8, 16, 32)


class Case:
    """Random hypotheses (some twice), draws (many twice), and two tables with many ties."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.hypotheses = [f"h{number}" for number in rng.integers(0, 12, rng.integers(2, 20))]
        self.draws = [f"r{number}" for number in rng.integers(0, 14, rng.integers(3, 40))]
        noise = rng.integers(-8, 9, (2, 12, 14)) + 2 * rng.integers(-4, 5, (1, 12, 1))
        self.cheap, self.dear = (self._utility(values) for values in noise / 8)
        self.source = "s"

    @staticmethod
    def _utility(values: np.ndarray) -> Callable[[str, str], float]:
        def utility(hypothesis: str, reference: str) -> float:
            return float(values[int(hypothesis[1:]), int(reference[1:])])

        return utility


def naive_race(
    texts: Sequence[str],
    draws: Sequence[str],
    utility: Callable[[str, str], float],
    prune: PruningFunction | None,
    *,
    nbest: int,
    fewest: int,
) -> tuple[list[str], int, int]:
    """One pass by brute force: those left, best first, the calls, and the draws used."""
    alive, means, calls, used = list(texts), np.zeros(len(texts)), 0, 0
    for size in SCHEDULE if prune is not None else SCHEDULE[-1:]:
        if len(alive) <= fewest or used == len(draws):
            break
        calls += len(alive) * (min(size, len(draws)) - used)
        used = min(size, len(draws))
        drawn = draws[:used]
        distinct = list(dict.fromkeys(drawn))
        table = np.array([[utility(text, reference) for reference in distinct] for text in alive])
        counts = np.array([drawn.count(reference) for reference in distinct])
        means = np.array([sum(utility(text, reference) for reference in drawn) / used for text in alive])
        if prune is not None and len(alive) > nbest:
            weights = counts / used
            keep = np.array(prune(Standings(table, counts, weights, means.copy(), nbest=nbest, seed=0)))
            keep[np.argsort(-means, kind="stable")[:nbest]] = True
            alive, means = [text for text, stays in zip(alive, keep, strict=True) if stays], means[keep]
    order = np.argsort(-means, kind="stable")
    return [alive[row] for row in order], calls, used


def naive_cascade(case: Case, prune: PruningFunction | None, top: int | None, nbest: int) -> dict[str, Any]:
    """Two passes: the cheap utility over all, the dear one over what is left, in the caller's order."""
    texts = list(dict.fromkeys(case.hypotheses))
    fewest, left, coarse_calls, coarse_used = top or nbest, texts, 0, 0
    if len(texts) > fewest:
        found, coarse_calls, coarse_used = naive_race(texts, case.draws, case.cheap, prune, nbest=fewest, fewest=fewest)
        left = [text for text in texts if text in found[:top]]
    ranked, calls, used = naive_race(left, case.draws, case.dear, prune, nbest=nbest, fewest=1)
    drawn = max(used, coarse_used)
    raced = texts if coarse_used else left
    return {
        "nbest": [(text, case.hypotheses.index(text)) for text in ranked[:nbest]],
        "utility_calls": calls,
        "coarse_calls": coarse_calls,
        "pseudo_references": drawn,
        "strings": len({*raced, *case.draws[:drawn]}) if drawn else 0,
    }


def seen(answer: mbrace.Decoded) -> dict[str, Any]:
    return {
        "nbest": [(best.text, best.index) for best in answer.nbest],
        "utility_calls": answer.utility_calls,
        "coarse_calls": answer.coarse_calls,
        "pseudo_references": answer.pseudo_references,
        "strings": answer.strings,
    }


@pytest.mark.parametrize("prune", [None, mbrace.Confidence(0.9, 100), mbrace.Confidence(), mbrace.Bottom(0.3)])
@pytest.mark.parametrize(("top", "nbest"), [(None, 1), (None, 3), (1, 1), (3, 1), (4, 2)])
def test_a_cascade_is_two_races_one_after_the_other(prune: Any, top: int | None, nbest: int) -> None:
    if prune is None and top is None:
        return  # refused, see below
    for seed in range(40):
        case = Case(seed)
        found = mbrace.decode(
            case.hypotheses,
            case.draws,
            utility=case.dear,
            coarse=case.cheap,
            coarse_top=top,
            prune=prune,
            schedule=SCHEDULE,
            nbest=nbest,
            shuffle=False,
        )
        assert seen(found) == naive_cascade(case, prune, top, nbest), seed


def texts_and_draws(seed: int) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(seed)
    words = ["the", "a", "cat", "dog", "sat", "ran", "mat", "far"]
    strings = [" ".join(rng.choice(words, rng.integers(2, 6))) for _ in range(60)]
    return strings[: rng.integers(1, 24)], strings[20:]


@pytest.mark.parametrize("top", [None, 4])
def test_windows_and_threads_change_no_answer(top: int | None) -> None:
    records = [Record(*texts_and_draws(number), id=number) for number in range(11)]
    runs = []
    for threads, window in ((1, 64), (2, 64), (1, 1), (2, 3)):
        coarse, utility = mbrace.ChrF(threads=threads), mbrace.BLEU(threads=threads)
        runs.append(list(mbrace.decode_corpus(records, utility=utility, coarse=coarse, coarse_top=top, window=window)))
    assert all(run == runs[0] for run in runs)
    assert {each.coarse_calls for each in runs[0]} != {0}


class CountedDraws:
    """A live source with as many draws as a list has; counts how often each is drawn."""

    def __init__(self, case: Case) -> None:
        self._draws = case.draws
        self.numbers: list[tuple[str | int, int]] = []

    def start(self, records: Sequence[Record]) -> Any:
        outer = self

        class Drawer:
            def draw(self, wants: Sequence[Want]) -> list[Draws]:
                for want in wants:
                    end = min(want.first + want.count, len(outer._draws))
                    outer.numbers += [(records[want.sentence].id, number) for number in range(want.first, end)]
                return [Draws(outer._draws[want.first : want.first + want.count]) for want in wants]

        return Drawer()


@pytest.mark.parametrize("top", [None, 3])
def test_both_races_share_the_draws_of_a_live_source(top: int | None) -> None:
    for seed in range(20):
        case = Case(seed)
        record, sampler = Record(case.hypotheses), CountedDraws(case)
        # the same record several times; one that needs no race; one whose list is short enough
        records = [record, Record(["h1"], id=1), record, Record(["h3", "h1"], id=2)]
        options: dict[str, Any] = {"utility": case.dear, "coarse": case.cheap, "coarse_top": top, "schedule": SCHEDULE}
        found = list(mbrace.decode_corpus(records, sampler=sampler, **options))
        assert seen(found[0]) == naive_cascade(case, mbrace.Confidence(), top, 1), seed
        assert found[2] == found[0]
        assert max(sampler.numbers.count(number) for number in sampler.numbers) <= 2  # of a record that is there twice
        assert not any(identity == 1 for identity, _ in sampler.numbers)
        assert len(sampler.numbers) == sum(each.pseudo_references for each in found)


def test_iterators_and_functions_are_asked_once_for_both_races() -> None:
    for seed in range(10):
        case = Case(seed)
        options: dict[str, Any] = {"utility": case.dear, "coarse": case.cheap, "schedule": SCHEDULE}
        listed = mbrace.decode(case.hypotheses, case.draws, shuffle=False, **options)
        assert mbrace.decode(case.hypotheses, iter(case.draws), **options) == listed
        rest = iter(case.draws)

        def more(count: int, rest: Iterator[str] = rest) -> list[str]:
            return list(itertools.islice(rest, count))

        assert mbrace.decode(case.hypotheses, more, **options) == listed


def test_quality_first_then_the_coarse_utility() -> None:
    """The best by quality are the only ones that the coarse utility sees."""

    class Last:
        name, reads_references = "last", False

        def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> np.ndarray:
            return np.array([int(text[1:]) for text in hypotheses])

    for seed in range(20):
        case = Case(seed)
        distinct = list(dict.fromkeys(case.hypotheses))
        best = sorted(distinct, key=lambda text: -int(text[1:]))[:6]
        short = [text for text in distinct if text in best]
        options: dict[str, Any] = {"utility": case.dear, "coarse": case.cheap, "coarse_top": 3, "schedule": SCHEDULE}
        found = mbrace.decode(case.hypotheses, case.draws, source="s", qe=Last(), qe_top=6, **options)
        alone = mbrace.decode(short, case.draws, **options)
        assert (found.text, found.steps, found.coarse_calls) == (alone.text, alone.steps, alone.coarse_calls)
        assert (found.strings, found.index) == (alone.strings, case.hypotheses.index(found.text))
        assert found.quality_calls == (len(distinct) if len(distinct) > 6 else 0)


@pytest.mark.parametrize("choice", ["qe", "coarse"])
def test_a_sample_that_goes_on_is_still_not_compared_with_itself(choice: str) -> None:
    """One list, by hand: expected utilities without a string's own draw, over the whole list."""
    samples = ["a b c", "a b d", "x y z", "a b c d", "q"]

    def overlap(hypothesis: str, reference: str) -> float:
        return len(set(hypothesis.split()) & set(reference.split())) / 8

    class Ordered:
        name, reads_references = "ordered", False

        def quality(self, hypotheses: Sequence[str], sources: Sequence[str]) -> np.ndarray:
            return -np.arange(len(hypotheses))

    how: dict[str, Any] = {"qe": Ordered(), "qe_top": 3} if choice == "qe" else {"coarse": overlap, "coarse_top": 3}
    options: dict[str, Any] = {"utility": overlap, "exclude_self": True, "nbest": 3, "prune": None, "source": "s"}
    found = mbrace.decode(samples, schedule=[5], **options, **how)
    expected = {
        text: sum(overlap(text, other) for other in samples if other != text) / 4
        for text in (samples[:3] if choice == "qe" else [samples[0], samples[1], samples[3]])
    }
    assert {best.text: best.utility for best in found.nbest} == pytest.approx(expected)


def test_regret_ends_the_race_of_the_dear_utility_alone() -> None:
    for seed in range(10):
        case = Case(seed)
        options: dict[str, Any] = {"utility": case.dear, "coarse": case.cheap, "schedule": SCHEDULE}
        plain = mbrace.decode(case.hypotheses, case.draws, **options)
        hasty = mbrace.decode(case.hypotheses, case.draws, prune=mbrace.Confidence(regret=1e6), **options)
        assert hasty.coarse_calls == plain.coarse_calls
        assert len(hasty.steps) <= 1


def test_a_budget_is_for_the_dear_utility_alone() -> None:
    for seed in range(10):
        case = Case(seed)
        options: dict[str, Any] = {"utility": case.dear, "coarse": case.cheap, "coarse_top": 3, "schedule": SCHEDULE}
        plain = mbrace.decode(case.hypotheses, case.draws, **options)
        halved = mbrace.decode(case.hypotheses, case.draws, prune=mbrace.Halving(12), **options)
        assert halved.coarse_calls == plain.coarse_calls
        assert halved.utility_calls <= 12


def test_a_failing_coarse_utility_costs_no_other_record() -> None:
    def picky(hypothesis: str, reference: str) -> float:
        return float("nan") if reference == "bad" else len(hypothesis)

    records = [Record(["a", "bb", "ccc"], ["bad" if number == 1 else "good"], id=number) for number in range(3)]
    failed: list[str] = []
    answers = mbrace.decode_corpus(
        records, coarse=picky, coarse_top=2, on_error=lambda record, error: failed.append(str(error))
    )
    assert [each.id for each in answers] == [0, 2]
    assert len(failed) == 1
    assert "record 1: utility picky returned nan" in failed[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coarse_top": 3}, "coarse_top: only valid with coarse"),
        ({"coarse": mbrace.ChrF(), "coarse_top": 0}, "coarse_top 0: must be 1 or more"),
        ({"coarse": mbrace.ChrF(), "coarse_top": 2.5}, "coarse_top 2.5: must be a whole number"),
        ({"coarse": mbrace.ChrF(), "coarse_top": 2, "nbest": 3}, r"coarse_top 2: .* at least nbest \(3\)"),
        ({"coarse": mbrace.ChrF(), "prune": None}, "coarse: rules nothing out without pruning; give coarse_top"),
        ({"coarse": mbrace.ChrF(), "pool": True}, "coarse: only valid without pool"),
        ({"coarse": 3}, "utility 3: give a utility such as"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mbrace.UserError, match=message):
        mbrace.decode(["a", "b"], ["c"], **options)
