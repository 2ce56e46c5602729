"""The GPU kernels of decoding: on a GPU, or on a CPU in Triton's interpreter (`make fused`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import test_models_past
import tiny_models

import mbrace
from mbrace.models import beam_search, best, choice, past
from mbrace.models.best import best_totals

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton and TRITON_INTERPRET=1 (make fused)", allow_module_level=True)
fused = pytest.importorskip("mbrace.models.fused")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


def random_logits(rows: int, ids: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(ids)
    bias = torch.randn(ids, device=DEVICE)
    bias[ids // 2] = -torch.inf
    return 3 * torch.randn(rows, ids, device=DEVICE), bias


@pytest.mark.parametrize("ids", [7, 256, 5000])
@pytest.mark.parametrize(("epsilon", "min_p"), [(0.0, 0.0), (0.02, 0.0), (0.0, 0.1), (0.9, 0.0)])
def test_the_kernel_chooses_the_same_ids_and_intervals(ids: int, epsilon: float, min_p: float) -> None:
    logits, bias = random_logits(24, ids)
    u = torch.rand(24, dtype=torch.float64, device=DEVICE)
    u[0], u[1] = 0.0, 1 - 2.0**-53
    found = fused.next_ids(logits, bias, u, epsilon=epsilon, min_p=min_p)
    weights = choice.Truncation(epsilon=epsilon, min_p=min_p)(logits + bias)
    expected, before, size, total = choice._intervals(weights, u)
    assert found.ids.tolist() == expected.tolist()
    scale = total.double()
    for mine, theirs in ((found.before, before), (found.size, size), (found.total, total)):
        torch.testing.assert_close(mine / scale, theirs / scale, atol=1e-5, rtol=0)
    logprobs = (logits + bias).log_softmax(-1).gather(1, expected[:, None])[:, 0]
    torch.testing.assert_close(found.logprobs, logprobs, atol=1e-4, rtol=1e-4)


def test_an_id_depends_on_no_other_row() -> None:
    logits, bias = random_logits(16, 3000)
    u = torch.rand(16, dtype=torch.float64, device=DEVICE)
    whole = fused.next_ids(logits, bias, u, epsilon=0.0, min_p=0.0)
    part = fused.next_ids(logits[5:9], bias, u[5:9], epsilon=0.0, min_p=0.0)
    for name in ("ids", "before", "size", "total", "logprobs"):
        assert torch.equal(getattr(whole, name)[5:9], getattr(part, name))


@pytest.mark.parametrize("ids", [640, 641, 703, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_continuations_have_the_bits_of_all_totals_sorted(ids: int, dtype: torch.dtype) -> None:
    logits, bias = random_logits(24, ids)
    grid, scores = logits.to(dtype).view(2, 12, ids), -torch.rand(2, 12, device=DEVICE)
    scores[0, 3] = -torch.inf
    for shift in (bias, None):
        highest, added = fused.chunk_maxima(grid.flatten(0, 1), shift, scores.flatten(), 64)
        biased = grid.flatten(0, 1).float() if shift is None else grid.flatten(0, 1).float() + shift
        totals = (biased + added[:, None]).view(2, -1)
        theirs = fused.add_logprobs(grid.flatten(0, 1), shift, scores.flatten()).view(2, -1)
        torch.testing.assert_close(totals, theirs, atol=1e-5, rtol=1e-6)
        found, index = best_totals(grid, shift, scores, 24)
        own_rows = torch.arange(12, device=DEVICE).expand(2, -1)
        torch.testing.assert_close(best_totals(grid, shift, scores, 24, own_rows)[0], found, atol=1e-5, rtol=1e-6)
        assert torch.equal(found, totals.sort(dim=1, descending=True).values[:, :24])
        assert torch.equal(totals.gather(1, index), found)
        expected = [part.amax(-1) for part in totals.view(24, ids).split(64, dim=-1)]
        assert torch.equal(highest, torch.stack(expected, dim=-1))


@pytest.mark.parametrize("ids", [640, 641, 703])
@pytest.mark.parametrize("shared", [True, False])
def test_the_totals_of_chosen_chunks_are_those_of_all(ids: int, shared: bool) -> None:
    sources, width, parts = 3, 5, -(-ids // 64)
    paths = 7 if shared else width
    logits, bias = random_logits(sources * width, ids)
    shifts, scores = torch.randn(sources * width, device=DEVICE), -torch.rand(sources, paths, device=DEVICE)
    states = torch.randint(0, width, (sources, paths), device=DEVICE) if shared else None
    chunks = torch.stack([torch.randperm(paths * parts, device=DEVICE)[:21] for _ in range(sources)])
    for shift in (bias, None):
        of_rows = (logits if shift is None else logits + shift) + shifts[:, None]
        expected, first = best._chunk_totals(of_rows, scores, states, chunks)
        values, index = fused.chunk_totals(logits.view(sources, width, -1), shift, shifts, scores, states, chunks, 64)
        assert torch.equal(values, expected)
        assert torch.equal(index, first)
        if states is not None:
            assert torch.equal(fused.totals_of_paths(of_rows, scores, states), best._of_paths(of_rows, scores, states))


def beams(k: int, states: int | None = None, ends: tuple[int, ...] = (0,)) -> tuple[Any, Any]:
    """Two of the same searches over 4 sources, at time 2, the third source closed: with kernels, and without."""
    decoder: Any = SimpleNamespace(start=lambda memory, width: None)
    limits = torch.tensor([9, 3, 9, 9], device=DEVICE)  # the second ends at this step
    found = [beam_search._Beam(decoder, None, limits, k, 0, ends, 0.7, states) for _ in range(2)]
    for search in found:
        search.vocabulary = 11
        search.clock += 2
        search.closed[2] = True
    found[1].kernels = None
    return found[0], found[1]


def same_tensors(mine: Any, theirs: Any) -> bool:
    pairs = [(x, vars(theirs)[name]) for name, x in vars(mine).items() if isinstance(x, torch.Tensor)]
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("k", [1, 5, 16, 70, 600])
@pytest.mark.parametrize("ends", [(0,), (3, 0, 7, 9, 1, 2)])
def test_extensions_that_end_are_split_from_those_that_do_not(k: int, ends: tuple[int, ...]) -> None:
    torch.manual_seed(k)
    totals = (-9 * torch.rand(4, 2 * k, device=DEVICE)).sort(dim=1, descending=True).values
    totals[3, k:] = -torch.inf
    extensions = torch.stack([torch.randperm(11 * k, device=DEVICE)[: 2 * k] for _ in range(4)])
    mine, theirs = beams(k, ends=ends)
    for found, expected in zip(mine._split(totals, extensions), theirs._split(totals, extensions), strict=True):
        assert torch.equal(found, expected)
    assert same_tensors(mine, theirs)


@pytest.mark.parametrize(("k", "states"), [(5, 2), (16, 15), (33, 8), (70, 69), (600, 20)])
@pytest.mark.parametrize("width_before", [1, 3])
def test_paths_are_recombined_by_the_kernel(k: int, states: int, width_before: int) -> None:
    torch.manual_seed(k)
    mine, theirs = beams(k, states)
    parents, ids = torch.randint(0, k, (4, k), device=DEVICE), torch.randint(0, 6, (4, k), device=DEVICE)
    ids[1] = 10  # its paths fall into few states
    keys, scores = torch.randint(0, 4, (4, k), device=DEVICE) + 2**62, -torch.rand(4, k, device=DEVICE)
    before = torch.randint(0, width_before, (4, k), device=DEVICE)
    for search in (mine, theirs):
        search.ids = torch.zeros((4, width_before), dtype=torch.int64, device=DEVICE)
        for to, value in ((search.keys, keys), (search.states, before), (search.scores, scores)):
            to.copy_(value)
    for found, expected in zip(mine._recombine(parents, ids), theirs._recombine(parents, ids), strict=True):
        assert torch.equal(found, expected)
    assert same_tensors(mine, theirs)


@pytest.mark.parametrize("ids", [7, 5000])
def test_log_probabilities_are_added_to_scores(ids: int) -> None:
    logits, bias = random_logits(6, ids)
    scores = torch.randn(6, device=DEVICE)
    expected = (logits + bias).log_softmax(-1) + scores[:, None]
    torch.testing.assert_close(fused.add_logprobs(logits, bias, scores), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("time", "heads", "size"), [(0, 2, 8), (1, 1, 16), (16, 3, 6), (37, 2, 64)])
def test_attention_follows_the_table_of_rows(time: int, heads: int, size: int) -> None:
    torch.manual_seed(time)
    rows, capacity, room = 5, 7, 40
    new = torch.randn(rows, 3, heads, size, device=DEVICE)
    keys, values = (torch.randn(room, capacity, heads, size, device=DEVICE) for _ in range(2))
    table = torch.randint(0, capacity, (room, capacity), dtype=torch.int32, device=DEVICE)
    table[time] = torch.arange(capacity, device=DEVICE)
    copies = [x.cpu().clone() for x in (new, keys, values, table)]
    expected = test_models_past.attend(*copies, time)
    found = fused.attend(new, keys, values, table, time)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(keys.cpu(), copies[1])
    torch.testing.assert_close(values.cpu(), copies[2])


def test_a_finished_row_changes_no_other_and_its_past_is_not_read() -> None:
    torch.manual_seed(3)
    new, (keys, values) = torch.randn(4, 3, 2, 8, device=DEVICE), torch.randn(2, 24, 4, 2, 8, device=DEVICE)
    table = torch.arange(4, dtype=torch.int32, device=DEVICE).repeat(24, 1)
    opened = torch.tensor([True, False, True, True], device=DEVICE)
    whole = fused.attend(new, keys.clone(), values.clone(), table, 20)
    keys[:20, 1], values[:20, 1] = torch.nan, torch.nan
    part = fused.attend(new, keys, values, table, 20, opened)
    assert torch.equal(part[opened], whole[opened])
    assert not part.isnan().any()


@pytest.mark.parametrize("sampling", ["independent", "arithmetic"])
def test_whole_searches_are_those_without_kernels(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = ["a b c", "d", "b b a d c"]

    def outputs() -> tuple[list[list[str]], list[list[str]], list[list[float]]]:
        translator = mbrace.Seq2Seq(tiny_models.marian().to(DEVICE), tokenizer=tiny_models.tokenizer(), dtype="float32")
        drawn = translator.sample(sources, 5, max_length=24, sampling=sampling)
        beams = [*translator.beam(sources, 4, max_length=24), *translator.beam(sources, 4, max_length=24, states=2)]
        return [list(draws.texts) for draws in drawn], [list(b.texts) for b in beams], [list(b.scores) for b in beams]

    drawn, beams, scores = outputs()
    for module in (choice, past):
        monkeypatch.setattr(module, "kernels_for", lambda device: None)
    plainly_drawn, plain_beams, plain_scores = outputs()
    assert drawn == plainly_drawn
    assert beams == plain_beams
    for mine, theirs in zip(scores, plain_scores, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_the_trial_before_the_first_use_succeeds() -> None:
    assert fused._trial(DEVICE)
