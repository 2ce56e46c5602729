"""The study of answers: its rules of others, by hand, and its tables on draws with a known outcome."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments"))
import answers as study

import mbrace


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
    assert draws <= 40
    assert requests <= 3
    assert rows["race, 0.95"][1] < draws


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
