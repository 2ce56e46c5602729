"""Tokens in flat arrays, the batches of a stream against plain loops, and a GPU's ways run on a CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

import mbrace
from mbrace.neural.batches import BUCKET, CHUNK, BatchStream, packed_end, padded_end
from mbrace.neural.tokens import TokenBatch, Tokens, copy_to_device

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU = torch.device("cpu")


def batch_of(rows: list[list[int]]) -> TokenBatch:
    return TokenBatch.copy(Tokens.of(rows), np.arange(len(rows)), CPU, pad=0)


def padded_loop(lengths: list[int], most: int, mixed: bool) -> list[int]:
    """Where batches end, token by token."""
    half_full = most / 2 if mixed else 0
    ends, batch = [], [0]
    for index in range(1, len(lengths)):
        longest, tokens = lengths[batch[0]], lengths[batch[0]] * len(batch)
        changes = lengths[index] != lengths[batch[-1]]
        shorter = mixed and lengths[index] <= longest - BUCKET
        if tokens + longest > most or shorter or (changes and tokens >= half_full):
            ends.append(index)
            batch = []
        batch.append(index)
    return ends


def packed_loop(lengths: list[int], most: int, mixed: bool) -> list[int]:
    ends, tokens = [], lengths[0]
    for index, length in enumerate(lengths[1:], start=1):
        tokens += length
        if tokens > most:
            ends.append(index)
            tokens = length
    return ends


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("end_of", "loop"),
    [
        (lambda *given, **options: padded_end(*given, **options), padded_loop),
        (lambda *given, most, mixed: packed_end(*given, most=most), packed_loop),
    ],
    ids=["padded", "packed"],
)
def test_batches_end_where_those_of_a_plain_loop_do(
    end_of: Callable[..., int], loop: Callable[[list[int], int, bool], list[int]], seed: int
) -> None:
    generator = random.Random(seed)
    lengths = sorted((generator.randint(1, 40) for _ in range(generator.randint(1, 300))), reverse=True)
    most, mixed = generator.choice([1, 30, 100, 1000]), generator.choice([False, True])
    array, found, begin = np.array(lengths), [], 0
    while (begin := end_of(array, begin, most=most, mixed=mixed)) < len(lengths):
        found.append(begin)
    assert found == loop(lengths, most, mixed)


def test_a_batch_is_its_rows_padded_or_one_after_another() -> None:
    rows = [[5, 6], [7], [0, 8, 9], [3, 4, 2]]
    assert [row.tolist() for row in Tokens.of(rows)] == rows
    strings = batch_of(rows)
    assert strings.indices.tolist() == [2, 3, 0, 1]
    assert strings.ids().tolist() == [[0, 8, 9], [3, 4, 2], [5, 6, 0], [7, 0, 0]]
    assert strings.attended().int().tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert strings.holds_pad.tolist() == [True, False, False, False]
    assert strings[:2].mask() is None
    assert strings[1:].mask() is not None
    assert strings[2:].ids().tolist() == [[5, 6], [7, 0]]
    packed = strings[1:].packed()
    assert packed.ids.tolist() == [3, 4, 2, 5, 6, 7]
    assert packed.positions.tolist() == [0, 1, 2, 0, 1, 0]
    assert packed.offsets.tolist() == [0, 3, 5, 6]
    assert packed.groups == [(1, 3), (1, 2), (1, 1)]
    assert packed.longest == 3


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pads", [False, True])
def test_every_string_goes_through_the_network_once(pads: bool, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches and in chunks that are tokenised ahead."""
    monkeypatch.setitem(CHUNK, "cuda", (8, 16))
    monkeypatch.setitem(CHUNK, "cpu", (30, 30))
    generator = random.Random(4)
    rows = [[generator.randint(1, 99) for _ in range(generator.randint(1, 12))] for _ in range(60)]
    stream = BatchStream(pad=0, limit=50, device=CPU, batch_tokens=40, packed=packed)
    stream.pads = pads

    def tokens_of(some: Any) -> Tokens:
        return Tokens.of([rows[index] for index in some])

    def total(batch: TokenBatch) -> torch.Tensor:
        assert packed or pads or batch.mask() is None
        return batch.ids().sum(dim=1)

    found = stream.scores(np.array([len(row) for row in rows]), tokens_of, total)
    assert found.tolist() == [sum(row) for row in rows]
    assert stream.strings == 60


def test_a_gpu_out_of_memory_is_halved_and_said_once() -> None:
    rows = [[ord(digit) for digit in f"{number:03}"] for number in range(30)]
    sizes, stream = np.full(30, 3), BatchStream(pad=0, limit=50, device=CPU, batch_tokens=10_000)

    def run(most: int) -> list[int]:
        def small_only(batch: TokenBatch) -> torch.Tensor:
            if len(batch) > most:
                raise torch.cuda.OutOfMemoryError("no room")
            return batch.ids().sum(dim=1)

        return stream.scores(sizes, lambda some: Tokens.of([rows[i] for i in some]), small_only).tolist()

    with pytest.warns(UserWarning, match="out of memory") as caught:
        assert run(4) == [sum(row) for row in rows]
    assert len(caught) == 1
    assert stream.batch_tokens == 3 * 3  # 30 rows, 15, 7, then 3 and 4, which fit
    with pytest.raises(mbrace.UserError, match="out of memory for one string of 3 tokens"):
        run(0)


@NEEDS_GPU
def test_copies_to_a_gpu_arrive_whole() -> None:
    arrays = [np.random.default_rng(0).integers(0, 2**31, size) for size in (1, 70_000, 0, 2_000_000, *range(5, 60))]
    found = [copy_to_device([array[:3].astype(np.int32), array[3:]], torch.device("cuda")) for array in arrays]
    assert all(np.array_equal(there.cpu().numpy(), array) for there, array in zip(found, arrays, strict=True))


def test_a_packed_string_is_repeated_where_a_cpu_has_too_few_rows() -> None:
    strings = batch_of([[5, 6], [7]]).enough()
    assert strings.count >= 8
    assert strings.ids()[:2].tolist() == [[5, 6], [7, 0]]
    assert set(chain(*strings.ids().tolist())) == {0, 5, 6, 7}
