"""The kernel that attends to a past that rows share, against its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mbrace import _native


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


@pytest.mark.parametrize("size", [1, 6, 16, 64, 80, 87, 128])
@pytest.mark.parametrize("time", [0, 1, 40])
def test_what_is_seen_is_the_mean_of_values_by_the_softmax_of_products(size: int, time: int) -> None:
    given = arguments(rows=40, heads=3, size=size, time=time)
    found = _native.attend(**given)
    query, key, value = given["newest"].astype(np.float64).transpose(1, 0, 2, 3)
    times = np.arange(time)[:, None]
    before = given["row_at"][:time, :40]
    keys = np.concatenate([given["keys"][times, before], key[None]])  # (times, rows, heads, size)
    values = np.concatenate([given["values"][times, before], value[None]])
    products = (query * keys).sum(-1) / np.sqrt(size)
    weights = np.exp(products - products.max(0))
    weights /= weights.sum(0)
    np.testing.assert_allclose(found, (weights[..., None] * values).sum(0).reshape(40, -1), atol=2e-5)


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
        ({"row_at": np.full((7, 70), 72, np.int32)}, "row_at: a row for which there is no room"),
        ({"row_at": np.full((7, 70), -1, np.int32)}, "row_at: a row for which there is no room"),
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
