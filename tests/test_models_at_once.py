"""Several searches at once, and strings that are encoded while others are searched for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models as tiny
import torch

import mbrace
from mbrace.models.at_once import searched
from mbrace.models.hypotheses import SamplingSettings, live_candidates
from mbrace.utilities.neural import ahead
from mbrace.utilities.neural.ahead import EncodedAhead

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
    ready: list[str] = []
    assert translator.beam(SOURCES, k=4, ready=ready.extend) == expected
    assert threading.get_ident() not in threads
    texts = [
        text for outputs, source in zip(expected, SOURCES, strict=True) if source.strip() for text in outputs.texts
    ]
    assert sorted(ready) == sorted(texts)


@torch.inference_mode()
def test_sources_that_are_encoded_together_have_the_memory_they_have_alone(translator: mbrace.Seq2Seq) -> None:
    rows = translator.codec.encode(["a b c a b c a b c", "a b c", "b c", "c"])
    whole, part = translator.encode(rows).part(1, 3, 8), translator.encode(rows[1:3])
    for mine, theirs in zip(
        [*whole.keys, *whole.values, whole.bias], [*part.keys, *part.values, part.bias], strict=True
    ):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, atol=1e-5)


class _Vectors:
    """Counts letters, and notes who asked for what."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, list[str]]] = []

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        if "bad" in texts:
            raise ValueError("bad")
        self.seen.append((threading.current_thread() is threading.main_thread(), list(texts)))
        return torch.tensor([[float(text.count(letter)) for letter in "abc"] for text in texts])


def test_strings_that_were_begun_are_given_once() -> None:
    encode = _Vectors()
    begun = EncodedAhead(encode, CPU)
    begun.begin(["a", "ab", "a"])
    begun.begin(["ab", "cc"])
    ((first, vectors), (second, more)) = begun.take(["cc", "x", "ab", "a"])
    assert (first, second) == ([0], [2, 3])
    assert vectors.tolist() == [[0, 0, 2]]
    assert more.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert encode.seen == [(False, ["a", "ab"]), (False, ["cc"])]
    assert begun.take(["cc", "a"]) == []


def test_strings_that_fail_or_that_nobody_asks_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = _Vectors()
    begun = EncodedAhead(encode, CPU)
    begun.begin(["a", "bad"])
    assert begun.take(["a", "bad"]) == []
    monkeypatch.setattr(ahead, "MOST", 3)
    begun.begin(["a", "b"])
    begun.begin(["c", "cc"])
    assert [indices for indices, _ in begun.take(["a", "b", "c", "cc"])] == [[2, 3]]


def test_an_encoder_gives_the_vectors_that_it_has_and_makes_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = mbrace.Learned(device="cpu").encoder
    texts = ["one", "two words", "three", "one and more"]
    expected = encoder.embed(texts)
    encoder.encode_ahead(texts)  # on a CPU: not done
    assert encoder._ahead is None
    monkeypatch.setattr(encoder, "pads", True)
    encoder.encode_ahead(["three", "one"])
    before = encoder.embedded
    found = encoder.embed(texts)
    assert encoder.embedded - before in (2, 4)  # those that were begun may be there already
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(encoder.embed(texts[::-1]), expected.flip(0), atol=1e-5)


class _Ahead(mbrace.ChrF):
    """chrF++ that notes what it is told to encode."""

    needs_source = True

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def encode_ahead(self, texts: Sequence[str]) -> None:
        self.told.extend(texts)


@pytest.mark.parametrize("all_race", [False, True])
def test_only_what_the_first_time_step_asks_for_is_encoded_ahead(
    translator: mbrace.Seq2Seq, monkeypatch: pytest.MonkeyPatch, all_race: bool
) -> None:
    utility, device = _Ahead(), translator.device
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr(translator, "device", SimpleNamespace(type="cuda"))  # as far as this function sees
    made, sampler = live_candidates(
        translator, SamplingSettings(3), utility, (2, 6), seed=1, draw=None, window=4, all_race=all_race
    )
    monkeypatch.setattr(translator, "device", device)
    records = list(made.records(SOURCES[:2]))
    hypotheses = [text for record in records for text in record.hypotheses]
    answers = list(
        mbrace.decode_corpus(iter(records), utility=mbrace.ChrF(), sampler=sampler, schedule=(2, 6), window=4)
    )
    assert len(answers) == 2
    draws = translator.sample(SOURCES[:2], 2, seed=1, ids=[1, 2])
    expected = [*SOURCES[:2], *hypotheses, *(text for each in draws for text in each.texts)]
    assert sorted(utility.told) == (sorted(expected) if all_race else [])
