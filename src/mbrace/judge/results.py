"""`mbrace judge-results`: count the ratings, test for significance, measure the agreement of raters."""

from __future__ import annotations

import math
import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mbrace.errors import UserError, counted
from mbrace.judge.store import check_ours

_SCORE = {"A": 1, "B": -1, "tie": 0}
_HEADING = " " * 12 + " A better B better   ties  skips   sign test p   A ahead   B ahead"
_NOTES = (
    "A ahead, B ahead: in how many paired bootstrap resamples of the items (Koehn, 2004). What is tested is `by item`:",
    "the raters of an item vote together, as their answers are not independent.",
)


@dataclass(frozen=True)
class Bootstrap:
    """The share of resamples of the items in which each system was ahead; in the rest, neither was."""

    a_ahead: float
    b_ahead: float
    resamples: int


@dataclass(frozen=True)
class Rating:
    """One answer: `choice` is A, B, tie or skip; `left` is the system that was on the left."""

    rater: int
    position: int
    item: str
    choice: str
    left: str
    comment: str
    at: str


@dataclass(frozen=True)
class Counts:
    """Wins, losses and ties of A against B, and items that were skipped."""

    wins: int
    losses: int
    ties: int
    skips: int


@dataclass(frozen=True)
class Tally(Counts):
    """Counts and their significance tests; skips are ignored by the tests."""

    sign_test: float  # two-sided p, without ties
    bootstrap: Bootstrap


@dataclass(frozen=True)
class Agreement:
    """Agreement of raters on items that several of them rated; None if a measure is undefined."""

    items: int
    same: float  # share of equal ratings among all pairs of ratings of an item
    krippendorff_alpha: float | None


@dataclass(frozen=True)
class Results:
    """The whole report. `ratings` counts every answer; `items` counts one vote per item, for the tests."""

    a: str
    b: str
    total: int
    equal: int
    judged: int
    raters: Mapping[int, Tally]
    ratings: Counts
    items: Tally
    left_chosen: int
    right_chosen: int
    agreement: Agreement | None
    level: float
    significant: bool
    verdict: str


def read_ratings(path: str) -> tuple[dict[str, str], list[Rating]]:
    """The facts about the study and all ratings so far; safe while the server is running."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file; expected the ratings file of `mbrace judge`")
    sql = sqlite3.connect(f"{Path(path).absolute().as_uri()}?{_mode(path)}", uri=True, timeout=30)
    try:
        sql.execute("PRAGMA query_only=ON")
        check_ours(sql, path)
        study = dict(sql.execute("SELECT key, value FROM study"))
        rows = sql.execute(
            "SELECT rater, position, id, choice, CASE a_left WHEN 1 THEN 'A' ELSE 'B' END, comment, at "
            "FROM rating JOIN turn USING (rater, position) JOIN item USING (item) ORDER BY rater, position"
        ).fetchall()
    except sqlite3.Error as error:
        raise UserError(f"{path}: {error}; expected a ratings file of `mbrace judge`") from error
    finally:
        sql.close()
    return study, [Rating(*row) for row in rows]


def _mode(path: str) -> str:
    """SQLite's mode for the file: to read a WAL database, SQLite must be able to write next to it."""
    if os.access(path, os.W_OK) and os.access(Path(path).absolute().parent, os.W_OK):
        return "mode=rw"
    return "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"


def evaluate(ratings: Sequence[Rating], *, study: Mapping[str, str] | None = None, level: float = 0.05) -> Results:
    """Count, test and compare the ratings.

    Raters who saw the same item do not give independent answers, so the tests are over items: an item's score is the
    mean of its ratings (A 1, tie 0, B -1), its vote the sign of the score. With one rating per item they are the same.
    """
    study = study or {}
    names = study.get("name_a", "A"), study.get("name_b", "B")
    by_item: dict[str, list[str]] = defaultdict(list)
    for rating in ratings:
        if rating.choice != "skip":
            by_item[rating.item].append(rating.choice)
    items = tally([sum(_SCORE[choice] for choice in choices) / len(choices) for choices in by_item.values()])
    choices_made = Counter(rating.choice for rating in ratings)
    sides = [rating.choice == rating.left for rating in ratings if rating.choice in ("A", "B")]
    significant = items.sign_test < level and _share_ahead(items) >= 1 - level
    return Results(
        *names,
        total=int(study.get("total", 0)),
        equal=int(study.get("equal", 0)),
        judged=int(study.get("items", len(by_item))),
        raters={
            rater: _of_rater([rating.choice for rating in ratings if rating.rater == rater])
            for rater in sorted({rating.rater for rating in ratings})
        },
        ratings=Counts(*(choices_made[choice] for choice in ("A", "B", "tie", "skip"))),
        items=items,
        left_chosen=sum(sides),
        right_chosen=len(sides) - sum(sides),
        agreement=_agreement([choices for choices in by_item.values() if len(choices) > 1]),
        level=level,
        significant=significant,
        verdict=_verdict(items, names, level, significant, choices_made["skip"]),
    )


def evaluate_counts(wins: int, losses: int, ties: int, *, level: float = 0.05) -> Results:
    """The report for counts only, one rating per item: `evaluate_counts(48, 42, 35)` is the paper's."""
    choices = ["A"] * wins + ["B"] * losses + ["tie"] * ties
    ratings = [Rating(1, number, str(number), choice, "A", "", "") for number, choice in enumerate(choices)]
    return evaluate(ratings, level=level)


def tally(scores: Sequence[float], *, skips: int = 0) -> Tally:
    """Count and test preferences: above 0 for A, below for B, 0 for a tie."""
    wins, losses = sum(score > 0 for score in scores), sum(score < 0 for score in scores)
    ties = len(scores) - wins - losses
    return Tally(wins, losses, ties, skips, sign_test(wins, losses), paired_bootstrap(scores))


def _of_rater(choices: Sequence[str]) -> Tally:
    scores = [_SCORE[choice] for choice in choices if choice != "skip"]
    return tally(scores, skips=len(choices) - len(scores))


def _agreement(shared: Sequence[Sequence[str]]) -> Agreement | None:
    """The agreement on items with several ratings each."""
    pairs = [pair for choices in shared for pair in combinations(choices, 2)]
    if not pairs:
        return None
    return Agreement(len(shared), sum(one == other for one, other in pairs) / len(pairs), krippendorff_alpha(shared))


def _share_ahead(items: Tally) -> float:
    """The share of resamples in which the system that won more items is ahead.

    With several raters per item that system may be behind: many items won by one vote of three count less than fewer
    items won by all three. The tests then contradict each other, and the result is not significant.
    """
    ahead = items.bootstrap.a_ahead, items.bootstrap.b_ahead
    return max(ahead) if items.wins == items.losses else ahead[items.losses > items.wins]


def _verdict(items: Tally, names: tuple[str, str], level: float, significant: bool, skipped: int) -> str:
    decided = items.wins + items.losses
    if decided + items.ties == 0:
        return "No ratings yet." if not skipped else f"No ratings yet: {counted(skipped, 'answer')}, all of them skips."
    counts = f"{items.wins} to {items.losses} with {counted(items.ties, 'tie')}"
    tests = f"sign test p = {items.sign_test:.3g}, ahead in {_share_ahead(items):.1%} of bootstrap resamples"
    if not significant:
        between = f"{names[0]} and {names[1]}"
        return f"The difference between {between} is not significant at the {level:g} level: {counts} ({tests})."
    better, worse = names if items.wins > items.losses else names[::-1]
    return f"{better} is significantly better than {worse} at the {level:g} level: {counts} ({tests})."


def report(results: Results) -> str:
    """The results as text, for people."""
    lines = [f"A = {results.a}, B = {results.b}"]
    if results.total:
        share = f"{results.equal} equal ({results.equal / results.total:.1%})"
        given = f"{results.judged} different ones given to raters"
        lines.append(f"{counted(results.total, 'pair')} of predictions: {share}, {given}")
    if not results.raters:
        return "\n".join([*lines, "", results.verdict])
    lines += ["", _HEADING]
    lines += [_row(f"rater {rater}", own) for rater, own in results.raters.items()]
    lines += [_row("all ratings", results.ratings), _row("by item", results.items)]
    left, right = results.left_chosen, results.right_chosen
    times = f"the left one was preferred {counted(left, 'time')}, the right one {counted(right, 'time')}"
    lines += ["", *_NOTES, "", f"Position: {times} (sign test p = {sign_test(left, right):.3g})."]
    if agreement := results.agreement:
        alpha = agreement.krippendorff_alpha
        measured = "undefined (no two answers differ)" if alpha is None else f"{alpha:.3f}"
        lines.append(
            f"Agreement on {counted(agreement.items, 'item')} with two or more raters: {agreement.same:.1%} of pairs "
            f"of answers are the same, Krippendorff's alpha {measured}."
        )
    return "\n".join([*lines, "", results.verdict])


def _row(name: str, own: Counts) -> str:
    counts = f"{name:<12}{own.wins:>9}{own.losses:>9}{own.ties:>7}{own.skips:>7}"
    if not isinstance(own, Tally):
        return counts
    return f"{counts}{own.sign_test:>14.3g}{own.bootstrap.a_ahead:>10.1%}{own.bootstrap.b_ahead:>10.1%}"


def to_json(results: Results, ratings: Sequence[Rating]) -> str:
    """Everything as JSON: the report's numbers and every rating. Contains no token."""
    document: dict[str, Any] = asdict(results)
    document["raters"] = [{"rater": rater, **own} for rater, own in document["raters"].items()]
    document["answers"] = [asdict(rating) for rating in ratings]
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value that wins and losses are equally likely (binomial, p = 1/2)."""
    total, larger = wins + losses, max(wins, losses)
    ways = tail = math.comb(total, larger)  # integers, so that thousands of ratings neither overflow nor underflow
    for count in range(larger, total):  # ways to win `count + 1` times, from the ways to win `count` times
        ways = ways * (total - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << total))


def paired_bootstrap(scores: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> Bootstrap:
    """Koehn (2004): resample the items with replacement, and count how often each system is ahead.

    `scores`: (items,) the preference on each item, above 0 for A, below for B, 0 for a tie.
    """
    if not scores:
        return Bootstrap(0.0, 0.0, resamples)
    values, counts = np.unique(np.asarray(scores, dtype=np.float64), return_counts=True)
    # Drawing a count for each distinct value (multinomial) is equivalent to drawing item by item.
    drawn = np.random.default_rng(seed).multinomial(len(scores), counts / len(scores), size=resamples)
    sums = drawn @ values
    near_zero = 1e-9 * len(scores)  # sums of thirds and similar may miss 0 by rounding
    return Bootstrap(float(np.mean(sums > near_zero)), float(np.mean(sums < -near_zero)), resamples)


def krippendorff_alpha(units: Sequence[Sequence[Hashable]]) -> float | None:
    """Krippendorff's alpha for nominal data; `units` holds each item's ratings, any number of them.

    Items with fewer than two ratings say nothing about agreement and are left out. None means undefined: no two
    ratings can be compared, or all are the same.
    """
    pairable = [Counter(unit) for unit in units if len(unit) >= 2]
    totals: Counter[Hashable] = sum(pairable, Counter())
    n = totals.total()
    expected = n * n - sum(count * count for count in totals.values())
    if expected == 0:
        return None
    observed = sum(
        (unit.total() ** 2 - sum(count * count for count in unit.values())) / (unit.total() - 1) for unit in pairable
    )
    return 1 - (n - 1) * observed / expected
