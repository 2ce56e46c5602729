"""The study of answers: its rules of others, by hand, and its tables on draws with a known outcome."""

from __future__ import annotations

import random
from collections import Counter

import answers as study
import numpy as np
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


def test_a_table_of_losses_is_the_one_made_by_hand() -> None:
    chance, chrf = random.Random(8), mbrace.ChrF()
    words = "one two three four five six".split()  # noqa: SIM905
    same = (["the same"] * 64, ["the same", "not at all"] * 16)  # over after the first 4, whatever the regret
    drawn = [" ".join(chance.choices(words, k=3)) for _ in range(128)]
    lists = [same, (drawn[:64], drawn[64:])]

    def chosen(n: int) -> str:  # the mean over the first n of them, itself included; the first of the best
        return max(drawn[:n], key=lambda text: float(np.mean(chrf.pairs([text] * n, drawn[:n]))))

    held = {text: float(np.mean(chrf.pairs([text] * 64, drawn[64:]))) for text in dict.fromkeys(drawn[:64])}
    spread = float(np.std(list(held.values())))
    by_hand = [(held[chosen(32)] - held[chosen(n)]) / spread / 2 for n in study.FIXED]  # the other list loses nothing
    rows = study.loss_rows(lists, chrf)
    assert [row[2] for row in rows[:5]] == pytest.approx(by_hand)
    for row, regret in zip(rows[5:], study.REGRETS, strict=True):
        found = next(
            answers([prompt_of("q", 0)], study.Stored(drawn[:64]), Answering(n=32, regret=regret), utility=chrf)
        )
        assert row[1] == (4 + found.draws) / 2
        lost = (held[chosen(32)] - held[found.text]) / spread / 2
        after = next(place for place, n in enumerate(study.FIXED) if n >= row[1])
        low, high = study.FIXED[after - 1], study.FIXED[after]
        part = np.log(row[1] / low) / np.log(high / low)
        same_draws = (1 - part) * by_hand[after - 1] + part * by_hand[after]
        assert (row[2], row[4]) == pytest.approx((lost, same_draws))
        assert row[6] == pytest.approx(lost / same_draws if same_draws > 0 else np.inf)


def test_a_vote_table_is_the_one_made_by_hand() -> None:
    tie = ["b"] * 5 + ["a"] * 5
    rows = {
        row[0]: row[1:]
        for row in study.vote_rows([["a"] * 10, tie, ["a", "b", "b", "b", "b", "b", "a", "a", "a", "a"]])
    }
    assert rows["Adaptive-Consistency, 0.95"] == [1.0, pytest.approx((4 + 4 + 10) / 3), pytest.approx(18 / 3)]
    assert rows["race, 1"][:2] == [1.0, pytest.approx((6 + 10 + 10) / 3)]
    assert rows["early stopping, windows of 5"][1] == pytest.approx((5 + 5 + 10) / 3)


def test_draws_at_a_loss_are_interpolated_in_log_n() -> None:
    rows = [["fixed", 0, 0.0]] * 5 + [["regret 0.1", 16.0, 0.04], ["regret 0.2", 8.0, 0.06], ["regret 0.4", 4.0, 0.2]]
    assert study.draws_at(rows, 0.05) == pytest.approx((16 * 8) ** 0.5)
    assert study.draws_at(rows, 0.02) == pytest.approx((16 * 32) ** 0.5)
    assert study.draws_at(rows, 0.5) == 4.0  # or fewer
    assert study.draws_at([*rows[:5], ["regret 0.4", 31.0, 0.0]], 0.05) == pytest.approx(31.0)


def test_a_draw_that_casts_no_vote_is_a_draw_all_the_same() -> None:
    votes = [None, None, None, None, *["a"] * 6]
    rows = {row[0]: row[1:] for row in study.vote_rows([votes])}
    assert rows["race, 1"][:2] == [1.0, 8]  # 4 to 0, and 2 draws are left
    assert rows["race, 0.95"][:2] == [1.0, 8]
    assert rows["Adaptive-Consistency, 0.95"][:2] == [1.0, 8]
    assert rows["early stopping, windows of 5"][:2] == [1.0, 10]
    assert study.early([None] * 5 + ["a"] * 5) == ("a", 10)


def test_draws_that_were_cut_are_put_among_the_others_by_a_seed() -> None:
    utility = mbrace.ExactMatch(pattern="[0-9]+")
    texts = [f"It is {number}." for number in range(20)] + ["I do not know."]
    votes = study.ballots(texts, utility, 3)
    assert len(votes) == study.VOTES
    assert [vote for vote in votes if vote is not None] == [str(number) for number in range(20)]
    assert votes == study.ballots(texts, utility, 3) != study.ballots(texts, utility, 4)
    assert votes[-20:] != [None] * 20  # not all at the end
