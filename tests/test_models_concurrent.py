"""Several searches at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import tiny_models as tiny
import torch

import mbrace
from mbrace.errors import MbraceWarning
from mbrace.models import gpu
from mbrace.models.gpu import startup_lock
from mbrace.models.search import run_searches

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
        with startup_lock(torch.device("cuda")) as startup:  # no GPU is asked for
            with startup_lock(torch.device("cuda")):  # what a search does inside, such as encoding
                inside += 1
                most.append(inside)
                time.sleep(0.01)
                inside -= 1
            startup.close()
            seen.append(name)

    threads = [threading.Thread(target=begin, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1, 1, 1, 1]
    assert sorted(seen) == [0, 1, 2, 3]
