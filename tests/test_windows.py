"""Corpora in windows: answers in order, groups on threads, and a record that fails costs only itself."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from conftest import overlap, records

import mbrace
from mbrace.result import Decoded
from mbrace.windows import group_sizes, stream


def answer(record: mbrace.Record) -> Decoded:
    return Decoded(record.id, "", 0, None, 0, 0, 0, (), ())


class Races:
    """Races that note which records were together, where, and what had been read when they began."""

    def __init__(self, count: int) -> None:
        self.read: list[Any] = []
        self.groups: list[tuple[str, list[Any]]] = []
        self.rows = [mbrace.Record(["a", "b"], ["a"], id=i) for i in range(count)]

    def source(self) -> Iterator[mbrace.Record]:
        for record in self.rows:
            self.read.append(record.id)
            yield record

    def run(self, group: Sequence[mbrace.Record]) -> list[Decoded]:
        self.groups.append(("here", [record.id for record in group]))
        return [answer(record) for record in group]

    def on_thread(self, group: Sequence[mbrace.Record]) -> list[Decoded]:
        assert threading.current_thread() is not threading.main_thread()
        self.groups.append(("thread", [record.id for record in group]))
        return [answer(record) for record in group]

    def stream(self, **options: Any) -> Iterator[Decoded]:
        return stream(self.source(), self.run, run_single_threaded=self.on_thread, check=lambda record: None, **options)


def test_groups_of_a_window_race_on_threads_and_the_next_window_waits_for_the_answers() -> None:
    races = Races(14)
    answers = races.stream(window=6, group_size=8, threads=2)
    assert [next(answers).id for _ in range(6)] == list(range(6))
    assert races.read == list(range(6))  # whoever waits for six answers before giving a seventh record gets them
    assert [each.id for each in answers] == list(range(6, 14))
    assert sorted(group for _, group in races.groups) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13]]
    # The last window is one group: all threads are for it.
    assert [where for where, group in races.groups if group == [12, 13]] == ["here"]
    assert [where for where, _ in races.groups].count("thread") == 4


@pytest.mark.parametrize("window", [1, 7, 24, 48, 63, 64, 200])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_groups_of_a_window_fill_it(window: int, threads: int) -> None:
    sizes = list(group_sizes(window, 8, min(threads, window)))
    assert sum(sizes) == window
    assert all(1 <= size <= 8 for size in sizes)
    if threads == 1:
        assert set(sizes[:-1]) <= {8}


@pytest.mark.parametrize(("window", "threads"), [(6, 1), (2, 3)])
def test_a_window_with_too_few_records_for_the_threads_races_in_the_caller_s(window: int, threads: int) -> None:
    races = Races(7)
    assert [each.id for each in races.stream(window=window, group_size=8, threads=threads)] == list(range(7))
    assert {where for where, _ in races.groups} == {"here"}


def test_live_sources_and_large_records_race_in_the_caller_s_thread() -> None:
    races = Races(8)
    races.rows[1] = mbrace.Record(["a", "b"], lambda count: ["a"] * count, id=1)
    races.rows[4] = mbrace.Record(["a"] * 1025, ["a"] * 1024, id=4)
    assert [each.id for each in races.stream(window=8, group_size=2, threads=2)] == list(range(8))
    assert sorted(races.groups) == [("here", [0, 1]), ("here", [4, 5]), ("thread", [2, 3]), ("thread", [6, 7])]


def test_pruning_functions_and_watchers_are_called_in_the_caller_s_thread(demo_rows: list[dict]) -> None:
    names = set()

    def prune(standings: mbrace.prune.Standings) -> Any:
        names.add(threading.current_thread().name)
        return standings.means > 0

    def watch(*shown: Any) -> None:
        names.add(threading.current_thread().name)

    corpus, utility = records(demo_rows, 8), mbrace.ChrF(threads=2)
    assert len(list(mbrace.decode_corpus(corpus, utility=utility, prune=prune))) == 8
    assert len(list(mbrace.decode_corpus(corpus, utility=utility, watch=watch))) == 8
    assert names == {threading.main_thread().name}


def test_a_race_that_fails_on_a_thread_costs_no_answer_but_its_own() -> None:
    races = Races(12)

    def fail(group: Sequence[mbrace.Record]) -> list[Decoded]:
        if any(record.id == 5 for record in group):
            raise ValueError("five")
        return [answer(record) for record in group]

    failed: list[Any] = []
    options: dict[str, Any] = {
        "window": 8,
        "group_size": 3,
        "threads": 2,
        "run_single_threaded": fail,
        "check": lambda record: None,
    }
    answers = stream(
        races.source(), fail, on_error=lambda record, error: failed.append((record.id, str(error))), **options
    )
    assert [each.id for each in answers] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert failed == [(5, "five")]
    answers = stream(races.source(), fail, **options)
    assert [next(answers).id for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        next(answers)


def test_seconds_of_races_on_several_threads_are_divided_by_their_number(demo_rows: list[dict]) -> None:
    phases = mbrace.Phases()
    phases.add(mbrace.Phases(1, 2, 3, 4), share=0.5)
    assert phases == mbrace.Phases(0.5, 1, 1.5, 2)
    list(mbrace.decode_corpus(records(demo_rows, 8), utility=mbrace.ChrF(threads=2), phases=phases))
    assert min(phases.draw - 0.5, phases.encode - 1, phases.score - 1.5, phases.prune - 2) > 0


def test_a_neighbour_with_a_function_changes_no_steps_and_no_scale() -> None:
    """With "all", a function is asked for more and more, and a list at once: also where both are in a window."""
    words = ["a b", "a c", "b c d", "d e", "e a b", "c"]
    one = mbrace.Record(words, [words[i % 6] for i in range(40)], id=1)
    for utility in (mbrace.ChrF(), overlap, mbrace.Mixture([(mbrace.ChrF(), 1.0), (mbrace.BLEU(), 1.0)])):
        options: dict[str, Any] = {"utility": utility, "schedule": "all", "prune": None}
        (alone,) = mbrace.decode_corpus([one], **options)

        def neighbour() -> mbrace.Record:
            rest = iter(words * 7)
            return mbrace.Record(words, lambda count: list(itertools.islice(rest, count)), id=2)

        assert next(mbrace.decode_corpus([one, neighbour()], **options)) == alone
        assert list(mbrace.decode_corpus([neighbour(), one], **options))[1] == alone


DAEMONS = """
import threading, time, mbrace
texts = [f"a b {i} c d e f" for i in range(60)]
def work():
    while True:
        mbrace.decode(texts, texts, prune=None)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(%s)
"""


@pytest.mark.parametrize("seconds", [0.3, 0.5, 0.7])
def test_a_daemon_thread_that_decodes_when_python_ends_is_no_error(seconds: float) -> None:
    done = subprocess.run([sys.executable, "-c", DAEMONS % seconds], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_window_that_fails_only_as_a_whole_is_decoded_one_by_one_and_said() -> None:
    def batch(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        if len(hypotheses) > 4:
            raise MemoryError("too much at once")
        return [overlap(h, r) for h, r in zip(hypotheses, references, strict=True)]

    corpus = [mbrace.Record(["a", "b"], ["a", "b"], id=i) for i in range(3)]
    with pytest.warns(
        UserWarning, match=r"3 sentences failed as a batch .*too much at once.*, but succeeded one by one"
    ):
        answers = list(mbrace.decode_corpus(corpus, utility=mbrace.Pairwise(batch, batch=True)))
    assert [answer.id for answer in answers] == [0, 1, 2]


FAULTS = [
    "no hypotheses",
    "no string",
    "pseudo-reference",
    "utility",
    "pruning function",
    "watch",
    "iterator",
    "function",
]


class Faulty:
    """Six records of which the one with id 2 has a fault, and options that have it too; what was asked of whom."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.scored: list[tuple[str, str]] = []
        self.calls = 0
        self.options: dict[str, Any] = {
            "utility": self.utility,
            "prune": self.prune,
            "schedule": [1, 2, 3],
            "shuffle": False,
            "watch": self.watch if fault == "watch" else None,
        }
        self.records = [
            mbrace.Record([f"{i} a", f"{i} b", f"{i} a b"], [f"r{i}", f"{i} a", f"{i} b"], id=i) for i in range(6)
        ]
        changes: dict[str, Any] = {
            "no hypotheses": {"hypotheses": []},
            "no string": {"hypotheses": ["2 a", 7]},
            "pseudo-reference": {"pseudo_references": iter(["2 a", 7])},
            "iterator": {"pseudo_references": iter(lambda: self.one(), None)},
            "function": {"pseudo_references": lambda count: [self.one()] * count},
        }
        self.records[2] = dataclasses.replace(self.records[2], **changes.get(fault, {}))

    def one(self) -> str:
        self.calls += 1
        if self.calls == 2:
            raise OSError("the source is down")
        return "2 a"

    def utility(self, hypothesis: str, reference: str) -> float:
        self.scored.append((hypothesis, reference))
        return float("nan") if self.fault == "utility" and reference == "r2" else overlap(hypothesis, reference)

    def prune(self, standings: mbrace.prune.Standings) -> Any:
        if self.fault == "pruning function" and standings.texts[0].startswith("2"):
            raise RuntimeError("no decision")
        return standings.means > -1

    def watch(self, record: mbrace.Record, *_: Any) -> None:
        if record.id == 2:
            raise RuntimeError("seen enough")


@pytest.mark.parametrize("window", [1, 4, 64])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_that_fails_costs_the_others_no_answer_and_no_call(fault: str, window: int) -> None:
    """Each pair is asked for once, although a record of the window has no answer: a judge may be paid for it."""
    given, failed = Faulty(fault), list[mbrace.Record]()
    options = {**given.options, "window": window}
    found = list(mbrace.decode_corpus(given.records, on_error=lambda record, _: failed.append(record), **options))
    assert [answer.id for answer in found] == [0, 1, 3, 4, 5]
    assert failed == [given.records[2]]
    assert [answer.pseudo_references for answer in found] == [3] * 5
    assert len(given.scored) == len(set(given.scored))
    assert given.calls <= 2  # a source that failed is not asked again


@pytest.mark.parametrize("fault", FAULTS)
def test_answers_before_a_record_that_fails_are_given_first(fault: str) -> None:
    given = Faulty(fault)
    answers = mbrace.decode_corpus(given.records, **given.options)
    assert [next(answers).id for _ in range(2)] == [0, 1]
    with pytest.raises((mbrace.RecordError, OSError, RuntimeError)):
        next(answers)


@pytest.mark.parametrize("kind", ["iterator", "function"])
def test_a_live_source_is_raced_again_over_the_same_when_another_record_fails(kind: str) -> None:
    draws = ["a b", "a c", "b c", "a b c"]
    rest = iter(draws)
    source: Any = {"iterator": iter(draws), "function": lambda count: list(itertools.islice(rest, count))}[kind]
    bad = mbrace.Record(["x", "y"], ["bad", "bad"], id=2)

    def utility(hypothesis: str, reference: str) -> float:
        if reference == "bad":
            raise RuntimeError("cannot be scored")
        return overlap(hypothesis, reference)

    options: dict[str, Any] = {"utility": utility, "prune": lambda seen: seen.means > -1, "schedule": [2, 4]}
    failed: list[str | int] = []
    corpus = [mbrace.Record(["a b", "a c"], source, id=1), bad]
    (answer,) = mbrace.decode_corpus(corpus, on_error=lambda record, _: failed.append(record.id), **options)
    assert (answer, failed) == (mbrace.decode(["a b", "a c"], iter(draws), id=1, **options), [2])
