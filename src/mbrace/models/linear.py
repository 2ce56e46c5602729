"""Products of rows with a matrix of weights that do not change, as a network has them that is used, not trained."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

ROWS = 16  # products are of a multiple of these: oneDNN takes a millisecond to get ready for another number of rows


class Linear:
    """weight x + bias.

    On AMD's processors, float32 weights are put once into the order in which oneDNN reads them: then a product takes
    from a third of the time of torch's own, with few rows, to nine tenths. Torch's own is that of MKL, which is made
    for Intel's processors: there, and in 16 bits, a search gained nothing or took longer (bench/models_cpu.py).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        reorders = weight.device.type == "cpu" and can_reorder(weight.dtype)
        self._reordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None) if reorders else None

    def __call__(self, x: Tensor) -> Tensor:
        """The product with each row of x (..., inputs): (..., units)."""
        if self._reordered is None or x.numel() == 0 or x.dtype != self.weight.dtype:  # as within torch.autocast
            return F.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, x.shape[-1])
        count = len(rows)
        y = _product(F.pad(rows, (0, 0, 0, -count % ROWS)), self._reordered, self.bias)
        return y[:count].view(*x.shape[:-1], -1)

    def __reduce__(self) -> tuple[type[Linear], tuple[Tensor, Tensor | None]]:
        """Copies and pickles have the weights alone: what is reordered belongs to this machine."""
        return Linear, (self.weight, self.bias)


def _product(x: Tensor, reordered: Any, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, reordered, bias, "none", [], "")
    return y


@cache
def can_reorder(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there, pays, and multiplies such numbers as torch does, as is found out by a trial."""
    try:
        if dtype != torch.float32 or not is_amd():
            return False
        x, weight, bias = ((torch.arange(n * 48) * 37 % 23 - 11).view(n, 48).to(dtype) for n in (5, 32, 1))
        found = _product(x, torch.ops.mkldnn._reorder_linear_weight(weight, None), bias[0, :32])
        return torch.equal(found, F.linear(x, weight, bias[0, :32]))
    except Exception:  # other versions or builds of torch: its own product is always right
        return False


def is_amd() -> bool:
    """Whether the processor is one of AMD's."""
    known = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (known.read_text(encoding="utf-8") if known.exists() else platform.processor())
