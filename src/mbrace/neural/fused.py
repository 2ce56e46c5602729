"""A head's pair scores on a GPU, by the Triton kernels of kernels.py. Imported only if Triton is installed.

Matrix products in half precision and TF32 are the vendor's. A float32 product also runs on tensor cores, as three TF32
products: each number is split into a high and a low part of 11 bits, and low x low is left out. Tensor cores truncate
their sums, so partial sums are added up in float32 every `_CHUNK` columns. The error is that of a float32 product, at
five times the speed (`bench/neural.py` measures both).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import triton

from mbrace.neural import kernels
from mbrace.neural.device import launch, supports_triton

if TYPE_CHECKING:
    from torch import Tensor

    from mbrace.neural.head import Estimator

_CHUNK = 256
_ACTIVATIONS = {torch.nn.Tanh: 0, torch.nn.ReLU: 1, torch.nn.Sigmoid: 2}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def usable(head: Estimator, device: torch.device) -> bool:
    """Whether these kernels can score with a head on a device (a CPU: only in Triton's interpreter, for tests)."""
    if type(head.activation) not in _ACTIVATIONS or int(triton.__version__.split(".")[0]) < 3:
        return False
    return INTERPRETED if device.type == "cpu" else supports_triton(device)


class TritonKernels:
    """Computes the same as `head.TorchKernels`, faster."""

    def __init__(self, head: Estimator) -> None:
        self._head = head
        self._activation = _ACTIVATIONS[type(head.activation)]
        self._weights: dict[int, Tensor] = {}  # split weights by the index of their layer; -1: pair_weight

    def shared(self, hypotheses: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The first layer over h*r and |h-r|: (pairs, first hidden size)."""
        split, units = self._split(hypotheses), hypotheses.shape[1]
        features = hypotheses.new_empty((len(rows), (4 if split else 2) * units))
        launch(
            kernels.features, len(rows), hypotheses, references, rows, columns, features,
            UNITS=units, SPLIT=split, **_block(units),
        )  # fmt: skip
        return self._product(features, self._head.pair_weight, -1)

    def finish(self, sums: Tensor, prepared: Tensor, references: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """From `shared` and the parts of each side to scores (pairs,) float32."""
        split, width = self._split(sums), sums.shape[1]
        hidden = sums.new_empty((len(sums), 2 * width)) if split else torch.empty_like(sums)
        launch(
            kernels.activate, len(sums), sums, prepared, references, rows, columns, hidden,
            WIDTH=width, ACTIVATION=self._activation, SPLIT=split, **_block(width),
        )  # fmt: skip
        *middle, (last, last_bias) = self._head.rest
        bias = None
        for index, (weight, next_bias) in enumerate(middle):
            if bias is not None:  # three or more hidden layers are rare, so there is no kernel for them
                sums = self._head.activation(sums + bias)
                hidden = torch.cat(_parts(sums), dim=1) if split else sums
            sums, bias = self._product(hidden, weight, index), next_bias
        if bias is None:  # only one hidden layer: a dot product is left
            if split:
                hidden = hidden[:, :width] + hidden[:, width:]
            scores = (hidden @ last.T).squeeze(1).float()
        else:
            scores = torch.empty(len(sums), device=sums.device, dtype=torch.float32)
            width = sums.shape[1]
            launch(
                kernels.dot, triton.cdiv(len(sums), 8), sums, bias, last, scores, len(sums),
                WIDTH=width, ACTIVATION=self._activation, BLOCK=min(256, triton.next_power_of_2(width)), PAIRS=8,
            )  # fmt: skip
        scores += last_bias.float()
        return scores if self._head.final is None else self._head.final(scores)

    def _split(self, of: Tensor) -> bool:
        return of.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"

    def _product(self, rows: Tensor, weight: Tensor, index: int) -> Tensor:
        """`rows @ weight.T`, where `rows` may be split: high parts, then low parts, (rows, 2 x columns)."""
        if rows.shape[1] == weight.shape[1]:
            return rows @ weight.T
        if index not in self._weights:
            self._weights[index] = torch.cat(_parts(weight), dim=1).contiguous()
        (count, _), (size, inner) = rows.shape, weight.shape
        out = rows.new_empty((count, size))
        high, wide, deep = (16, 16, 16) if INTERPRETED else (128, 128, 32)
        grid = triton.cdiv(count, high) * triton.cdiv(size, wide)
        launch(
            kernels.split_product, grid, rows, self._weights[index], out, count, size, inner,
            CHUNK=_CHUNK, WHOLE=inner % _CHUNK == 0, HIGH=high, WIDE=wide, DEEP=deep, num_warps=8, num_stages=3,
        )  # fmt: skip
        return out


def _block(width: int) -> dict[str, int]:
    size = min(1024, triton.next_power_of_2(width))
    return {"BLOCK": size, "num_warps": 4 if size >= 512 else 1}


def _parts(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low part of each number, both exact in TF32; their sum is as good as float32."""
    high = ((numbers.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    low = (((numbers - high).view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return high, low
