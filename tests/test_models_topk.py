"""The best continuations by chunks are those of sorting all totals; finished paths are followed back."""

from __future__ import annotations

import pytest
import torch

from mbrace.models.beam_search import CHUNK, backtrack, best_totals
from mbrace.models.next_ids import log_probabilities


def own_rows(sources: int, width: int) -> torch.Tensor:
    """Each path in a row of its own."""
    return torch.arange(sources * width).view(sources, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("sources", "width", "ids", "count"),
    [
        (3, 16, 640, 32),
        (2, 16, 640 + 1, 32),
        (2, 16, 640 + 63, 32),
        (1, 4, 5 * CHUNK - 1, 8),
        (2, 1, 1000, 8),
        (2, 1, 70, 16),  # fewer chunks than are asked for
        (2, 3, 5, 16),  # fewer totals than are asked for
        (4, 8, 3000, 16),
    ],
)
def test_the_best_are_those_of_all(sources: int, width: int, ids: int, count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(ids)
    logits = (4 * torch.randn(sources, width, ids)).to(dtype)
    bias = torch.randn(ids)
    bias[ids // 2] = -torch.inf
    scores = -5 * torch.rand(sources, width)
    scores[0, -1] = -torch.inf if width > 1 else 0.0  # a row that is not open
    for shift in (bias, None):
        totals = (log_probabilities(logits.clone(), shift) + scores[:, :, None]).flatten(1)
        best, index = best_totals(logits.flatten(0, 1).clone(), shift, scores, count, own_rows(sources, width))
        expected = totals.sort(dim=1, descending=True).values[:, :count]
        assert torch.equal(best, expected)  # the same bits
        assert torch.equal(totals.gather(1, index), best)
        for row, values in zip(index.tolist(), best.tolist(), strict=True):
            assert len(set(row)) == len(row) or values[-1] == -torch.inf


def test_one_chunk_may_hold_all_of_the_best() -> None:
    logits = torch.zeros(2, 8, 40 * CHUNK)
    best = torch.randperm(CHUNK)[:16] + 3 * CHUNK
    logits[0, 5, best] = 50.0 + torch.arange(16.0)
    logits[1, 0, [0, -1]] = 9.0
    scores = torch.zeros(2, 8)
    scores[0] = -100.0
    scores[0, 5] = 0.0
    found = best_totals(logits.flatten(0, 1), None, scores, 16, own_rows(2, 8))[1]
    assert (found[0] - 5 * 40 * CHUNK).tolist() == best.flip(0).tolist()
    assert set(found[1][:2].tolist()) == {0, 40 * CHUNK - 1}
    assert len(set(found[1].tolist())) == 16


def test_where_too_few_are_possible_indexes_are_still_of_paths_and_ids() -> None:
    ids = 40 * CHUNK + 1  # the last chunk of each row has one id
    logits = torch.full((4, ids), -torch.inf)
    logits[:, -1] = 0.0
    for row in (own_rows(1, 4), torch.tensor([[3, 2, 1, 0]])):
        best, index = best_totals(logits, None, torch.zeros(1, 4), 30, row)
        assert best[0].tolist() == [0.0] * 4 + [-torch.inf] * 26
        assert sorted(index[0, :4].tolist()) == [ids * (path + 1) - 1 for path in range(4)]
        assert 0 <= int(index.min()) <= int(index.max()) < 4 * ids


@pytest.mark.parametrize(("sources", "k", "longest"), [(3, 50, 9), (1, 1, 1), (2, 200, 30)])
def test_finished_paths_are_followed_back(sources: int, k: int, longest: int) -> None:
    torch.manual_seed(k)
    extensions = torch.randint(0, 11 * k, (longest + 4, sources, k))  # of 11 ids
    lasts = torch.randint(0, 11 * k, (sources, k))
    lengths = torch.randint(0, longest + 1, (sources, k))
    found = backtrack(extensions, lasts, lengths, longest, 11)
    for row in range(sources * k):  # by hand
        source, path = divmod(row, k)
        ids: list[int] = []
        extension = int(lasts[source, path])
        for time in reversed(range(int(lengths[source, path]))):
            ids.insert(0, extension % 11)
            extension = int(extensions[time - 1, source, extension // 11])
        assert found[row].tolist() == ids + [-1] * (longest - len(ids))
