"""The next ids that were chosen, by plain torch (`choice.py`) or by Triton kernels (`fused.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ChosenIds:
    """The ids chosen for rows, (rows,), and each id's interval: `before` and `size` of `total` in whole numbers."""

    ids: Tensor
    before: Tensor
    size: Tensor
    total: Tensor
    logprobs: Tensor  # float32, under the full model
