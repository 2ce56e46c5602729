"""Several searches at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import tiny_models as tiny
import torch

import mbrace
from mbrace.models.at_once import searched
from mbrace.models.recorded import alone, let_searches_begin

CPU = torch.device("cpu")
SOURCES = ["a b c", "b c", "c", "a a b", " ", "a b c a b"]


@pytest.fixture(scope="module")
def translator() -> mbrace.Seq2Seq:
    return mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), dtype="float32", rows=8)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_what_is_found_comes_in_the_order_of_its_numbers(at_once: int) -> None:
    last_is_done = threading.Event()

    def search(number: int) -> int:
        if at_once > 1 and number == 0:
            assert last_is_done.wait(10)  # the first search ends last
        if number == 4:
            last_is_done.set()
        return number * number

    assert searched(5, search, lambda number, found: (number, found), CPU, at_once) == [
        (number, number * number) for number in range(5)
    ]


def test_a_search_without_memory_is_run_again_alone() -> None:
    together, tries = threading.Barrier(2, timeout=10), []

    def search(number: int) -> int:
        tries.append(number)
        if len(tries) <= 2:
            together.wait()
            if number == 1:
                raise torch.OutOfMemoryError("too little memory beside the other")
        return number

    assert searched(2, search, lambda number, found: found, CPU, at_once=2) == [0, 1]
    assert sorted(tries) == [0, 1, 1]
    with pytest.raises(torch.OutOfMemoryError):  # nor alone
        searched(2, lambda number: (_ for _ in ()).throw(torch.OutOfMemoryError("none")), print, CPU, at_once=2)


def test_other_errors_of_a_search_are_raised() -> None:
    def search(number: int) -> int:
        raise mbrace.UserError(f"source {number}")

    for at_once in (1, 2):
        with pytest.raises(mbrace.UserError, match="source 0"):
            searched(3, search, print, CPU, at_once)


def test_beam_search_of_two_parts_at_once_finds_what_one_after_another_does(
    translator: mbrace.Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = translator.beam(SOURCES, k=4)
    threads = set()
    encode = translator.encode

    def watched(rows: Any) -> Any:
        threads.add(threading.get_ident())
        return encode(rows)

    monkeypatch.setattr(translator, "wider", (8, 1))
    monkeypatch.setattr(translator, "encode", watched)
    assert translator.beam(SOURCES, k=4) == expected
    assert threading.get_ident() not in threads


@torch.inference_mode()
def test_sources_that_are_encoded_together_have_the_memory_they_have_alone(translator: mbrace.Seq2Seq) -> None:
    rows = translator.codec.encode(["a b c a b c a b c", "a b c", "b c", "c"])
    whole, part = translator.encode(rows).part(1, 3, 8), translator.encode(rows[1:3])
    for mine, theirs in zip(
        [*whole.keys, *whole.values, whole.bias], [*part.keys, *part.values, part.bias], strict=True
    ):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_searches_begin_one_after_another_on_a_gpu() -> None:
    inside, most, seen = 0, [], []

    def begin(name: int) -> None:
        nonlocal inside
        with alone(torch.device("cuda")) as others_wait:  # no GPU is asked for
            with alone(torch.device("cuda")):  # what a search does inside, such as encoding
                inside += 1
                most.append(inside)
                time.sleep(0.01)
                inside -= 1
            others_wait.close()
            seen.append(name)

    threads = [threading.Thread(target=begin, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1, 1, 1, 1]
    assert sorted(seen) == [0, 1, 2, 3]


def test_what_is_not_urgent_lets_searches_begin() -> None:
    order = []

    def write() -> None:
        let_searches_begin()
        order.append("written")

    with alone(torch.device("cuda")) as others_wait:
        thread = threading.Thread(target=write)
        thread.start()
        time.sleep(0.02)
        order.append("begun")
        others_wait.close()
        thread.join(10)
    assert order == ["begun", "written"]
    with alone(torch.device("cuda")):  # but waits for no search for long
        let_searches_begin()
    with alone(CPU):
        let_searches_begin()
