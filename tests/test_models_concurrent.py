"""Concurrent searches, and draws that are prefetched during beam search."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import tiny_models as tiny
import torch

import mbrace
from mbrace.errors import MbraceWarning, UserError
from mbrace.io.candidates import Bad
from mbrace.models import gpu
from mbrace.models.gpu import exclusive_start
from mbrace.models.hypotheses import HypothesisMaker
from mbrace.models.search import run_searches
from mbrace.records import Location, Record
from mbrace.sampler import Want

CPU = torch.device("cpu")
SOURCES = ["a b c", "b c", "c", "a a b", " ", "a b c a b"]


@pytest.fixture(scope="module")
def translator() -> mbrace.Seq2Seq:
    return mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32", rows=8)


@pytest.mark.parametrize("concurrent", [1, 2, 5])
def test_what_is_found_comes_in_the_order_of_its_numbers(concurrent: int) -> None:
    last_is_done = threading.Event()

    def search(number: int) -> int:
        if concurrent > 1 and number == 0:
            assert last_is_done.wait(120)  # the first search ends last
        if number == 4:
            last_is_done.set()
        return number * number

    assert run_searches(5, search, lambda number, found: (number, found), CPU, concurrent) == [
        (number, number * number) for number in range(5)
    ]


def test_a_search_without_memory_is_run_again_alone() -> None:
    together, tries = threading.Barrier(2, timeout=120), []

    def search(number: int) -> int:
        tries.append(number)
        if len(tries) <= 2:
            together.wait()
            if number == 1:
                raise torch.OutOfMemoryError("too little memory beside the other")
        return number

    assert run_searches(2, search, lambda number, found: found, CPU, concurrent=2) == [0, 1]
    assert sorted(tries) == [0, 1, 1]
    with pytest.raises(torch.OutOfMemoryError):  # nor alone
        run_searches(2, lambda number: (_ for _ in ()).throw(torch.OutOfMemoryError("none")), print, CPU, concurrent=2)


def test_other_errors_of_a_search_are_raised() -> None:
    def search(number: int) -> int:
        raise mbrace.UserError(f"source {number}")

    for concurrent in (1, 2):
        with pytest.raises(mbrace.UserError, match="source 0"):
            run_searches(3, search, print, CPU, concurrent)


def test_beam_search_of_two_parts_at_once_finds_what_one_after_another_does(
    translator: mbrace.Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = translator.beam(SOURCES, k=4)
    threads = set()
    encode = translator.encode

    def watched(rows: Any) -> Any:
        threads.add(threading.get_ident())
        return encode(rows)

    monkeypatch.setattr(translator, "concurrent_beams", 2)
    monkeypatch.setattr(translator, "encode", watched)
    assert translator.beam(SOURCES, k=4) == expected
    assert threading.get_ident() not in threads


class _Gpu:
    """Says that it is a GPU; nothing is computed on it."""

    type = "cuda"


@pytest.mark.parametrize("sources", [[], ["", " "]])
def test_beam_search_without_text_needs_no_encoder(sources: list[str]) -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32")
    expected = translator.beam(sources, k=2)
    translator.device = _Gpu()
    assert translator.beam(sources, k=2) == expected


def test_too_little_memory_for_a_recording_is_no_reason_never_to_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Any:
        def recording(*arguments: Any) -> Any:
            raise error

        return recording

    device, failed = torch.device("cuda", 7), set[torch.device]()
    monkeypatch.setattr(gpu, "_failed", failed)
    for error, expected in ((torch.OutOfMemoryError("none left"), set()), (RuntimeError("not so"), {device})):
        monkeypatch.setattr(gpu, "_record", fail(error))
        with pytest.warns(MbraceWarning, match=f"without CUDA graphs: {error}"):
            assert gpu.record(lambda: None, device) is None
        assert failed == expected


def test_ctrl_c_does_not_wait_for_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def search(number: int) -> int:
        if number == 0:
            raise KeyboardInterrupt
        assert go_on.wait(120)
        return number

    with pytest.raises(KeyboardInterrupt):  # while the other one still runs
        run_searches(2, search, lambda number, found: found, CPU, concurrent=2)
    go_on.set()


def test_searches_begin_one_after_another_on_a_gpu() -> None:
    inside, most, seen = 0, [], []

    def begin(name: int) -> None:
        nonlocal inside
        with exclusive_start(torch.device("cuda")) as starting:  # no GPU is asked for
            with exclusive_start(torch.device("cuda")):  # what a search does inside, such as encoding
                inside += 1
                most.append(inside)
                time.sleep(0.01)
                inside -= 1
            starting.close()
            seen.append(name)

    threads = [threading.Thread(target=begin, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert most == [1, 1, 1, 1]
    assert sorted(seen) == [0, 1, 2, 3]


PREFETCHED = ["a b c", "b c", "c", "a a b"]
IDS = [1, 2, 3, 4]


def hypotheses(sources: Sequence[str], ids: Sequence[str | int]) -> list[list[str]]:
    return [[f"{source} {letter}" for letter in "abcd"] for source in sources]


RECORDS = [Record((), id=name, source=source) for name, source in zip(IDS, PREFETCHED, strict=True)]


def test_prefetched_draws_are_those_made_after_the_search_also_next_to_a_bad_line(translator: mbrace.Seq2Seq) -> None:
    bad = Bad(Location("s.txt", 2), None, "not UTF-8")
    found = []
    for items, prefetches in ((RECORDS, False), (RECORDS, True), ([RECORDS[0], bad, *RECORDS[1:]], True)):
        sampler = translator.sampler(seed=2, ahead=(4, 16))
        maker = HypothesisMaker(hypotheses, window=2, prefetch=sampler.prefetch if prefetches else None)
        made = (item for item in maker.items(items) if isinstance(item, Record))
        answers = list(mbrace.decode_corpus(made, sampler=sampler, schedule=[2, 4, 8, 16], window=2))
        found.append((answers, sampler.drawn))
    assert len(found[0][0]) == 4
    assert found[0] == found[1] == found[2]


def test_a_window_of_some_of_the_sources_gets_its_own_draws(translator: mbrace.Seq2Seq) -> None:
    wants = [Want(0, 0, 4), Want(1, 0, 9)]
    records = [RECORDS[2], RECORDS[0]]
    plain = translator.sampler(seed=2, ahead=4).start(records).draw(wants)
    sampler = translator.sampler(seed=2, ahead=4)
    sampler.prefetch(PREFETCHED, IDS)
    drawer = sampler.start(records)
    assert drawer.draw(wants) == plain
    assert sampler.drawn == 4 * len(PREFETCHED) + 5
    # another window is drawn for anew, and so is a source with another id
    assert sampler.start(records).draw(wants) == plain
    sampler.prefetch(PREFETCHED, [5, 6, 7, 8])
    assert sampler.start(records).draw(wants) == plain


def test_a_source_that_cannot_be_drawn_for_costs_the_others_nothing(translator: mbrace.Seq2Seq) -> None:
    sampler = translator.sampler(seed=2, ahead=4)
    sampler.prefetch([*PREFETCHED, "a " * 5000], [*IDS, 5])
    wants = [Want(i, 0, 4) for i in range(4)]
    assert sampler.start(RECORDS).draw(wants) == translator.sampler(seed=2).start(RECORDS).draw(wants)
    long = translator.sampler(seed=2, ahead=4)
    long.prefetch(["a " * 5000], [5])
    with pytest.raises(UserError, match="split it into sentences"):
        long.start([Record((), id=5, source="a " * 5000)]).draw([Want(0, 0, 4)])
