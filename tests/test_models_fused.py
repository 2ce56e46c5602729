"""The GPU kernels of decoding: on a GPU, or on a CPU in Triton's interpreter (`make fused`)."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import stand_in_kernels
import tiny_models
import torch

import mbrace
from mbrace.models import gpu
from mbrace.models import next_ids as choice
from mbrace.models.beam_search import best_totals

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton and TRITON_INTERPRET=1 (make fused)", allow_module_level=True)
kernels = pytest.importorskip("mbrace.models.kernels")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
LOW = [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]  # the interpreter multiplies no bfloat16


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
    found = choice.ChosenIds(*kernels.next_ids(logits, bias, u, epsilon=epsilon, min_p=min_p))
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
    whole = choice.ChosenIds(*kernels.next_ids(logits, bias, u, epsilon=0.0, min_p=0.0))
    part = choice.ChosenIds(*kernels.next_ids(logits[5:9], bias, u[5:9], epsilon=0.0, min_p=0.0))
    for name in ("ids", "before", "size", "total", "logprobs"):
        assert torch.equal(getattr(whole, name)[5:9], getattr(part, name))


@pytest.mark.parametrize("ids", [640, 641, 703, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_continuations_have_the_bits_of_all_totals_sorted(ids: int, dtype: torch.dtype) -> None:
    logits, bias = random_logits(24, ids)
    logits, scores = logits.to(dtype), -torch.rand(2, 12, device=DEVICE)
    scores[0, 3] = -torch.inf
    own_rows = torch.arange(24, device=DEVICE).view(2, 12)
    for shift in (bias, None):
        highest, added = kernels.chunk_maxima(logits, shift, 64)
        logprobs = (logits.float() if shift is None else logits.float() + shift) + added[:, None]
        torch.testing.assert_close(logprobs, choice.log_probabilities(logits.clone(), shift), atol=1e-5, rtol=1e-6)
        totals = (logprobs.view(2, 12, ids) + scores[:, :, None]).flatten(1)
        found, index = best_totals(logits, shift, scores, 24, own_rows)
        assert torch.equal(found, totals.sort(dim=1, descending=True).values[:, :24])
        assert torch.equal(totals.gather(1, index), found)
        expected = [part.amax(-1) for part in logprobs.split(64, dim=-1)]
        assert torch.equal(highest, torch.stack(expected, dim=-1))


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    ("rows", "used", "inputs", "units"), [(300, 130, 128, 200), (40, 40, 64, 16), (130, 0, 64, 70)]
)
def test_products_of_the_rows_in_use_are_those_of_torch(
    rows: int, used: int, inputs: int, units: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    x, weight, bias = (torch.randn(shape, device=DEVICE) for shape in ((rows, inputs), (units, inputs), (units,)))
    x, weight, bias = x.to(dtype), (weight / 8).to(dtype), bias.to(dtype)
    count = torch.tensor([used], device=DEVICE)
    for shift in (bias, None):
        found = kernels.linear(x, weight, shift, count)[:used]
        expected = torch.nn.functional.linear(x.float(), weight.float(), None if shift is None else shift.float())
        torch.testing.assert_close(found.float(), expected[:used], atol=0.03, rtol=0.02)


def test_a_product_in_a_row_depends_on_no_other() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(300, 64, device=DEVICE).half(), torch.randn(90, 64, device=DEVICE).half()
    whole = kernels.linear(x, weight, None, torch.tensor([300], device=DEVICE))
    part = kernels.linear(x[100:].contiguous(), weight, None, torch.tensor([50], device=DEVICE))
    assert torch.equal(part[:50], whole[100:150])


@pytest.mark.parametrize("counts", [[3, 0, 40], [1, 1, 1], [17, 16, 0], [0, 0, 0]])
@pytest.mark.parametrize(("heads", "size", "length"), [(2, 8, 8), (1, 64, 40), (3, 24, 33)])
def test_rows_attend_to_the_memory_of_their_source(counts: list[int], heads: int, size: int, length: int) -> None:
    torch.manual_seed(length)
    rows = sum(counts) + 5
    query = torch.randn(rows, heads * size, device=DEVICE)
    keys, values = torch.randn(2, 3, heads, length, size, device=DEVICE)
    bias = torch.zeros(3, 1, 1, length, device=DEVICE)
    bias[0, :, :, length // 2 :] = -torch.inf
    number = torch.tensor(counts, device=DEVICE)
    offsets = torch.nn.functional.pad(number.cumsum(0), (1, 0))
    found = kernels.attend_to_memory(query, keys, values, bias, offsets, 40)[: sum(counts)]
    source = torch.arange(3, device=DEVICE).repeat_interleave(number)
    scores = torch.einsum("rhs,rhls->rhl", query[: len(source)].view(-1, heads, size), keys[source]) / size**0.5
    weights = (scores + bias[source, 0]).softmax(-1)
    expected = torch.einsum("rhl,rhls->rhs", weights, values[source]).flatten(1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("time", "heads", "size"), [(0, 2, 8), (1, 1, 16), (16, 3, 6), (37, 2, 64)])
def test_attention_follows_the_table_of_rows(time: int, heads: int, size: int) -> None:
    torch.manual_seed(time)
    rows, capacity, room = 5, 7, 40
    new = torch.randn(rows, 3, heads, size, device=DEVICE)
    keys, values = (torch.randn(room, capacity, heads, size, device=DEVICE) for _ in range(2))
    table = torch.randint(0, capacity, (room, capacity), dtype=torch.int32, device=DEVICE)
    table[time] = torch.arange(capacity, device=DEVICE)
    copies = [x.cpu().clone() for x in (new, keys, values, table)]
    expected = stand_in_kernels.attend(*copies, time)
    found = kernels.attend(new, keys, values, table, time)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(keys.cpu(), copies[1])
    torch.testing.assert_close(values.cpu(), copies[2])


def test_rows_that_are_not_in_use_are_left_alone() -> None:
    torch.manual_seed(3)
    new, (keys, values) = torch.randn(4, 3, 2, 8, device=DEVICE), torch.randn(2, 24, 4, 2, 8, device=DEVICE)
    table, used = torch.arange(4, dtype=torch.int32, device=DEVICE).repeat(24, 1), torch.tensor([3], device=DEVICE)
    whole = kernels.attend(new, keys.clone(), values.clone(), table, 20)
    keys[:, 3] = values[:, 3] = torch.nan
    part = kernels.attend(new, keys, values, table, 20, used)
    assert torch.equal(part[:3], whole[:3])
    assert keys[:, 3].isnan().all()
    logits, bias = random_logits(4, 300)
    u = torch.rand(4, dtype=torch.float64, device=DEVICE)
    chosen = choice.ChosenIds(*kernels.next_ids(logits, bias, u, epsilon=0.0, min_p=0.0))
    highest, shifts = kernels.chunk_maxima(logits, bias, 64)
    logits[3] = torch.nan
    some = choice.ChosenIds(*kernels.next_ids(logits, bias, u, epsilon=0.0, min_p=0.0, used=used))
    assert some.ids.tolist() == [*chosen.ids[:3].tolist(), 0]
    assert torch.equal(some.logprobs[:3], chosen.logprobs[:3])
    for mine, theirs in zip(kernels.chunk_maxima(logits, bias, 64, used), (highest, shifts), strict=True):
        assert torch.equal(mine[:3], theirs[:3])
    plain = choice.next_ids(logits, bias, u, choice.Truncation(top_k=5), used)  # without a kernel
    assert 0 <= int(plain.ids.min()) <= int(plain.ids.max()) < 300


@pytest.mark.parametrize("sampling", ["independent", "arithmetic"])
@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_whole_searches_are_those_without_kernels(
    sampling: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = ["a b c", "d", "b b a d c"]
    low = dtype != torch.float32
    monkeypatch.setattr(kernels, "FEW_ROWS", 0)
    if INTERPRETED:  # rows are kept as on a GPU, where steps are recorded
        monkeypatch.setattr(gpu, "can_record", lambda device: True)
        monkeypatch.setattr(gpu, "_record", lambda step, device: SimpleNamespace(replay=step))

    def outputs() -> tuple[list[list[str]], list[list[str]], list[list[float]]]:
        model = tiny_models.marian(units=64) if low else tiny_models.marian()
        translator = mbrace.Seq2Seq(model.to(DEVICE), tokenizer=tiny_models.tokenizer(), dtype=dtype)
        drawn = translator.sample(sources, 5, max_length=24, sampling=sampling)
        beams = translator.beam(sources, 4, max_length=24)
        return [list(draws.texts) for draws in drawn], [list(b.texts) for b in beams], [list(b.scores) for b in beams]

    drawn, beams, scores = outputs()
    with monkeypatch.context() as without_recording:  # on a CPU only rows in use are there
        without_recording.setattr(gpu, "can_record", lambda device: False)
        assert not low or not INTERPRETED or outputs() == (drawn, beams, scores)
    monkeypatch.setattr(gpu, "kernels_for", lambda device: None)
    plainly_drawn, plain_beams, plain_scores = outputs()
    if not low:  # otherwise rounding differs
        assert drawn == plainly_drawn
        assert beams == plain_beams
    for mine, theirs in zip(scores, plain_scores, strict=True):
        assert mine == pytest.approx(theirs, abs=0.02 if low else 1e-4)
