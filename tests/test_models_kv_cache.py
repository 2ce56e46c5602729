"""The past of rows by an index of rows, against one that is copied at every selection."""

from __future__ import annotations

import pytest
import stand_in_kernels
import torch

from mbrace.models.kv_cache import Attend, CopiedCache, IndexedCache, attend_on_cpu, cache_for

CPU = torch.device("cpu")


# sizes of a head: what the kernel reads 64 numbers at a time, 16, one, or all three
SHAPES = [(2, 6), (1, 16), (3, 64), (2, 128), (2, 87)]


@pytest.mark.parametrize("by", [stand_in_kernels.attend, attend_on_cpu])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_keep_their_past_when_they_are_selected_repeated_and_dropped(by: Attend, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(shape[1])
    copied, indexed = CopiedCache(torch.float32, 2), IndexedCache(torch.float32, 2, by, shape, CPU)
    rows = 3
    for time in range(72):
        indexed.make_room(time, rows)
        for layer in range(2):
            new = torch.randn(rows, 3, *shape, generator=generator)
            torch.testing.assert_close(indexed.attend(layer, new), copied.attend(layer, new), atol=1e-5, rtol=1e-5)
        copied.advance(), indexed.advance()
        if time % 3 != 2:
            wanted = 12 if time == 0 else int(torch.randint(2, 70, (), generator=generator))
            chosen = torch.randint(0, rows, (wanted,), generator=generator)
            copied.select(chosen), indexed.select(chosen)
            rows = wanted


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_cpu_the_past_of_a_network_of_16_bits_has_32(dtype: torch.dtype, shared: bool) -> None:
    past = cache_for(CPU, dtype, 1, (2, 6), shared=shared)
    exact = CopiedCache(torch.float64, 1)
    for time in range(20):
        new = torch.randn(4, 3, 2, 6).to(dtype)
        past.make_room(time, 4)
        found, expected = past.attend(0, new), exact.attend(0, new.double())
        assert found.dtype == dtype
        assert torch.equal(found, expected.float().to(dtype)) or torch.allclose(found.double(), expected, rtol=2**-8)
        past.advance(), exact.advance()
        past.select(torch.tensor([1, 0, 2, 2])), exact.select(torch.tensor([1, 0, 2, 2]))


def test_the_past_is_copied_only_where_no_kernel_can_read_it_or_no_rows_share_it() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert isinstance(cache_for(CPU, dtype, 1, (2, 6), shared=True), IndexedCache)
        assert isinstance(cache_for(CPU, dtype, 1, (2, 6), shared=False), CopiedCache)
    assert isinstance(cache_for(CPU, torch.float64, 1, (2, 6), shared=True), CopiedCache)
