"""Token ids in flat arrays: batches against a plain loop, and the padded way of a GPU run on a CPU."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
import torch

from mbrace.neural.tokens import BUCKET, TokenBatch, Tokens, batch_end, packed_end


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_those_of_a_plain_loop(seed: int) -> None:
    generator = random.Random(seed)
    lengths = sorted((generator.randint(1, 40) for _ in range(generator.randint(1, 300))), reverse=True)
    most = generator.choice([1, 30, 100, 1000])
    mixed = generator.choice([False, True])
    half_full = most / 2 if mixed else 0
    expected, batch = [], [0]
    for index in range(1, len(lengths)):
        longest, tokens = lengths[batch[0]], lengths[batch[0]] * len(batch)
        changes = lengths[index] != lengths[batch[-1]]
        shorter = mixed and lengths[index] <= longest - BUCKET
        if tokens + longest > most or shorter or (changes and tokens >= half_full):
            expected.append(index)
            batch = []
        batch.append(index)
    array = np.array(lengths)
    found, begin = [], 0
    while (begin := batch_end(array, begin, most=most, mixed=mixed)) < len(lengths):
        found.append(begin)
    assert found == expected


def test_a_batch_is_its_rows_padded() -> None:
    rows, pad = [[5, 6], [7], [0, 8, 9], [3, 4, 2]], 0
    lengths = np.array([len(row) for row in rows])
    tokens = Tokens(np.array([number for row in rows for number in row], dtype=np.int32), lengths)
    assert [row.tolist() for row in tokens] == rows
    order = np.array([2, 3, 0, 1])
    strings = TokenBatch.copy(tokens, order, torch.device("cpu"), pad=pad)
    assert strings.ids().tolist() == [[0, 8, 9], [3, 4, 2], [5, 6, 0], [7, 0, 0]]
    assert strings.attended().int().tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert strings.holds_pad.tolist() == [True, False, False, False]
    assert strings[:2].even
    assert not strings[1:].even
    assert strings[2:].ids().tolist() == [[5, 6], [7, 0]]


@pytest.mark.parametrize("seed", range(20))
def test_packed_batches_are_those_of_a_plain_loop(seed: int) -> None:
    generator = random.Random(seed)
    rows = [[generator.randint(0, 99) for _ in range(generator.randint(1, 12))] for _ in range(60)]
    tokens = Tokens(np.array([*chain(*rows)], dtype=np.int32), np.array([len(row) for row in rows]))
    order, most = tokens.longest_first(), generator.choice([1, 20, 100, 1000])
    strings = TokenBatch.copy(tokens, order, torch.device("cpu"), pad=0)
    begin, left = 0, [rows[index] for index in order]
    while left:
        batch = [left.pop(0)]
        while left and sum(map(len, batch)) + len(left[0]) <= most:
            batch.append(left.pop(0))
        end = packed_end(strings.host_lengths, begin, most=most)
        assert strings[begin:end].packed().ids.tolist() == [*chain(*batch)]
        lengths = [len(row) for row in batch]
        assert strings[begin:end].groups == [(lengths.count(n), n) for n in sorted(set(lengths), reverse=True)]
        begin = end
    assert begin == len(rows)


def test_packed_tokens_know_their_strings() -> None:
    tokens = Tokens(np.array([5, 6, 7, 0, 8, 9], dtype=np.int32), np.array([2, 1, 3]))
    found = TokenBatch.copy(tokens, np.array([2, 0, 1]), torch.device("cpu"), pad=0).packed()
    assert found.ids.tolist() == [0, 8, 9, 5, 6, 7]
    assert found.positions.tolist() == [0, 1, 2, 0, 1, 0]
    assert found.offsets.tolist() == [0, 3, 5, 6]
    assert found.groups == [(1, 3), (1, 2), (1, 1)]
    assert found.longest == 3
