"""Triton kernels of searches and of a decoder's cache: a row's result depends on no other row.

Imported only where Triton is. Each kernel is followed by the function that launches it.
"""

import contextlib
import os
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mbrace.errors import warn
from mbrace.neural.device import first_line

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


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


@triton.jit
def next_ids_kernel(
    logits, bias, uniforms, ids, befores, sizes, totals, logprobs, count, epsilon, min_p,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The next id of one row by inverse CDF, its interval of the summed weights, and its log-probability."""
    row = tl.program_id(0).to(tl.int64)
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
    logits: Tensor, bias: Tensor | None, uniforms: Tensor, *, epsilon: float, min_p: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As next_ids.next_ids, for logits (rows, ids) and bias (ids,), at temperature 1."""
    logits = logits.contiguous()
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    befores, sizes, totals = (torch.empty_like(ids) for _ in range(3))
    logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    launch(
        next_ids_kernel, len(logits), logits, logits if bias is None else bias, uniforms, ids, befores, sizes, totals,
        logprobs, logits.shape[1], float(epsilon), float(min_p), HAS_BIAS=bias is not None, **_block(logits.shape[1]),
    )  # fmt: skip
    return ids, befores, sizes, totals, logprobs


@triton.jit
def chunk_maxima_kernel(
    logits, bias, highest, shifts, count, parts, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):
    """The largest log-probability of each chunk of one row, and what makes its logits log-probabilities."""
    row = tl.program_id(0).to(tl.int64)
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


def chunk_maxima(logits: Tensor, bias: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Of each row's log-probabilities the maximum of each chunk of that many ids, (rows, chunks), and what is to be
    added to its biased logits, (rows,); float32. There are at least `chunk` ids, a power of two."""
    logits = logits.contiguous()
    rows, parts = len(logits), triton.cdiv(logits.shape[1], chunk)
    highest = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    shifts = torch.empty(rows, dtype=torch.float32, device=logits.device)
    launch(
        chunk_maxima_kernel, rows, logits, logits if bias is None else bias, highest, shifts, logits.shape[1], parts,
        HAS_BIAS=bias is not None, CHUNK=chunk, **_block(logits.shape[1]),
    )  # fmt: skip
    return highest, shifts


@triton.jit(do_not_specialize=["chosen", "chosen_per_source", "paths"])
def chunk_totals_kernel(
    logits, bias, shifts, scores, rows, chunks, out, first, chosen, chosen_per_source, paths, count, parts,
    HAS_BIAS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The totals of the ids of CHUNKS chosen chunks, -inf beyond the last id, and the index of each chunk's first.

    A row's biased logits plus its shift are log-probabilities, which with the score of a path in that row are totals.
    """
    number = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    there = number < chosen
    source = number // chosen_per_source
    chunk = tl.load(chunks + number, mask=there, other=0)
    path = chunk // parts
    begin = (chunk - path * parts) * CHUNK
    row = tl.load(rows + source * paths + path, mask=there, other=0)
    at = begin[:, None] + tl.arange(0, CHUNK)[None, :]
    inside = there[:, None] & (at < count)
    x = tl.load(logits + row[:, None] * count + at, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + at, mask=inside, other=0.0)
    x += tl.load(shifts + row, mask=there, other=0.0)[:, None]
    x += tl.load(scores + source * paths + path, mask=there, other=0.0)[:, None]
    tl.store(out + number[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :], x, mask=there[:, None])
    tl.store(first + number, path * count + begin, mask=there)


def chunk_totals(
    logits: Tensor, bias: Tensor | None, shifts: Tensor, scores: Tensor, rows: Tensor, chunks: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """The totals of the ids of some chunks of each source's paths, and the index of each chunk's first id.

    Logits are (rows, ids); shifts (rows,) are those of `chunk_maxima`. `chunks` (sources, count) are path x parts +
    part; `rows` and `scores` (sources, paths) are those of paths. Totals are (sources, count, chunk) in float32, -inf
    beyond the last id; indexes, path x ids + id, are (sources, count).
    """
    logits, ids = logits.contiguous(), logits.shape[1]
    out = torch.empty((*chunks.shape, chunk), dtype=torch.float32, device=logits.device)
    first = torch.empty_like(chunks)
    launch(
        chunk_totals_kernel, triton.cdiv(chunks.numel(), 16), logits, logits if bias is None else bias, shifts,
        scores.contiguous(), rows.contiguous(), chunks, out, first, chunks.numel(), chunks.shape[1], scores.shape[1],
        ids, triton.cdiv(ids, chunk), HAS_BIAS=bias is not None, CHUNK=chunk, CHUNKS=16, num_warps=4,
    )  # fmt: skip
    return out, first


@triton.jit(do_not_specialize=["capacity"])  # or Triton would compile it anew for some of its values
def attend_kernel(
    new, keys, values, table, out, clock, capacity, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """Self-attention of the newest position of one row, in one head.

    `new` (rows, 3, heads, size) is its query, key and value; key and value are stored in the cache (room, capacity,
    heads, size) at the time that `clock` holds. Earlier ones are those of row table[earlier time, row], TIMES of them
    at a time. Memory is slow, so whatever can be read is asked for before it is needed.
    """
    past = tl.load(clock)
    row = (tl.program_id(0) // HEADS).to(tl.int64)
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


def attend(new: Tensor, keys: Tensor, values: Tensor, table: Tensor, time: Tensor) -> Tensor:
    """Self-attention (rows, heads x size) of the newest position; `new` is (rows, 3, heads, size).

    The caches keys and values are (room, capacity, heads, size): position `time` is stored there, and the earlier ones
    of a row are those of rows table[earlier, row]; table is (room, capacity) int32. `time` (1,) is int64.
    """
    rows, _, heads, size = new.shape
    out = new.new_empty((rows, heads * size))
    launch(
        attend_kernel, rows * heads, new, keys, values, table, out, time, keys.shape[1], size**-0.5,
        HEADS=heads, SIZE=size, WIDE=triton.next_power_of_2(size), TIMES=8, num_warps=1,
    )  # fmt: skip
    return out


def _block(width: int) -> dict[str, int]:
    return {"BLOCK": min(2048, triton.next_power_of_2(width)), "num_warps": 4}


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the device of its first argument; on a CPU, in Triton's interpreter."""
    device = arguments[0].device
    with contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device):
        kernel[(programs,)](*arguments, **constants)


@cache
def usable(device: torch.device) -> bool:
    """Whether kernels run on a device: an NVIDIA GPU from Ampere on (a CPU: in Triton's interpreter, for tests)."""
    if device.type == "cpu":
        return INTERPRETED
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        logits = torch.zeros(1, 128, device=device)
        next_ids(logits, None, logits[0, :1].double(), epsilon=0.0, min_p=0.0)
    except Exception as error:  # such as no compiler for Triton's launcher
        warn(f"decoding goes on without Triton kernels: {first_line(error)}")
        return False
    return True
