"""The head's GPU kernels: on a GPU, or on a CPU in Triton's interpreter (`make fused`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from test_neural import plain
from test_neural import random_head as random_head_on

from mbrace.neural.device import triton_kernels
from mbrace.neural.head import PairBlock

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton and TRITON_INTERPRET=1 (make fused)", allow_module_level=True)
kernels = pytest.importorskip("mbrace.neural.kernels")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

# The interpreter computes bfloat16 in ways of its own; float16 shares its code path.
HALF = torch.float16 if INTERPRETED else torch.bfloat16


random_head = partial(random_head_on, device=DEVICE.type)


@pytest.mark.parametrize("features", [4, 6])
@pytest.mark.parametrize("sizes", [(40, 20), (24,), (32, 16, 8), (300, 20)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (HALF, 0.08)])
def test_kernels_compute_the_plain_concatenation(
    features: int, sizes: Sequence[int], dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    head = random_head(features, sizes, dtype, 24)
    blocks, expected = [], []
    for rows, columns in ((5, 7), (1, 3), (18, 2)):
        h, r, s = (torch.randn(n, 24).to(DEVICE, dtype) for n in (rows, columns, 1))
        blocks.append(PairBlock(h, r, s if features == 6 else None))
        expected.append(plain(head, h, r, s))
    for table, wanted in zip(head.score_together(blocks), expected, strict=True):
        torch.testing.assert_close(table.double(), wanted, atol=tolerance, rtol=tolerance)
    assert isinstance(head._kernels, kernels.TritonKernels)


@pytest.mark.parametrize("activation", [torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.GELU()])
def test_other_activations(activation: torch.nn.Module) -> None:
    """Those without a kernel go through torch's operations."""
    torch.manual_seed(2)
    head = random_head(4, (24, 8), torch.float32, 16, activation)
    assert (head._kernels is None) == isinstance(activation, torch.nn.GELU)
    h, r = torch.randn(3, 16).to(DEVICE), torch.randn(4, 16).to(DEVICE)
    wanted = head.aligned(h.repeat_interleave(4, 0), r.repeat(3, 1), None).view(3, 4)
    torch.testing.assert_close(head.score_together([PairBlock(h, r)])[0], wanted, atol=1e-5, rtol=1e-5)


def test_split_parts_are_exact_in_tf32_and_add_up() -> None:
    torch.manual_seed(3)
    numbers = torch.randn(1000) * 10.0 ** torch.randint(-8, 8, (1000,))
    high, low = kernels._parts(numbers)
    for part in (high, low):
        assert not (part.view(torch.int32) & 0x1FFF).any()  # nothing beyond TF32's 10 bits of fraction
    assert ((high.double() + low.double() - numbers.double()).abs() <= numbers.double().abs() * 2.0**-22).all()


def test_split_product_is_as_exact_as_float32() -> None:
    torch.manual_seed(4)
    head = random_head(6, (24, 8), torch.float32, 600)
    rows = torch.randn(33, 1200).to(DEVICE)
    exact = rows.double() @ head.pair_weight.double().T
    found = kernels.TritonKernels(head)._product(torch.cat(kernels._parts(rows), dim=1), head.pair_weight, -1)
    most = rows.double().abs() @ head.pair_weight.double().abs().T
    assert ((found.double() - exact).abs() <= 2.0**-20 * most).all()  # one TF32 product alone is ten times as far off


def test_without_a_compiler_the_head_still_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no C compiler")

    head = random_head(4, (24, 8), torch.float32, 16)
    monkeypatch.setattr(kernels, "launch", fails)
    triton_kernels.cache_clear()
    with pytest.warns(UserWarning, match="no C compiler"):
        assert head._kernels is None
    triton_kernels.cache_clear()


@pytest.mark.parametrize("units", [7, 96, 384, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_a_sum_is_normalised_as_by_torch(units: int, dtype: torch.dtype) -> None:
    torch.manual_seed(units)
    x, branch = (torch.randn(2, 5, units, device=DEVICE).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(units, device=DEVICE).to(dtype) for _ in range(2))
    expected = torch.nn.functional.layer_norm(x + branch, (units,), weight, bias, 1e-5)
    found = kernels.fused_add_norm(x, branch, weight, bias, 1e-5)
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
