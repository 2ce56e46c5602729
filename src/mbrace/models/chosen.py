"""What the choice of the next ids gives, by plain torch or by Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Chosen:
    """The ids chosen for rows, (rows,), and each id's interval: `before` and `size` of `total` in whole numbers."""

    ids: Tensor
    before: Tensor
    size: Tensor
    total: Tensor
    logprobs: Tensor  # float32, under the full model
