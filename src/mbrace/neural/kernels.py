"""Triton kernels, imported only if Triton is installed: pair scores of a head on a GPU, and a sum normalised.

Matrix products in half precision and TF32 are the vendor's. A float32 product also runs on tensor cores, as three TF32
products: each number is split into a high and a low part of 11 bits, and low x low is left out. Tensor cores truncate
their sums, so partial sums are added up in float32 every `_CHUNK` columns. The error is that of a float32 product, at
five times the speed (`bench/neural.py` measures both).
"""

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rounded(x):
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)


@triton.jit
def _put(x, where, distance, inside, SPLIT: tl.constexpr):
    """Stores x, or with SPLIT its high and low part, `distance` apart."""
    if SPLIT:
        high = _rounded(x)
        tl.store(where, high, mask=inside)
        tl.store(where + distance, _rounded(x - high), mask=inside)
    else:
        tl.store(where, x.to(where.dtype.element_ty), mask=inside)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 0:
        y = 2.0 * tl.sigmoid(2.0 * x) - 1.0  # tanh
    elif ACTIVATION == 1:
        y = tl.maximum(x, 0.0)
    else:
        y = tl.sigmoid(x)
    return y


@triton.jit
def features_kernel(
    hypotheses, references, rows, columns, out,
    UNITS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The features of one pair: h*r, then |h-r|."""
    pair = tl.program_id(0).to(tl.int64)
    h = hypotheses + tl.load(rows + pair) * UNITS
    r = references + tl.load(columns + pair) * UNITS
    out += pair * UNITS * (4 if SPLIT else 2)
    for begin in tl.static_range(0, UNITS, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < UNITS
        a = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(r + at, mask=inside, other=0.0).to(tl.float32)
        _put(a * b, out + at, 2 * UNITS, inside, SPLIT)
        _put(tl.abs(a - b), out + UNITS + at, 2 * UNITS, inside, SPLIT)


@triton.jit
def activate_kernel(
    sums, prepared, references, rows, columns, out,
    WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first hidden layer of one pair: the shared part and the parts of both sides, added and activated."""
    pair = tl.program_id(0).to(tl.int64)
    sums += pair * WIDTH
    prepared += tl.load(rows + pair) * WIDTH
    references += tl.load(columns + pair) * WIDTH
    out += pair * WIDTH * (2 if SPLIT else 1)
    for begin in tl.static_range(0, WIDTH, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < WIDTH
        x = tl.load(sums + at, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(prepared + at, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(references + at, mask=inside, other=0.0).to(tl.float32)
        _put(_activated(x, ACTIVATION), out + at, WIDTH, inside, SPLIT)


@triton.jit
def dot_kernel(
    sums, bias, weight, out, count,
    WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The scores of PAIRS pairs: bias and activation of the last hidden layer, then a dot product."""
    pairs = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    there = pairs < count
    total = tl.zeros((PAIRS,), dtype=tl.float32)
    for begin in tl.static_range(0, WIDTH, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < WIDTH
        own = there[:, None] & inside[None, :]
        x = tl.load(sums + pairs[:, None] * WIDTH + at[None, :], mask=own, other=0.0).to(tl.float32)
        x = _activated(x + tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :], ACTIVATION)
        total += tl.sum(x * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)[None, :], 1)
    tl.store(out + pairs, total, mask=there)


@triton.jit
def split_product_kernel(
    rows, weight, out, count, size, inner,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """One tile of rows @ weight.T; both are split into high and low parts."""
    across = tl.cdiv(size, WIDE)
    m = tl.program_id(0) // across * HIGH + tl.arange(0, HIGH)
    n = tl.program_id(0) % across * WIDE + tl.arange(0, WIDE)
    k = tl.arange(0, DEEP)
    # positions outside the matrix read its first row or column, and are not stored
    a = rows + tl.where(m < count, m, 0).to(tl.int64)[:, None] * (2 * inner) + k[None, :]
    b = weight + tl.where(n < size, n, 0)[None, :] * (2 * inner) + k[:, None]
    total = tl.zeros((HIGH, WIDE), dtype=tl.float32)
    for begin in range(0, inner, CHUNK):
        part = tl.zeros((HIGH, WIDE), dtype=tl.float32)
        for at in range(begin, begin + CHUNK, DEEP):
            if WHOLE:
                a_high = tl.load(a + at)
                a_low = tl.load(a + inner + at)
                b_high = tl.load(b + at)
                b_low = tl.load(b + inner + at)
            else:
                a_high = tl.load(a + at, mask=at + k[None, :] < inner, other=0.0)
                a_low = tl.load(a + inner + at, mask=at + k[None, :] < inner, other=0.0)
                b_high = tl.load(b + at, mask=at + k[:, None] < inner, other=0.0)
                b_low = tl.load(b + inner + at, mask=at + k[:, None] < inner, other=0.0)
            part = tl.dot(a_low, b_high, part, input_precision="tf32")
            part = tl.dot(a_high, b_low, part, input_precision="tf32")
            part = tl.dot(a_high, b_high, part, input_precision="tf32")
        total += part
    inside = (m[:, None] < count) & (n[None, :] < size)
    tl.store(out + m[:, None].to(tl.int64) * size + n[None, :], total, mask=inside)


@triton.jit(do_not_specialize=["used"])
def add_norm_kernel(
    x, branch, weight, bias, out, eps, used,
    UNITS: tl.constexpr, SOME_UNUSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Layer normalisation of one row of x + branch. With SOME_UNUSED, nothing from row `used` (1,) on."""
    if SOME_UNUSED:  # noqa: SIM102  (known when compiled)
        if tl.program_id(0) >= tl.load(used):
            return
    row = tl.program_id(0).to(tl.int64) * UNITS
    unit = tl.arange(0, BLOCK)
    own = unit < UNITS
    left = tl.load(x + row + unit, mask=own, other=0.0)
    total = left.to(tl.float32) + tl.load(branch + row + unit, mask=own, other=0.0).to(tl.float32)
    total = total.to(left.dtype).to(tl.float32)  # rounded as a sum that is stored
    mean = tl.sum(total, 0) / UNITS
    away = tl.where(own, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(away * away, 0) / UNITS + eps)
    gain = tl.load(weight + unit, mask=own, other=0.0).to(tl.float32)
    shift = tl.load(bias + unit, mask=own, other=0.0).to(tl.float32)
    tl.store(out + row + unit, (away * scale * gain + shift).to(left.dtype), mask=own)


if TYPE_CHECKING:
    from mbrace.neural.head import Estimator, PairVectors

_CHUNK = 256
_ACTIVATIONS = {torch.nn.Tanh: 0, torch.nn.ReLU: 1, torch.nn.Sigmoid: 2}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run a Triton kernel on the device of its first argument; on a CPU, in Triton's interpreter."""
    device = arguments[0].device
    with contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device):
        kernel[(programs,)](*arguments, **constants)


def has_activation(head: "Estimator") -> bool:
    """Whether there is a kernel for the activation of a head."""
    return type(head.activation) in _ACTIVATIONS


class TritonKernels:
    """Computes the same as `Estimator.pairs` by torch's operations, faster."""

    def __init__(self, head: "Estimator") -> None:
        self._head = head
        self._activation = _ACTIVATIONS[type(head.activation)]
        self._weights: dict[int, Tensor] = {}  # split weights by the index of their layer; -1: pair_weight

    def __call__(self, vectors: "PairVectors", rows: Tensor, columns: Tensor) -> Tensor:
        """Scores (pairs,) float32 of these rows and columns."""
        hypotheses, references, prepared, reference_part = vectors
        split, units = self._split(hypotheses), hypotheses.shape[1]
        features = hypotheses.new_empty((len(rows), (4 if split else 2) * units))
        launch(
            features_kernel, len(rows), hypotheses, references, rows, columns, features,
            UNITS=units, SPLIT=split, **_block(units),
        )  # fmt: skip
        sums = self._product(features, self._head.pair_weight, -1)
        width = sums.shape[1]
        hidden = sums.new_empty((len(sums), 2 * width)) if split else torch.empty_like(sums)
        launch(
            activate_kernel, len(sums), sums, prepared, reference_part, rows, columns, hidden,
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
                dot_kernel, triton.cdiv(len(sums), 8), sums, bias, last, scores, len(sums),
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
            split_product_kernel, grid, rows, self._weights[index], out, count, size, inner,
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


def fused_add_norm(
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float, used: Tensor | None = None
) -> Tensor:
    """As `add_norm`, with a Triton kernel."""
    x, branch, units = x.contiguous(), branch.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    launch(
        add_norm_kernel, x.numel() // units, x, branch, weight, bias, out, eps,
        weight if used is None else used, UNITS=units, SOME_UNUSED=used is not None,
        BLOCK=triton.next_power_of_2(units), num_warps=1 if units <= 1024 else 4,
    )  # fmt: skip
    return out
