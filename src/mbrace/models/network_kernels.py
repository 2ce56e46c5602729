"""Triton kernels of a decoder's network, called by fused.py: matrix products and attention of the rows in use.

As in kernels.py, a row's result depends on no other row, and how many are in use is read on the device.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["used"])
def linear(
    x, weight, bias, out, used, units,
    INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A block of ROWS rows and UNITS units of weight x + bias, for the first `used` (1,) rows.

    x is (rows, INPUTS), the weight (units, INPUTS). Blocks are numbered so that GROUP blocks of rows at a time share
    what they read. ACTIVATION is none (0), SiLU (1) or ReLU (2).
    """
    rows = tl.load(used).to(tl.int32)
    across = tl.cdiv(units, UNITS)
    down = tl.cdiv(rows, ROWS)
    block = tl.program_id(0)
    if block >= down * across:
        return
    first = block // (GROUP * across) * GROUP
    together = tl.minimum(down - first, GROUP)
    inside = block % (GROUP * across)
    row = (first + inside % together) * ROWS + tl.arange(0, ROWS)
    unit = inside // together * UNITS + tl.arange(0, UNITS)
    step = tl.arange(0, STEP)
    left = x + tl.where(row < rows, row, 0)[:, None] * INPUTS + step[None, :]
    right = weight + tl.where(unit < units, unit, 0)[None, :] * INPUTS + step[:, None]
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(0, INPUTS, STEP):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += STEP
        right += STEP
    if HAS_BIAS:
        total += tl.load(bias + unit, mask=unit < units, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION > 0:
        total = total.to(out.dtype.element_ty).to(tl.float32)  # rounded as a sum that is stored
    if ACTIVATION == 1:
        total = total / (1.0 + tl.exp(-total))
    if ACTIVATION == 2:
        total = tl.maximum(total, 0.0)
    there = (row < rows)[:, None] & (unit < units)[None, :]
    to = out + row[:, None].to(tl.int64) * units + unit[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["length"])
def attend_to_memory(
    query, keys, values, bias, offsets, out, blocks, length, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """Attention of ROWS rows of one source to its memory, in one head.

    Keys and values are (sources, heads, length, size), the bias (sources, length); query and output are (rows, heads x
    size). A source has rows offsets[source] to offsets[source + 1], in at most `blocks` blocks of ROWS.
    """
    block = tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks % HEADS
    source = (tl.program_id(0) // blocks // HEADS).to(tl.int64)
    last = tl.load(offsets + source + 1)
    begin = tl.load(offsets + source) + block * ROWS
    if begin >= last:
        return
    row = begin + tl.arange(0, ROWS)
    unit = tl.arange(0, WIDE)
    own = unit < SIZE
    both = (row < last)[:, None] & own[None, :]
    at = row[:, None] * (HEADS * SIZE) + head * SIZE + unit[None, :]
    q = tl.load(query + at, mask=both, other=0.0)
    keys += (source * HEADS + head) * length * SIZE
    values += (source * HEADS + head) * length * SIZE
    best = tl.full((ROWS,), -float("inf"), tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(0, length, LENGTH):
        place = start + tl.arange(0, LENGTH)
        there = place < length
        k = tl.load(keys + place[None, :] * SIZE + unit[:, None], mask=there[None, :] & own[:, None], other=0.0)
        hidden = tl.load(bias + source * length + place, mask=there, other=-float("inf")).to(tl.float32)
        s = tl.dot(q, k, input_precision="ieee") * scale + hidden[None, :]
        higher = tl.maximum(best, tl.max(s, 1))
        weights = tl.exp(s - higher[:, None])
        shrink = tl.exp(best - higher)
        v = tl.load(values + place[:, None] * SIZE + unit[None, :], mask=there[:, None] & own[None, :], other=0.0)
        norm = norm * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = higher
    tl.store(out + at, (mixed / norm[:, None]).to(out.dtype.element_ty), mask=both)


@triton.jit(do_not_specialize=["used", "capacity"])  # or Triton would compile it anew for some of its values
def attend(
    new, keys, values, table, out, clock, used, capacity, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TIMES: tl.constexpr, SOME_UNUSED: tl.constexpr,
):  # fmt: skip
    """Self-attention of the newest position of one row, in one head.

    `new` (rows, 3, heads, size) is its query, key and value; key and value are stored in the cache (room, capacity,
    heads, size) at the time that `clock` holds. Earlier ones are those of row table[earlier time, row], TIMES of them
    at a time. Memory is slow, so whatever can be read is asked for before it is needed. With SOME_UNUSED, nothing from
    row `used` (1,) on.
    """
    past = tl.load(clock)
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    if SOME_UNUSED:  # noqa: SIM102  (known when compiled)
        if row >= tl.load(used):
            return
    head = tl.program_id(0) % HEADS
    unit = tl.arange(0, WIDE)
    own = unit < SIZE
    step = tl.arange(0, TIMES)
    rows = tl.load(table + step * capacity + row, mask=step < past, other=0).to(tl.int64)
    new += row * (3 * HEADS * SIZE) + head * SIZE + unit
    query = tl.load(new, mask=own, other=0.0).to(tl.float32) * scale
    key = tl.load(new + HEADS * SIZE, mask=own, other=0.0)
    value = tl.load(new + 2 * HEADS * SIZE, mask=own, other=0.0)
    stored = ((past * capacity + row) * HEADS + head) * SIZE + unit
    tl.store(keys + stored, key, mask=own)
    tl.store(values + stored, value, mask=own)
    best = tl.sum(query * key.to(tl.float32), 0)
    norm = best * 0.0 + 1.0
    mixed = value.to(tl.float32)
    for begin in range(0, past, TIMES):
        at = begin + step
        there = at < past
        where = ((at.to(tl.int64) * capacity + rows) * HEADS + head) * SIZE
        both = there[:, None] & own[None, :]
        k = tl.load(keys + where[:, None] + unit[None, :], mask=both, other=0.0).to(tl.float32)
        v = tl.load(values + where[:, None] + unit[None, :], mask=both, other=0.0).to(tl.float32)
        rows = tl.load(table + (at + TIMES) * capacity + row, mask=at + TIMES < past, other=0).to(tl.int64)
        s = tl.where(there, tl.sum(k * query[None, :], 1), -float("inf"))
        higher = tl.maximum(best, tl.max(s, 0))
        weights = tl.exp(s - higher)
        shrink = tl.exp(best - higher)
        norm = norm * shrink + tl.sum(weights, 0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * v, 0)
        best = higher
    tl.store(out + row * (HEADS * SIZE) + head * SIZE + unit, (mixed / norm).to(out.dtype.element_ty), mask=own)
