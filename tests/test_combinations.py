"""One answer for a record, whatever is next to it and however its race is run: any combination of options, watched or
not, in native code or step by step, on threads, in windows, from a list, an iterator, a function or a sampler."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import mbrace
from mbrace import Confidence, Draws, Record

WORDS = "a b c dog dogs cat cats sat mat the The of. runs ran far".split()  # noqa: SIM905


class StepByStep:
    """chrF++ that cannot run whole races, has no threads, and can be asked in a race only."""

    needs_source = False

    def __init__(self) -> None:
        self._plain = mbrace.ChrF(threads=1)
        self.name, self.schedule = self._plain.name, self._plain.schedule

    def start(self, sentences: Sequence[mbrace.utility.Sentence]) -> Any:
        scorer = self._plain.start(sentences)
        return SimpleNamespace(encode_seconds=0.0, score=scorer.score)

    def pairs(self, hypotheses: Sequence[str], references: Sequence[str], sources: Any = None) -> Any:
        return self._plain.pairs(hypotheses, references)


class Drawn:
    """A sampler of what lists have."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._lists = {record.id: record for record in records}

    def start(self, records: Sequence[Record]) -> Any:
        def some(record: Record, part: slice) -> Draws:
            own = self._lists[record.id]
            assert isinstance(own.pseudo_references, list)
            return Draws(own.pseudo_references[part], None if own.logprobs is None else own.logprobs[part])

        parts = SimpleNamespace(
            draw=lambda wants: [some(records[w.sentence], slice(w.first, w.first + w.count)) for w in wants]
        )
        return parts


def case(rng: random.Random) -> tuple[list[Record], dict[str, Any]]:
    """Records, and options that go together."""

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(0, 5)))

    pool = rng.random() < 0.15
    weighted = rng.random() < 0.3
    shuffle = rng.random() < 0.3
    records = []
    for number in range(rng.randint(1, 5)):
        strings = [text() for _ in range(rng.choice([1, 10, 40, 150]))]
        hypotheses = rng.choices(strings, k=rng.choice([1, 3, 20, 60, 120]))
        references = [rng.choice([*strings, text()]) for _ in range(rng.choice([1, 5, 30, 70]))]
        logprobs = [rng.choice([-1.0, -2.5, -9.0]) for _ in references] if weighted else None
        records.append(Record([] if pool else hypotheses, references, id=f"r{number}", logprobs=logprobs))
    options: dict[str, Any] = {
        "seed": rng.randint(0, 3),
        "nbest": rng.choice([1, 1, 2, 5]),
        "schedule": rng.choice(
            [None, "all", (1, 2, 3), (4, 8, 16, 32), (2, 64), (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)]
        ),
        "pool": pool,
        "shuffle": shuffle,
        "cover": shuffle and rng.random() < 0.5,
        "exclude_self": rng.random() < 0.2,
    }
    rule = Confidence(rng.choice([0.5, 0.9, 0.99]), rng.choice([20, 100]), rng.choice([0.0, 0.02, 0.1, 0.3]))
    options["prune"] = rng.choice([None, rule, rule, rule, mbrace.Bottom(rng.choice([0.0, 0.3, 0.9]))])
    if not pool and rng.random() < 0.1:
        options["prune"] = mbrace.Halving(rng.choice([200, 5000]))
    elif not pool and not options["exclude_self"] and options["prune"] is not None and rng.random() < 0.5:
        options["forecast"] = rng.choice([1e-6, 0.0005, 0.01])
    if options["prune"] is None and not pool:
        method = rng.choice([None, "low-rank", "diverse"])
        if options["nbest"] > 1 if method == "diverse" else not options["exclude_self"]:
            options["method"] = method
    return records, options


def answers(records: Sequence[Record], utility: Any, **options: Any) -> list[mbrace.Decoded]:
    return list(mbrace.decode_corpus(records, utility=utility, **options))


def check(seed: int) -> None:
    rng = random.Random(seed)
    records, options = case(rng)
    wanted = [answers([record], mbrace.ChrF(threads=1), **options)[0] for record in records]
    watch: Any = lambda *seen: None  # noqa: E731
    window = rng.choice([2, 3, 64])
    for utility in (mbrace.ChrF(threads=1), mbrace.ChrF(threads=2), StepByStep()):
        for how in ({}, {"watch": watch}):
            assert answers(records, utility, window=window, **options, **how) == wanted, (utility, how)
    others = {**options, "window": window}
    assert answers(records[::-1], mbrace.ChrF(threads=2), **others)[::-1] == wanted
    if options.get("method") == "low-rank":
        return  # it scores some pairs at random, and takes all pseudo-references at once
    assert answers(records, StepByStep(), keep_utilities=True, **others) == wanted
    if options["shuffle"]:
        return  # only a list can be put into another order
    if options["schedule"] != "all" and not options["exclude_self"]:  # a live source draws the hypotheses' own strings
        drawn = answers([replace(record, pseudo_references=None, logprobs=None) for record in records], StepByStep(),
                        sampler=Drawn(records), **others)  # fmt: skip
        assert drawn == wanted
    if any(record.logprobs for record in records):
        return
    iterators = [replace(each, pseudo_references=iter(each.pseudo_references)) for each in records]  # type: ignore[arg-type]
    assert answers(iterators, mbrace.ChrF(threads=2), **others) == wanted
    if options["schedule"] == "all" and options["prune"] is None:  # a function is asked for more and more
        wanted = [replace(each, steps=()) for each in wanted]
    mixed: list[Record] = []  # with neighbours of other kinds
    for record in records:
        rest = iter(record.pseudo_references)  # type: ignore[arg-type]
        ask = lambda count, rest=rest: list(itertools.islice(rest, count))  # noqa: E731
        mixed.append(replace(record, pseudo_references=rng.choice([ask, record.pseudo_references])))
    found = answers(mixed, StepByStep(), watch=rng.choice([watch, None]), **others)
    if options["schedule"] == "all" and options["prune"] is None:
        found = [replace(each, steps=()) for each in found]
    assert found == wanted


@pytest.mark.parametrize("block", range(4))
def test_every_way_to_run_a_race_gives_one_answer(block: int) -> None:
    for seed in range(40 * block, 40 * (block + 1)):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_every_way_to_run_a_race_gives_one_answer_in_10_000_cases(block: int) -> None:
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
