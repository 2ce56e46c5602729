"""Products with weights that were put into another order, against torch's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from mbrace.models import linear
from mbrace.models.linear import ROWS, Linear

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.usefixtures("amd")
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


@pytest.mark.usefixtures("amd")
def test_rows_that_are_not_contiguous_are_read_as_they_are() -> None:
    weight, x = torch.randn(9, 6), torch.randn(6, 50)
    torch.testing.assert_close(Linear(weight)(x.T), F.linear(x.T, weight))
    torch.testing.assert_close(Linear(weight.T.contiguous().T)(x.T), F.linear(x.T, weight))


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor of AMD's."""
    monkeypatch.setattr(linear, "is_amd", lambda: True)
    linear.can_reorder.cache_clear()
    yield
    linear.can_reorder.cache_clear()


@pytest.mark.usefixtures("amd")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    if not linear.can_reorder(torch.float32):
        pytest.skip("oneDNN is not there")
    product, x = Linear(torch.randn(320, 320), torch.randn(320)), torch.randn(200, 320)
    whole = product(x)
    for begin, end in ((0, 1), (5, 7), (100, 117), (0, 199)):
        assert torch.equal(product(x[begin:end]), whole[begin:end])


@pytest.mark.usefixtures("amd")
def test_rows_of_other_numbers_are_multiplied_as_torch_does() -> None:
    product, x = Linear(torch.randn(9, 6)), torch.randn(5, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(product(x.bfloat16()), F.linear(x.bfloat16(), product.weight))


@pytest.mark.usefixtures("amd")
def test_copies_and_pickles_multiply_alike() -> None:
    product, x = Linear(torch.randn(9, 6), torch.randn(9)), torch.randn(5, 6)
    for other in (copy.deepcopy(product), pickle.loads(pickle.dumps(product))):
        assert torch.equal(other(x), product(x))


@pytest.mark.usefixtures("amd")
def test_without_onednn_products_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(linear, "_product", missing)
    weight, x = torch.randn(9, 6), torch.randn(5, 6)
    assert not linear.can_reorder(torch.float32)
    assert torch.equal(Linear(weight)(x), F.linear(x, weight))


@pytest.mark.usefixtures("amd")
def test_weights_stay_as_they_are_in_16_bits_and_on_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not linear.can_reorder(torch.bfloat16)
    monkeypatch.setattr(linear, "is_amd", lambda: False)
    assert not linear.can_reorder(torch.float32)


def test_the_processor_is_known_by_its_maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = tmp_path / "cpuinfo"
    monkeypatch.setattr(linear, "Path", lambda name: listed)
    monkeypatch.setattr("platform.processor", lambda: "AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD")
    assert linear.is_amd()
    listed.write_text("processor\t: 0\nvendor_id\t: GenuineIntel\n", encoding="utf-8")
    assert not linear.is_amd()
    listed.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\n", encoding="utf-8")
    assert linear.is_amd()
