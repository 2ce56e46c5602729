"""The GPU kernels of decoding: on a GPU, or on a CPU in Triton's interpreter (`make fused`)."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import test_models_kv_cache
import tiny_models
import torch

import mbrace
from mbrace.models import beam_search, gpu
from mbrace.models import next_ids as choice
from mbrace.models.beam_search import best_totals

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton and TRITON_INTERPRET=1 (make fused)", allow_module_level=True)
fused = pytest.importorskip("mbrace.models.fused")
fused = pytest.importorskip("mbrace.models.fused")
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
    found = choice.ChosenIds(*fused.next_ids(logits, bias, u, epsilon=epsilon, min_p=min_p))
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
    whole = choice.ChosenIds(*fused.next_ids(logits, bias, u, epsilon=0.0, min_p=0.0))
    part = choice.ChosenIds(*fused.next_ids(logits[5:9], bias, u[5:9], epsilon=0.0, min_p=0.0))
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
        highest, added = fused.chunk_maxima(logits, shift, 64)
        logprobs = (logits.float() if shift is None else logits.float() + shift) + added[:, None]
        torch.testing.assert_close(logprobs, choice.log_probabilities(logits, shift), atol=1e-5, rtol=1e-6)
        totals = (logprobs.view(2, 12, ids) + scores[:, :, None]).flatten(1)
        found, index = best_totals(logits, shift, scores, 24, own_rows)
        assert torch.equal(found, totals.sort(dim=1, descending=True).values[:, :24])
        assert torch.equal(totals.gather(1, index), found)
        expected = [part.amax(-1) for part in logprobs.split(64, dim=-1)]
        assert torch.equal(highest, torch.stack(expected, dim=-1))


@pytest.mark.parametrize("ids", [640, 641, 703])
def test_the_totals_of_chosen_chunks_are_those_of_all(ids: int) -> None:
    sources, width, paths, parts = 3, 5, 7, -(-ids // 64)
    logits, bias = random_logits(sources * width, ids)
    shifts, scores = torch.randn(sources * width, device=DEVICE), -torch.rand(sources, paths, device=DEVICE)
    rows = torch.randint(0, sources * width, (sources, paths), device=DEVICE)
    chunks = torch.stack([torch.randperm(paths * parts, device=DEVICE)[:21] for _ in range(sources)])
    for shift in (bias, None):
        of_rows = (logits if shift is None else logits + shift) + shifts[:, None]
        expected, first = beam_search._chunk_totals(of_rows, scores, rows, chunks)
        values, index = fused.chunk_totals(logits, shift, shifts, scores, rows, chunks, 64)
        assert torch.equal(values, expected)
        assert torch.equal(index, first)


def beams(k: int, ends: tuple[int, ...] = (0,)) -> tuple[Any, Any]:
    """Two of the same searches over 4 sources, at time 2, the third source closed: with kernels, and without."""
    state = SimpleNamespace(select=lambda rows, offsets: None, recordable=True)
    decoder: Any = SimpleNamespace(start=lambda memory, width, most: state)
    limits = torch.tensor([9, 3, 9, 9], device=DEVICE)  # the second ends at this step
    found = [beam_search._Beam(decoder, None, limits, k, 0.7, 0, ends) for _ in range(2)]
    for search in found:
        search.vocabulary, search.fixed_size = 11, True
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


@pytest.mark.parametrize("k", [1, 5, 70, 600])
def test_paths_enter_rows_by_the_kernel(k: int) -> None:
    torch.manual_seed(k)
    mine, theirs = beams(k)
    parents, ids = torch.randint(0, k, (4, k), device=DEVICE), torch.randint(0, 6, (4, k), device=DEVICE)
    scores = -torch.rand(4, k, device=DEVICE)
    scores[3, k // 2 :] = -torch.inf
    before = torch.randint(0, 9, (4, k), device=DEVICE)
    for search in (mine, theirs):
        search.row_of_path.copy_(before)
        search.scores.copy_(scores)
        search._enter_rows(parents, ids)
        search.row_of_path.masked_fill_(
            (search.scores == -torch.inf) | search.closed[:, None], -1
        )  # those mean nothing
    used = int(mine.offsets[-1])
    for search in (mine, theirs):
        search.came_from, search.ids = search.came_from[:used], search.ids[:used]
    assert same_tensors(mine, theirs)
    assert mine.offsets.diff()[2] == 0  # the finished source
    is_open = mine.row_of_path >= 0
    assert mine.row_of_path.max() < used == is_open.sum()
    assert torch.equal(mine.came_from[mine.row_of_path[is_open]], before.gather(1, parents)[is_open])
    assert torch.equal(mine.ids[mine.row_of_path[is_open]], ids[is_open])


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
        for activation in (None, torch.nn.SiLU(), torch.nn.ReLU(), torch.nn.GELU()):
            found = fused.linear(x, weight, shift, count, activation)[:used]
            expected = torch.nn.functional.linear(x.float(), weight.float(), None if shift is None else shift.float())
            expected = (expected if activation is None else activation(expected))[:used]
            torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0.02)


def test_a_product_in_a_row_depends_on_no_other() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(300, 64, device=DEVICE).half(), torch.randn(90, 64, device=DEVICE).half()
    whole = fused.linear(x, weight, None, torch.tensor([300], device=DEVICE))
    part = fused.linear(x[100:].contiguous(), weight, None, torch.tensor([50], device=DEVICE))
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
    found = fused.attend_to_memory(query, keys, values, bias, offsets, 40)[: sum(counts)]
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
    expected = test_models_kv_cache.attend(*copies, time)
    found = fused.attend(new, keys, values, table, time)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(keys.cpu(), copies[1])
    torch.testing.assert_close(values.cpu(), copies[2])


def test_rows_that_are_not_in_use_are_left_alone() -> None:
    torch.manual_seed(3)
    new, (keys, values) = torch.randn(4, 3, 2, 8, device=DEVICE), torch.randn(2, 24, 4, 2, 8, device=DEVICE)
    table, used = torch.arange(4, dtype=torch.int32, device=DEVICE).repeat(24, 1), torch.tensor([3], device=DEVICE)
    whole = fused.attend(new, keys.clone(), values.clone(), table, 20)
    keys[:, 3] = values[:, 3] = torch.nan
    part = fused.attend(new, keys, values, table, 20, used)
    assert torch.equal(part[:3], whole[:3])
    assert keys[:, 3].isnan().all()
    logits, bias = random_logits(4, 300)
    u = torch.rand(4, dtype=torch.float64, device=DEVICE)
    chosen = choice.ChosenIds(*fused.next_ids(logits, bias, u, epsilon=0.0, min_p=0.0))
    highest, shifts = fused.chunk_maxima(logits, bias, 64)
    logits[3] = torch.nan
    some = choice.ChosenIds(*fused.next_ids(logits, bias, u, epsilon=0.0, min_p=0.0, used=used))
    assert some.ids.tolist() == [*chosen.ids[:3].tolist(), 0]
    assert torch.equal(some.logprobs[:3], chosen.logprobs[:3])
    for mine, theirs in zip(fused.chunk_maxima(logits, bias, 64, used), (highest, shifts), strict=True):
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
    monkeypatch.setattr(fused, "FEW_ROWS", 0)
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
