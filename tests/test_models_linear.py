"""Products with weights that were put into another order, against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from mbrace.models import linear
from mbrace.models.linear import ROWS, Linear

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (2, 8), (ROWS, 40), (ROWS + 1, 40), (3, 5, 40), (0, 8), (4, 0, 8)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_torchs(dtype: torch.dtype, shape: tuple[int, ...], biased: bool) -> None:
    weight, x = torch.randn(70, shape[-1]).to(dtype), torch.randn(shape).to(dtype)
    bias = torch.randn(70).to(dtype) if biased else None
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = Linear(weight, bias)(x)
    assert (found.dtype, found.shape) == (dtype, wanted.shape)
    assert found.is_contiguous()
    torch.testing.assert_close(found, wanted.to(dtype))


def test_rows_that_are_not_contiguous_are_read_as_they_are() -> None:
    weight, x = torch.randn(9, 6), torch.randn(6, 50)
    torch.testing.assert_close(Linear(weight)(x.T), F.linear(x.T, weight))
    torch.testing.assert_close(Linear(weight.T.contiguous().T)(x.T), F.linear(x.T, weight))


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    if not linear.can_reorder(dtype):
        pytest.skip("oneDNN is not there")
    product, x = Linear(torch.randn(320, 320).to(dtype), torch.randn(320).to(dtype)), torch.randn(200, 320).to(dtype)
    whole = product(x)
    for begin, end in ((0, 1), (5, 7), (100, 117), (0, 199)):
        assert torch.equal(product(x[begin:end]), whole[begin:end])


def test_without_onednn_products_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(linear, "_product", missing)
    linear.can_reorder.cache_clear()
    try:
        weight, x = torch.randn(9, 6), torch.randn(5, 6)
        assert not linear.can_reorder(torch.float32)
        assert torch.equal(Linear(weight)(x), F.linear(x, weight))
    finally:
        linear.can_reorder.cache_clear()
