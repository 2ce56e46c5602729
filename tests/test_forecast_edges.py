"""Forecasts at the edges: numbers of every size, windows and threads, shortlists, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from conftest import overlap
from test_forecast_race import CASES, SCHEDULE, STARTERS, lists

import mbrace
from mbrace.sampler import Draws, Want


def decode(hypotheses: list[str], references: list[str], **options: Any) -> mbrace.Decoded:
    """A race in which a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return mbrace.decode(hypotheses, references, **{"schedule": SCHEDULE, "forecast": 0.01, **options})


@pytest.mark.parametrize("exponent", [1000, 500, -500, -1000])
@pytest.mark.parametrize("regret", [0.0, 0.05])
def test_the_size_of_utilities_changes_nothing(exponent: int, regret: float) -> None:
    """A power of two rounds nothing: every decision is the same."""
    hypotheses, references = lists(0)
    rule = mbrace.Confidence(regret=regret)
    plain = decode(hypotheses, references, utility=overlap, prune=rule)
    scaled = decode(hypotheses, references, utility=lambda h, r: overlap(h, r) * 2.0**exponent, prune=rule)
    assert (scaled.text, scaled.steps, scaled.strings) == (plain.text, plain.steps, plain.strings)
    assert plain.strings > STARTERS + len(
        set(references[: plain.pseudo_references]) - set(hypotheses)
    )  # some were let in


def test_negative_utilities_are_as_good_as_others() -> None:
    hypotheses, references = lists(0)
    # Eighths and their sums are exact, with and without 4 less.
    coarse = mbrace.Pairwise(lambda h, r: round(8 * overlap(h, r)) / 8)
    less = mbrace.Pairwise(lambda h, r: round(8 * overlap(h, r)) / 8 - 4)
    plain, lower = (decode(hypotheses, references, utility=utility) for utility in (coarse, less))
    assert (lower.text, lower.steps) == (plain.text, plain.steps)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7.3, 1e300, 1e-300, 5e-324, -1.7e308])
def test_where_all_are_equal_nobody_is_let_in(value: float) -> None:
    hypotheses, references = lists(0)
    best = decode(hypotheses, references, utility=lambda h, r: value)
    assert (best.text, best.utility) == (hypotheses[0], pytest.approx(value))
    assert best.utility_calls == STARTERS * 32


def test_utilities_from_one_end_of_the_doubles_to_the_other() -> None:
    hypotheses, references = lists(0)
    sizes = [1.7e308, -1.7e308, 1e300, -1.0, 0.0, 5e-324, 1e-300]
    value = {text: sizes[index % 7] for index, text in enumerate(dict.fromkeys(hypotheses))}
    utility = mbrace.Pairwise(lambda h, r: value[h] if r < "m" else -value[h] / 2)
    best = decode(hypotheses, references, utility=utility, nbest=5, shuffle=False, prune=mbrace.Bottom(0.1))
    drawn = references[: best.pseudo_references]
    shares = Fraction(sum(1 if text < "m" else Fraction(-1, 2) for text in drawn), len(drawn))
    assert [each.utility for each in best.nbest] == [float(Fraction(value[each.text]) * shares) for each in best.nbest]
    assert best.utility == max(float(Fraction(each) * shares) for each in sizes)


def test_utilities_that_are_zero_at_first_and_tiny_later() -> None:
    hypotheses, references = lists(5)
    early = set(references[: SCHEDULE[0]])
    options: dict[str, Any] = {"shuffle": False, "prune": mbrace.Confidence(0.9)}

    def late(scale: float) -> mbrace.Pairwise:
        return mbrace.Pairwise(lambda h, r: 0.0 if r in early else overlap(h, r) * scale)

    found = [decode(hypotheses, references, utility=late(scale), **options) for scale in (1.0, 2.0**-1000)]
    assert found[0].steps == found[1].steps
    assert found[0].text == found[1].text


class Asking:
    """Draws from a list, and whether it was ever asked for none."""

    def __init__(self, references: Sequence[str]) -> None:
        self.references, self.asked, self.given = references, list[int](), 0

    def more(self, count: int) -> Sequence[str]:
        self.asked.append(count)
        self.given += count
        return self.references[self.given - count : self.given]

    def start(self, records: Sequence[mbrace.Record]) -> Asking:
        return self

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        return [Draws(self.more(want.count)) for want in wants]


@pytest.mark.parametrize("case", [3, 6, 7, 10])
@pytest.mark.parametrize("kind", ["function", "iterator", "sampler"])
def test_a_live_source_is_never_asked_for_nothing(kind: str, case: int) -> None:
    prune, schedule, nbest, least, seed = CASES[case]
    hypotheses, references = lists(seed)
    options: dict[str, Any] = {"utility": overlap, "prune": prune, "schedule": schedule, "seed": seed, "nbest": nbest}
    expected = mbrace.decode(hypotheses, references, shuffle=False, forecast=least, **options)
    asking = Asking(references)
    source: Any = {"function": asking.more, "iterator": iter(references), "sampler": None}[kind]
    record = mbrace.Record(hypotheses, source, source="x")
    sampler = asking if kind == "sampler" else None
    (found,) = mbrace.decode_corpus([record], sampler=sampler, forecast=least, **options)
    assert found == expected
    assert 0 not in asking.asked
    if kind == "iterator":
        assert len(list(source)) == len(references) - found.pseudo_references  # none was taken and not used


@pytest.mark.parametrize("seed", range(4))
def test_a_sampler_that_has_no_more_is_not_asked_again(seed: int) -> None:
    hypotheses, references = lists(seed)
    asking = Asking(references[:10])
    options: dict[str, Any] = {"prune": mbrace.Bottom(0.1), "schedule": (16, 32, 64), "forecast": 0.001}
    record = mbrace.Record(hypotheses, source="x")
    (found,) = mbrace.decode_corpus([record], sampler=asking, utility=overlap, **options)
    assert asking.asked == [16]
    assert found.pseudo_references == 10
    assert len(found.steps) > 1  # others were let in after the last draw
