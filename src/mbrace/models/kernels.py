"""Triton kernels of searches and of a decoder's network, each with the function that launches it.

Imported only where Triton is. A row's result depends on no other row. Rows in use come first. How many they are is read
on the device (`used`), so that a recorded step takes only as long as they need. It is the last number of a longer
tensor, so that its address is a multiple of 16 or not: kernels must not be compiled for each.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mbrace.neural.kernels import launch

FEW_ROWS = 2048  # up to this many, torch's matrix products are faster than ours even if most rows are unused


@triton.jit
def _logits(logits, bias, at, count, HAS_BIAS: tl.constexpr):
    """The logits at `at` in float32, -inf beyond `count`."""
    inside = at < count
    x = tl.load(logits + at, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + at, mask=inside, other=0.0)
    return x


@triton.jit
def _softmax(logits, bias, count, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit, and the sum of the exponentials of the differences from it."""
    lane = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for begin in range(0, count, BLOCK):
        highest = tl.maximum(highest, _logits(logits, bias, begin + lane, count, HAS_BIAS))
    best = tl.max(highest, 0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, count, BLOCK):
        sums += tl.exp(_logits(logits, bias, begin + lane, count, HAS_BIAS) - best)
    return best, tl.sum(sums, 0)


@triton.jit
def _whole(x, best, norm, epsilon, min_p):
    """Weights as whole numbers: probabilities times 2 ** 40, 0 for ids that may not be drawn."""
    threshold = tl.maximum(tl.minimum(1.0 / norm, epsilon), min_p / norm)
    p = tl.exp(x - best) / norm
    allowed = (p >= threshold) | (x == best)
    return tl.where(allowed, p * 1099511627776.0, 0.0).to(tl.int64)


@triton.jit(do_not_specialize=["used"])
def next_ids_kernel(
    logits, bias, uniforms, ids, befores, sizes, totals, logprobs, used, count, epsilon, min_p,
    HAS_BIAS: tl.constexpr, SOME_UNUSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The next id of one row by inverse CDF, its interval of the summed weights, and its log-probability.

    With SOME_UNUSED, id 0 from row `used` (1,) on.
    """
    row = tl.program_id(0).to(tl.int64)
    if SOME_UNUSED:  # noqa: SIM102  (known when compiled)
        if row >= tl.load(used):
            tl.store(ids + row, 0)
            tl.store(befores + row, 0)
            tl.store(sizes + row, 1)
            tl.store(totals + row, 1)
            tl.store(logprobs + row, 0.0)
            return
    logits += row * count
    lane = tl.arange(0, BLOCK)
    best, norm = _softmax(logits, bias, count, HAS_BIAS, BLOCK)
    sums = tl.zeros((BLOCK,), tl.int64)
    for begin in range(0, count, BLOCK):
        sums += _whole(_logits(logits, bias, begin + lane, count, HAS_BIAS), best, norm, epsilon, min_p)
    total = tl.sum(sums, 0)
    point = tl.minimum((tl.load(uniforms + row) * total.to(tl.float64)).to(tl.int64), total - 1)
    before = total * 0  # of the weights of all earlier blocks
    low = before
    size = before
    chosen = before
    for begin in range(0, count, BLOCK):
        whole = _whole(_logits(logits, bias, begin + lane, count, HAS_BIAS), best, norm, epsilon, min_p)
        amount = tl.sum(whole, 0)
        if (point >= before) & (point < before + amount):  # one block: only there the weights are summed one by one
            cdf = before + tl.cumsum(whole, 0)
            passed = cdf <= point
            chosen = begin + tl.sum(passed.to(tl.int64), 0)
            low = tl.max(tl.where(passed, cdf, before), 0)
            size = tl.min(tl.where(passed, before + total + 1, cdf), 0) - low
        before += amount
    tl.store(ids + row, chosen)
    tl.store(befores + row, low)
    tl.store(sizes + row, size)
    tl.store(totals + row, total)
    x = tl.load(logits + chosen).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + chosen)
    tl.store(logprobs + row, x - best - tl.log(norm))


def next_ids(
    logits: Tensor, bias: Tensor | None, uniforms: Tensor, *, epsilon: float, min_p: float, used: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As next_ids.next_ids, for logits (rows, ids) and bias (ids,), at temperature 1; id 0 from row `used` on."""
    logits = logits.contiguous()
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    befores, sizes, totals = (torch.empty_like(ids) for _ in range(3))
    logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    launch(
        next_ids_kernel, len(logits), logits, logits if bias is None else bias, uniforms, ids, befores, sizes, totals,
        logprobs, ids if used is None else used, logits.shape[1], float(epsilon), float(min_p),
        HAS_BIAS=bias is not None, SOME_UNUSED=used is not None, **_block(logits.shape[1]),
    )  # fmt: skip
    return ids, befores, sizes, totals, logprobs


@triton.jit(do_not_specialize=["used"])
def chunk_maxima_kernel(
    logits, bias, highest, shifts, used, count, parts,
    HAS_BIAS: tl.constexpr, SOME_UNUSED: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The largest log-probability of each chunk of one row, and what makes its logits log-probabilities.

    With SOME_UNUSED, nothing from row `used` (1,) on.
    """
    row = tl.program_id(0).to(tl.int64)
    if SOME_UNUSED:  # noqa: SIM102  (known when compiled)
        if row >= tl.load(used):
            return
    logits += row * count
    highest += row * parts
    lane = tl.arange(0, BLOCK)
    part = tl.arange(0, BLOCK // CHUNK)
    best, norm = _softmax(logits, bias, count, HAS_BIAS, BLOCK)
    shift = -best - tl.log(norm)
    for begin in range(0, count, BLOCK):
        x = _logits(logits, bias, begin + lane, count, HAS_BIAS)
        largest = tl.max(tl.reshape(x, (BLOCK // CHUNK, CHUNK)), 1)
        at = begin // CHUNK + part
        tl.store(highest + at, largest + shift, mask=at < parts)
    tl.store(shifts + row, shift)


def chunk_maxima(logits: Tensor, bias: Tensor | None, chunk: int, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of each row's log-probabilities the maximum of each chunk of that many ids, (rows, chunks), and what is to be
    added to its biased logits, (rows,); float32. There are at least `chunk` ids, a power of two."""
    logits = logits.contiguous()
    rows, parts = len(logits), triton.cdiv(logits.shape[1], chunk)
    highest = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    shifts = torch.empty(rows, dtype=torch.float32, device=logits.device)
    launch(
        chunk_maxima_kernel, rows, logits, logits if bias is None else bias, highest, shifts,
        shifts if used is None else used, logits.shape[1], parts, HAS_BIAS=bias is not None,
        SOME_UNUSED=used is not None, CHUNK=chunk, **_block(logits.shape[1]),
    )  # fmt: skip
    return highest, shifts


@triton.jit(do_not_specialize=["used"])
def linear_kernel(
    x, weight, bias, out, used, units,
    INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A block of ROWS rows and UNITS units of weight x + bias, for the first `used` (1,) rows.

    x is (rows, INPUTS), the weight (units, INPUTS). Blocks are numbered so that GROUP blocks of rows at a time share
    what they read.
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
    there = (row < rows)[:, None] & (unit < units)[None, :]
    to = out + row[:, None].to(tl.int64) * units + unit[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=there)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, used: Tensor) -> Tensor:
    """weight x + bias for the first `used` (1,) rows of x (rows, inputs); the others are undefined."""
    (rows, inputs), units = x.shape, len(weight)
    if inputs % 64:
        return torch.nn.functional.linear(x, weight, bias)
    y = x.new_empty((rows, units))
    launch(
        linear_kernel, triton.cdiv(rows, 128) * triton.cdiv(units, 128), x.contiguous(), weight,
        weight if bias is None else bias, y, used, units, INPUTS=inputs, HAS_BIAS=bias is not None,
        ROWS=128, UNITS=128, STEP=64, GROUP=8, num_warps=8, num_stages=3,
    )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["length"])
def attend_to_memory_kernel(
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


def attend_to_memory(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, offsets: Tensor, most: int) -> Tensor:
    """Attention (rows, heads x size) of rows to their sources; queries are of the same shape.

    Keys and values are (sources, heads, length, size), the bias (sources, 1, 1, length). Source i has rows offsets[i]
    to offsets[i + 1], at most `most`; from the last offset on, rows are unused and the output is undefined.
    """
    sources, heads, length, size = keys.shape
    out = torch.empty_like(query)
    rows = 64 if most > 32 else 16
    blocks = triton.cdiv(most, rows)
    launch(
        attend_to_memory_kernel, sources * heads * blocks, query.contiguous(), keys.contiguous(),
        values.contiguous(), bias.contiguous(), offsets, out, blocks, length, size**-0.5, HEADS=heads, SIZE=size,
        WIDE=max(16, triton.next_power_of_2(size)), ROWS=rows, LENGTH=32, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["used", "capacity"])  # or Triton would specialise on some of its values
def attend_kernel(
    new, keys, values, table, out, clock, used, capacity, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TIMES: tl.constexpr, SOME_UNUSED: tl.constexpr,
):  # fmt: skip
    """Self-attention of the newest position of one row, in one head.

    `new` (rows, 3, heads, size) is its query, key and value; key and value are stored in the cache (room, capacity,
    heads, size) at the time that `clock` holds. Earlier ones are those of row table[earlier time, row], TIMES of them
    at a time. Reads are issued early to hide memory latency. With SOME_UNUSED, nothing from
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


def attend(
    new: Tensor, keys: Tensor, values: Tensor, table: Tensor, time: Tensor | int, used: Tensor | None = None
) -> Tensor:
    """Self-attention (rows, heads x size) of the newest position; `new` is (rows, 3, heads, size).

    The caches keys and values are (room, capacity, heads, size): position `time` is stored there, and the earlier ones
    of a row are those of rows table[earlier, row]; table is (room, capacity) int32. `time` is a number or an int64
    tensor (1,), which is read when the kernel runs. From row `used` (1,) on the output is undefined.
    """
    rows, _, heads, size = new.shape
    if isinstance(time, int):
        time = torch.tensor([time], device=new.device)
    out = new.new_empty((rows, heads * size))
    launch(
        attend_kernel, rows * heads, new, keys, values, table, out, time, time if used is None else used,
        keys.shape[1], size**-0.5, HEADS=heads, SIZE=size, WIDE=triton.next_power_of_2(size),
        SOME_UNUSED=used is not None, TIMES=8, num_warps=1,
    )  # fmt: skip
    return out


def _block(width: int) -> dict[str, int]:
    return {"BLOCK": min(2048, triton.next_power_of_2(width)), "num_warps": 4}
