"""Random combinations of options against a naive race, and one answer for a record, whatever is next to it and however
its race is run: watched or not, in native code or step by step, on threads, in windows, from a list, an iterator, a
function or a sampler."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Drawn, overlap
from naive_race import NaiveRace

import mbrace
from mbrace import Bottom, ChrF, Confidence, Mixture, Record

WORDS = "a b c dog dogs cat cats sat mat the The of. runs ran far".split()  # noqa: SIM905


class StepByStep:
    """chrF++ that cannot run whole races, has no threads, and can be asked in a race only."""

    needs_source = False

    def __init__(self) -> None:
        self._plain = ChrF(threads=1)
        self.name, self.schedule = self._plain.name, self._plain.schedule

    def start(self, sentences: Sequence[mbrace.utility.Sentence]) -> Any:
        scorer = self._plain.start(sentences)
        return SimpleNamespace(encode_seconds=0.0, score=scorer.score)

    def pairs(self, hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Any:
        return self._plain.pairs(hypotheses, references)


def some_rule(rng: random.Random) -> Any:
    """A pruning function, most often that of the paper."""
    rule = Confidence(rng.choice([0.5, 0.8, 0.9, 0.99]), rng.choice([10, 25]), rng.choice([0.0, 0.0, 0.05, 0.3]))
    return rng.choice([None, rule, rule, rule, Bottom(rng.choice([0.0, 0.2, 0.5, 0.9]))])


def some_records(rng: random.Random, options: dict[str, Any], sizes: Sequence[int], one_list: bool) -> list[Record]:
    """Records of up to so many hypotheses, of which some are equal and some are pseudo-references too."""

    def text() -> str:
        return " ".join(rng.choices(WORDS[: rng.choice([3, len(WORDS)])], k=rng.randint(0, 5)))

    weighted, records = rng.random() < 0.3, []
    for number in range(rng.randint(1, 5)):
        strings = [text() for _ in range(rng.choice(sizes))]
        hypotheses = [] if options["pool"] else rng.choices(strings, k=rng.choice(sizes))
        references = [rng.choice([*strings, text()]) for _ in range(rng.choice([1, 3, 8, 14, 40]))]
        logprobs = [rng.choice([-1.0, -2.5, -9.0]) for _ in (hypotheses if one_list else references)]
        records.append(
            Record(
                hypotheses,
                None if one_list else references,
                id=rng.choice([number, f"r{number}"]),
                logprobs=logprobs if weighted else None,
            )
        )
    return records


def plain_options(rng: random.Random) -> dict[str, Any]:
    """Options that a naive race has too."""
    shuffle = rng.random() < 0.4
    pool = not shuffle and rng.random() < 0.25
    return {
        "prune": some_rule(rng),
        "seed": rng.randint(0, 3),
        "nbest": rng.choice([1, 1, 2, 3]),
        "schedule": rng.choice([None, (4, 8) if pool else "all", (1, 2, 3), (3, 5, 9), (2, 12), (4, 8, 16, 32)]),
        "pool": pool,
        "shuffle": shuffle,
        "cover": shuffle and rng.random() < 0.4,
        "exclude_self": rng.random() < 0.25,
    }


@lru_cache(maxsize=100_000)
def chrf(hypothesis: str, reference: str) -> float:
    return float(ChrF(threads=1).pairs([hypothesis], [reference])[0])


def ties(hypothesis: str, reference: str) -> float:
    """Few numbers, so that many means are equal."""
    return float((7 * len(hypothesis) + 3 * len(reference) + 5 * (hypothesis[:1] == reference[:1])) % 5)


def in_batches(function: Callable[[str, str], float]) -> mbrace.Pairwise:
    return mbrace.Pairwise(lambda h, r: list(map(function, h, r)), batch=True, schedule=(2, 4, 8))


UTILITIES: list[tuple[Callable[[str, str], float], list[Any]]] = [
    (overlap, [mbrace.Pairwise(overlap, schedule=(2, 4, 8)), in_batches(overlap)]),
    (ties, [mbrace.Pairwise(ties, schedule=(2, 4, 8))]),
    (chrf, [ChrF(threads=1), ChrF(threads=2), StepByStep()]),
]


def answers(records: Sequence[Record], utility: Any, **options: Any) -> list[mbrace.Decoded]:
    if options.get("pool") and "sampler" not in options and isinstance(records[0].pseudo_references, list):
        options["sampler"] = Drawn(records)
        records = [replace(record, pseudo_references=None, logprobs=None) for record in records]
    return list(mbrace.decode_corpus(records, utility=utility, **options))


def check_against_naive(seed: int) -> None:
    rng = random.Random(seed)
    options, one_list = plain_options(rng), rng.random() < 0.3
    function, utilities = rng.choice(UTILITIES)
    records = some_records(rng, options, [1, 2, 5, 9], one_list and not options["pool"])
    if function is ties and isinstance(options["prune"], Confidence):
        # the kernel rounds weight x utility: totals that are equal by different numbers need not tie
        records = [replace(record, logprobs=None) for record in records]
    naive = [NaiveRace(record, function, utilities[0].schedule, options) for record in records]
    for utility in utilities:
        how = rng.choice([{}, {"watch": lambda *seen: None}, {"keep_utilities": True}, {"window": 2}])
        for found, wanted in zip(answers(records, utility, **options, **how), naive, strict=True):
            if wanted.is_close_call:
                continue
            assert [(each.text, each.index, each.utility) for each in found.nbest] == wanted.nbest_list
            assert [tuple(step) for step in found.steps] == wanted.steps
            assert found.pseudo_references == wanted.used
            assert (found.utility_calls, found.pairs_scored) == tuple(sum(s[i] for s in wanted.steps) for i in (2, 3))


def check_one_answer(seed: int) -> None:
    rng = random.Random(seed)
    options = plain_options(rng)
    utilities: list[Any] = [ChrF(threads=1), ChrF(threads=2), StepByStep()]
    if rng.random() < 0.2:
        utilities = [Mixture([(part, 1.0), (mbrace.BLEU(threads=1), 0.5)]) for part in utilities]
    if not options["pool"] and rng.random() < 0.1:
        options["prune"] = mbrace.Halving(rng.choice([200, 5000]))
    elif not options["pool"] and not options["exclude_self"] and options["prune"] is not None and rng.random() < 0.5:
        options["forecast"] = rng.choice([1e-6, 0.0005, 0.01])
    if options["prune"] is None and not options["pool"]:
        method = rng.choice([None, "low-rank", "diverse"])
        fits = options["nbest"] > 1 if method == "diverse" else not options["exclude_self"]
        if fits and (method != "low-rank" or isinstance(utilities[0], ChrF)):
            options["method"] = method
    records = some_records(rng, options, [1, 3, 20, 60, 120], False)
    wanted = [answers([record], utilities[0], **options)[0] for record in records]
    watch: Any = lambda *seen: None  # noqa: E731
    window = rng.choice([2, 3, 64])
    for utility in utilities:
        for how in ({}, {"watch": watch}):
            assert answers(records, utility, window=window, **options, **how) == wanted, (utility, how)
    others = {**options, "window": window}
    assert answers(records[::-1], utilities[1], **others)[::-1] == wanted
    if options.get("method") == "low-rank":
        return  # it scores some pairs at random, and takes all pseudo-references at once
    assert answers(records, utilities[2], keep_utilities=True, **others) == wanted
    if options["shuffle"]:
        return  # only a list can be put into another order
    if options["schedule"] != "all" and not options["exclude_self"]:  # a live source draws the hypotheses' own strings
        drawn = [replace(record, pseudo_references=None, logprobs=None) for record in records]
        assert answers(drawn, utilities[2], sampler=Drawn(records), **others) == wanted
    if any(record.logprobs for record in records):
        return
    iterators = [replace(each, pseudo_references=iter(each.pseudo_references)) for each in records]  # type: ignore[arg-type]
    assert answers(iterators, utilities[1], **others) == wanted
    mixed: list[Record] = []  # with neighbours of other kinds
    for record in records:
        rest = iter(record.pseudo_references)  # type: ignore[arg-type]
        ask = lambda count, rest=rest: list(itertools.islice(rest, count))  # noqa: E731
        kinds = [ask, ask if options["pool"] else record.pseudo_references]  # only live draws are hypotheses too
        mixed.append(replace(record, pseudo_references=rng.choice(kinds)))
    found = answers(mixed, utilities[2], watch=rng.choice([watch, None]), **others)
    if options["schedule"] == "all" and options["prune"] is None:  # a function is asked for more and more
        assert [each.pseudo_references for each in found] == [each.pseudo_references for each in wanted]
        if isinstance(utilities[0], Mixture):  # whose scale is that of the first draws
            return
        found, wanted = ([replace(each, steps=()) for each in some] for some in (found, wanted))
    assert found == wanted


@pytest.mark.parametrize("check", [check_against_naive, check_one_answer])
@pytest.mark.parametrize("block", range(4))
def test_a_race_is_the_naive_one_and_has_one_answer_however_it_is_run(check: Callable[[int], None], block: int) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_against_naive, check_one_answer])
@pytest.mark.parametrize("block", range(10))
def test_the_same_in_10_000_cases(check: Callable[[int], None], block: int) -> None:
    for seed in range(1000 * (block + 1), 1000 * (block + 2)):
        check(seed)


@pytest.mark.parametrize(("seed", "alpha", "regret"), [(782, 0.99, 0.8), (872, 0.9, 0.2), (1862, 0.9, 0.8)])
def test_watching_a_race_that_regret_thins_out_and_a_forecast_fills_changes_nothing(
    seed: int, alpha: float, regret: float
) -> None:
    """Those dropped by regret count in the spread too, in native code as in Python."""
    rng = random.Random(seed)
    words = "a b c dog dogs cat cats sat mat the The of. runs ran far on with red blue".split()  # noqa: SIM905

    def some(count: int) -> list[str]:
        return [" ".join(rng.choices(words, k=rng.randint(2, 6))) for _ in range(count)]

    record = Record(some(rng.choice([40, 80, 120])), some(80), id=0)
    options: dict[str, Any] = {"schedule": (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), "shuffle": False, "forecast": 1e-9}
    options["prune"] = Confidence(alpha, 50, regret)
    alone = answers([record], mbrace.ChrF(), **options)
    assert answers([record], mbrace.ChrF(), watch=lambda *seen: None, **options) == alone
