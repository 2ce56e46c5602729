"""The GPU kernels of decoding: on a GPU, or on a CPU in Triton's interpreter (`make fused`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import test_models_past
import tiny_models

import mbrace
from mbrace.models import choice, past
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
        best, index = best_totals(grid, shift, scores, 24)
        own_rows = torch.arange(12, device=DEVICE).expand(2, -1)
        torch.testing.assert_close(best_totals(grid, shift, scores, 24, own_rows)[0], best, atol=1e-5, rtol=1e-6)
        assert torch.equal(best, totals.sort(dim=1, descending=True).values[:, :24])
        assert torch.equal(totals.gather(1, index), best)
        expected = [part.amax(-1) for part in totals.view(24, ids).split(64, dim=-1)]
        assert torch.equal(highest, torch.stack(expected, dim=-1))


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
