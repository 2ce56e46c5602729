"""Triton kernels, called by fused.py: the steps between the head's matrix products, each in one pass over memory, and
a float32 matrix product on tensor cores."""

import triton
import triton.language as tl


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
def features(hypotheses, references, rows, columns, out, UNITS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
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
def activate(
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
def dot(
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
def split_product(
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
def add_norm(
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
