"""The past of rows by an index of rows, against one that is copied at every selection; and the kernel that reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mbrace import _native
from mbrace.models.past import Attend, CopiedPast, IndexedPast, attend_on_cpu, past_for

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another


def attend(
    new: Tensor, keys: Tensor, values: Tensor, table: Tensor, time: int | Tensor, used: Tensor | None = None
) -> Tensor:
    """What a kernel does, by looking up every row's own past."""
    rows, time = len(new), int(time)
    keys[time, :rows], values[time, :rows] = new[:, 1], new[:, 2]
    index = table[: time + 1, :rows].long()
    steps = torch.arange(time + 1)[:, None]
    k, v = (part[steps, index].permute(1, 2, 0, 3) for part in (keys, values))
    weights = torch.softmax((new[:, 0, :, None] * k).sum(-1) / new.shape[-1] ** 0.5, -1)
    return (weights[..., None] * v).sum(2).flatten(1)


# sizes of a head: what the kernel reads 64 numbers at a time, 16, one, or all three
SHAPES = [(2, 6), (1, 16), (3, 64), (2, 128), (2, 87)]


@pytest.mark.parametrize("by", [attend, attend_on_cpu])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_keep_their_past_when_they_are_selected_repeated_and_dropped(by: Attend, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(shape[1])
    copied, indexed = CopiedPast(torch.float32, 2), IndexedPast(torch.float32, 2, by)
    rows = 3
    for time in range(72):
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
    past = past_for(torch.device("cpu"), dtype, 1, (2, 6), shared=shared)
    exact = CopiedPast(torch.float64, 1)
    for _ in range(20):
        new = torch.randn(4, 3, 2, 6).to(dtype)
        found, expected = past.attend(0, new), exact.attend(0, new.double())
        assert found.dtype == dtype
        assert torch.equal(found, expected.float().to(dtype)) or torch.allclose(found.double(), expected, rtol=2**-8)
        past.advance(), exact.advance()
        past.select(torch.tensor([1, 0, 2, 2])), exact.select(torch.tensor([1, 0, 2, 2]))


def test_the_past_is_copied_only_where_no_kernel_can_read_it_or_no_rows_share_it() -> None:
    cpu = torch.device("cpu")
    for dtype in (torch.float32, torch.bfloat16):
        assert isinstance(past_for(cpu, dtype, 1, (2, 6), shared=True), IndexedPast)
        assert isinstance(past_for(cpu, dtype, 1, (2, 6), shared=False), CopiedPast)
    assert isinstance(past_for(cpu, torch.float64, 1, (2, 6), shared=True), CopiedPast)


def arguments(rows: int = 70, heads: int = 2, size: int = 80, time: int = 5) -> dict[str, Any]:
    """Of the kernel, with room for two more rows and times."""
    random = np.random.default_rng(0)
    shape = time + 2, rows + 2, heads, size
    return {
        "newest": random.normal(size=(rows, 3, heads, size)).astype(np.float32),
        "keys": random.normal(size=shape).astype(np.float32),
        "values": random.normal(size=shape).astype(np.float32),
        "row_at": random.integers(0, rows + 1, size=shape[:2], dtype=np.int32),
        "time": time,
    }


def test_the_kernel_gives_the_same_bits_with_any_number_of_threads_and_writes_only_the_present() -> None:
    found = []
    for threads in (1, 2, 7, 0, -3):
        given = arguments()
        before = given["keys"].copy(), given["values"].copy()
        found.append(_native.attend(**given, threads=threads))
        for of, (name, old) in enumerate(zip(("keys", "values"), before, strict=True), 1):
            assert np.array_equal(given[name][5, :70], given["newest"][:, of])
            old[5, :70] = given[name][5, :70]
            assert np.array_equal(given[name], old)
    assert all(np.array_equal(found[0], other) for other in found)
    assert _native.attend(**arguments(rows=0)).shape == (0, 160)


def test_a_weight_far_above_the_others_does_not_overflow() -> None:
    given = arguments(rows=1, heads=1, size=16, time=1)
    given["newest"][:] = 1e4
    given["keys"][0, :] = -1e4
    assert np.array_equal(_native.attend(**given), given["newest"][:, 2, 0])  # the present alone is seen


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"time": 7}, "time: there is no room"),
        ({"keys": np.zeros((7, 71, 2, 80), np.float32)}, "keys and values: of different shapes"),
        ({"newest": np.zeros((70, 2, 2, 80), np.float32)}, "newest must be"),
        ({"newest": np.zeros((70, 3, 4, 40), np.float32)}, "newest must be"),
        ({"newest": np.zeros((73, 3, 2, 80), np.float32)}, "more rows than there is room for"),
        ({"row_at": np.zeros((7, 69), np.int32)}, "more rows than there is room for"),
        ({"row_at": np.zeros((4, 70), np.int32)}, "time: there is no room"),
        ({"row_at": np.full((7, 70), 72, np.int32)}, "row_at: a row that was never stored"),
        ({"row_at": np.full((7, 70), -1, np.int32)}, "row_at: a row that was never stored"),
    ],
)
def test_the_kernel_refuses_what_would_be_read_beyond_memory(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, IndexError), match=message):
        _native.attend(**arguments() | changed)


@pytest.mark.parametrize("name", ["newest", "keys", "values", "row_at"])
def test_the_kernel_converts_nothing(name: str) -> None:
    given = arguments()
    for other in (given[name].astype(np.float64), given[name][::-1]):
        with pytest.raises(TypeError):
            _native.attend(**given | {name: other})
