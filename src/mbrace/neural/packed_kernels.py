"""Triton kernels, called by packed.py, for strings whose tokens follow one another: attention within each string, and
the mean of its tokens."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["blocks"])  # or Triton would compile it anew for some of its values
def attend_within(
    qkv, offsets, out, blocks, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attention of ROWS tokens of one string to all of its tokens, in one head.

    `qkv` (tokens, 3, heads, size) are queries, keys and values, the output is (tokens, heads x size). A string has
    tokens offsets[string] to offsets[string + 1], in at most `blocks` blocks of ROWS. `scale` is for powers of 2.
    """
    block = tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks % HEADS
    string = tl.program_id(0) // blocks // HEADS
    first = tl.load(offsets + string)
    length = (tl.load(offsets + string + 1) - first).to(tl.int32)
    if block * ROWS >= length:
        return
    row = block * ROWS + tl.arange(0, ROWS)
    unit = tl.arange(0, WIDE)
    own = unit < SIZE
    rows = (row < length)[:, None] & own[None, :]
    qkv += first * (3 * HEADS * SIZE) + head * SIZE
    keys = qkv + HEADS * SIZE
    values = qkv + 2 * HEADS * SIZE
    q = tl.load(qkv + row[:, None] * (3 * HEADS * SIZE) + unit[None, :], mask=rows, other=0.0)
    best = tl.full((ROWS,), -float("inf"), tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(0, length, KEYS):
        position = start + tl.arange(0, KEYS)
        there = position < length
        at = position * (3 * HEADS * SIZE)
        k = tl.load(keys + at[None, :] + unit[:, None], mask=there[None, :] & own[:, None], other=0.0)
        v = tl.load(values + at[:, None] + unit[None, :], mask=there[:, None] & own[None, :], other=0.0)
        s = tl.where(there[None, :], tl.dot(q, k, input_precision="ieee") * scale, -float("inf"))
        higher = tl.maximum(best, tl.max(s, 1))
        weights = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(best - higher)
        norm = norm * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = higher
    out += first * (HEADS * SIZE) + head * SIZE
    mixed = (mixed / norm[:, None]).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * (HEADS * SIZE) + unit[None, :], mixed, mask=rows)


@triton.jit(do_not_specialize=["pad"])
def add_mean(
    states, ids, offsets, sums, weight, pad,
    UNITS: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Adds weight x the mean of one string's tokens to its row of `sums`, for BLOCK units.

    Tokens whose id is `pad` count in the length, and are left out of the sum.
    """
    parts = tl.cdiv(UNITS, BLOCK)
    string = (tl.program_id(0) // parts).to(tl.int64)
    unit = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    own = unit < UNITS
    first = tl.load(offsets + string)
    length = (tl.load(offsets + string + 1) - first).to(tl.int32)
    states += first * UNITS
    total = tl.zeros((TOKENS, BLOCK), tl.float32)
    for start in range(0, length, TOKENS):
        position = start + tl.arange(0, TOKENS)
        there = position < length
        kept = tl.load(ids + first + position, mask=there, other=pad) != pad
        x = tl.load(states + position[:, None] * UNITS + unit[None, :], mask=there[:, None] & own[None, :], other=0.0)
        total += tl.where(kept[:, None], x.to(tl.float32), 0.0)
    at = sums + string * UNITS + unit
    mean = tl.sum(total, 0) / length
    tl.store(at, tl.load(at, mask=own, other=0.0) + weight * mean, mask=own)
