"""Which races native code runs as a whole (test_combinations.py: that they are the same), and what it refuses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

import mbrace
from mbrace._native import Resamples, Tally, build_indexes, race_lists
from mbrace.metrics.chrf import ChrFScorer
from mbrace.records import Record
from mbrace.sampler import Listed

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "Über", "Straße", "猫", "😀", "ran", "ran,", "very"]


def records(seed: int, *, repeats: bool = True) -> list[Record]:
    generator = random.Random(seed)

    def text() -> str:
        return " ".join(generator.choices(WORDS, k=generator.randint(0, 9)))

    made = []
    for name in range(generator.randint(1, 9)):
        pool = [text() for _ in range(generator.randint(1, 40))]
        sides = [
            [generator.choice(pool) if repeats else text() for _ in range(generator.randint(1, most))]
            for most in (50, 90)
        ]
        made.append(Record(*sides, id=name))
    return made


def counted() -> Any:
    return mock.patch.object(ChrFScorer, "race_lists", autospec=True, side_effect=ChrFScorer.race_lists)


@pytest.mark.parametrize(
    "options",
    [
        {"prune": mbrace.Bottom(0.5)},
        {"schedule": "all"},
        {"pool": True},
        {"exclude_self": True},
        {"forecast": 0.001, "prune": mbrace.Confidence(0.99)},
        {"sampler": Listed(seed=0, shuffle=False), "prune": lambda standings: standings.means >= 0},
    ],
)
def test_races_that_need_more_than_a_list_go_step_by_step(options: dict[str, Any]) -> None:
    with counted() as calls:
        given = records(3)
        if "pool" in options:
            given = [replace(each, hypotheses=[], pseudo_references=iter(each.pseudo_references)) for each in given]
        given = [replace(record, pseudo_references=None) for record in given] if "exclude_self" in options else given
        list(mbrace.decode_corpus(given, utility=mbrace.ChrF(threads=1), **options))
    assert calls.call_count == 0


def test_draws_with_probabilities_go_step_by_step() -> None:
    record = Record(["a b", "a c", "b c"], ["a b", "c"], id=1, logprobs=[-1.0, -2.0])
    with counted() as calls:
        (answer,) = mbrace.decode_corpus([record], utility=mbrace.ChrF(threads=1))
    assert calls.call_count == 0
    assert answer.text == "a b"


def test_what_native_code_is_given_is_checked() -> None:
    index = build_indexes([["a b", "c"]], char_order=6, word_order=2, whitespace=False)
    options: dict[str, Any] = {
        "sizes": [1, 2], "resamples": {}, "nbest": 1, "enough": 1, "max_losing_wins": 0.0, "max_regret": 0.0,
        "beta": 2.0, "eps_smoothing": False,
    }  # fmt: skip

    def run(tallies: Any, drawn: Any, scored: Any, **other: Any) -> Any:
        return race_lists(tallies, index * len(tallies), drawn, scored, **(options | other))

    tally = Tally(["a b", "c"])
    for changed, message in (
        ({"sizes": [2, 2]}, "sizes: must grow"),
        ({"sizes": [0, 2]}, "sizes: must grow"),
        ({"nbest": 0}, "1 or more"),
        ({"resamples": {3: Resamples(1, 4, 10)}}, "another number of draws"),
    ):
        with pytest.raises(ValueError, match=message):
            run([tally], [["x"]], [["x"]], **changed)
    with pytest.raises(ValueError, match="the same one twice"):
        run([tally, tally], [["x"]] * 2, [["x"]] * 2)
    with pytest.raises(ValueError, match="not equally many"):
        run([tally], [["x"]], [["x", "y"]])
    with pytest.raises(ValueError, match="a hypothesis is missing"):
        run([Tally(["a", "b", "c"])], [["x"]], [["x"]])
    with pytest.raises(TypeError, match="sequence of str"):
        run([tally], [["x", 1]], [["x", 1]])
    assert tally.draws == 0
    means, steps, seconds = run([tally], [["a b", "a b", "c"]], [["a b", "a b", "c"]])
    assert (len(means[0]), steps, len(seconds)) == (2, [[(1, 2, 2, 2), (2, 2, 2, 0)]], 3)
