"""The study of answers: its rules of others, by hand, and its tables on draws with a known outcome."""

from __future__ import annotations

import random
from collections import Counter

import answers as study
import pytest

import mbrace
from mbrace.answers import Answering, Vote, answers, prompt_of


def test_the_rules_of_others_stop_where_their_papers_do() -> None:
    assert study.adaptive(["a"] * 40) == ("a", 4)  # 1 - 2^-5 is the first above 0.95
    assert study.adaptive(["a", "b"] * 20)[1] == 40
    assert study.early(["a", "b", "a", "a", "a", "a", "a", "a", "a", "a", "b"]) == ("a", 10)
    assert study.early(["a", "b"] * 5) == ("a", 10)


def test_a_race_that_stops_only_when_certain_agrees_with_all_draws() -> None:
    chance = random.Random(3)
    lists = [[chance.choice("aaab") for _ in range(40)] for _ in range(12)]
    rows = {row[0]: row[1:] for row in study.vote_rows(lists)}
    agreed, draws, requests = rows["race, 1"]
    assert agreed == 1.0
    assert rows["race, 0.95"][1] < draws <= 40
    assert requests < 0.2 * draws


@pytest.mark.parametrize("confidence", [0.8, 0.95, 1.0])
def test_a_vote_makes_no_draw_after_the_one_that_decides_it(confidence: float) -> None:
    chance, rule = random.Random(5), Vote(24, confidence)

    def is_over(votes: list[str]) -> bool:  # after each draw, as one who draws one at a time sees it
        first, second = [*sorted(Counter(votes).values(), reverse=True), 0][:2]
        return first - second > 24 - len(votes) or rule.is_decided(first, second)

    for _ in range(60):
        votes = [chance.choice("aaabbc") for _ in range(24)]
        settings = Answering(n=24, confidence=confidence)
        found = next(answers([prompt_of("q", 0)], study.Stored(votes), settings, utility=mbrace.ExactMatch()))
        assert found.draws == next((n for n in range(1, 24) if is_over(votes[:n])), 24)
        assert found.stopped == (
            "all draws" if found.draws == 24 else "one text" if len(set(votes[: found.draws])) == 1 else "vote"
        )


def test_one_matching_draw_among_many_that_do_not_match_decides_nothing() -> None:
    votes = ["I do not know."] * 3 + ["7"] + ["no"] * 4 + ["7", "8", "7", "7", "7", "7", "7", "7"]
    utility = mbrace.ExactMatch(pattern="[0-9]")
    found = next(answers([prompt_of("q", 0)], study.Stored(votes), Answering(), utility=utility))
    assert (found.text, found.draws, found.receipt.unmatched) == ("7", 13, 7)  # 5 to 1, 3 draws left


def test_losses_are_relative_to_fixed_n() -> None:
    chance = random.Random(4)
    words = "one two three four five six".split()  # noqa: SIM905
    lists = []
    for _ in range(4):
        drawn = [" ".join(chance.choices(words, k=4)) for _ in range(96)]
        lists.append((drawn[:64], drawn[64:]))
    rows = study.loss_rows(lists, mbrace.ChrF())
    assert [row[0] for row in rows][:5] == [f"fixed {n}" for n in study.FIXED]
    assert rows[study.FIXED.index(study.MOST)][2] == 0.0
    assert all(4 <= row[1] <= study.MOST for row in rows[5:])
    assert sum(study.halves(lists, mbrace.ChrF())) == 2
