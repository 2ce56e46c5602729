"""Layer normalisation of a sum: in one pass over memory where Triton is, as torch does it elsewhere."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.neural.device import launch, supports_triton


def add_norm(x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float, used: Tensor | None = None) -> Tensor:
    """Layer normalisation of x + branch, both (..., units); from row `used` (1,) on, if given, it means nothing."""
    kernel = kernel_for(x.device)
    if kernel is None:
        return F.layer_norm(x + branch, weight.shape, weight, bias, eps)
    normed: Tensor = kernel(x, branch, weight, bias, eps, used)
    return normed


@cache
def kernel_for(device: torch.device) -> Any:
    """`fused_add_norm`, where it can be used."""
    if not supports_triton(device):
        return None
    try:
        return fused_add_norm if _trial(device) else None
    except Exception:  # such as no Triton, or no compiler for its launcher: the plain way is always right
        return None


def fused_add_norm(
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float, used: Tensor | None = None
) -> Tensor:
    """As `add_norm`, with a Triton kernel."""
    import triton

    from mbrace.neural import kernels

    x, branch, units = x.contiguous(), branch.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    launch(
        kernels.add_norm, x.numel() // units, x, branch, weight, bias, out, eps,
        weight if used is None else used, UNITS=units, SOME_UNUSED=used is not None,
        BLOCK=triton.next_power_of_2(units), num_warps=1 if units <= 1024 else 4,
    )  # fmt: skip
    return out


def _trial(device: torch.device) -> bool:
    """Whether a small case comes out as with torch."""
    x = (torch.arange(4 * 96, device=device) * 37 % 101).view(4, 96).float() / 20
    weight, bias = x[0] + 1, x[1]
    plain = F.layer_norm(x + x.flip(0), (96,), weight, bias, 1e-5)
    return torch.allclose(fused_add_norm(x, x.flip(0), weight, bias, 1e-5), plain, atol=1e-3)
