"""Triton kernels of searches and of a decoder's network, called by fused.py: a row's result depends on no other row.

Rows in use come first. How many they are is read on the device (`used`), so that a recorded step takes only as long as
they need. It is the last number of a longer tensor, so that its address is a multiple of 16 or not: kernels must not be
compiled for each.
"""

import triton
import triton.language as tl


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
def next_ids(
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


@triton.jit(do_not_specialize=["used"])
def chunk_maxima(
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


@triton.jit(do_not_specialize=["chosen", "chosen_per_source", "paths"])
def chunk_totals(
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


@triton.jit(do_not_specialize=["end_count", "k", "count"])
def split_extensions(
    best, extensions, ends, limits, closed, penalties, clock, ended_scores, ended, scores, kept, parents, ids,
    best_open, end_count, k, count, BLOCK: tl.constexpr,
):  # fmt: skip
    """Split one source's 2k best extensions into those that end and those that stay open (see beam_search.py).

    Stored are columns k to 2k of `ended_scores` and `ended`, all of scores, kept, parents and ids (sources, k), and of
    best_open (sources,).
    """
    source = tl.program_id(0).to(tl.int64)
    time = tl.load(clock)
    penalty = tl.load(penalties + time)
    lane = tl.arange(0, BLOCK)
    inside = lane < 2 * k
    total = tl.load(best + source * 2 * k + lane, mask=inside, other=-float("inf"))
    extension = tl.load(extensions + source * 2 * k + lane, mask=inside, other=0)
    parent = extension // count
    number = extension - parent * count
    ending = (tl.load(limits + source) == time + 1) | (lane >= 2 * k)
    for end in range(end_count):
        ending = ending | (number == tl.load(ends + end))
    ends_now = ending & (tl.load(closed + source) == 0)
    new = source * 2 * k + k + lane
    by_length = tl.where(ends_now, tl.div_rn(total, penalty), -float("inf"))
    tl.store(ended_scores + new, by_length, mask=lane < k)
    tl.store(ended + new, extension + time * k * count, mask=lane < k)
    opened = (ending == 0).to(tl.int32)
    column = tl.cumsum(opened, 0) - 1
    keep = (opened != 0) & (column < k)
    to = source * k + column
    tl.store(scores + to, total, mask=keep)
    tl.store(kept + to, extension, mask=keep)
    tl.store(parents + to, parent, mask=keep)
    tl.store(ids + to, number, mask=keep)
    missing = (lane >= tl.sum(opened, 0)) & (lane < k)
    to = source * k + lane
    nothing = tl.zeros_like(extension)
    tl.store(scores + to, tl.full((BLOCK,), -float("inf"), tl.float32), mask=missing)
    tl.store(kept + to, nothing, mask=missing)
    tl.store(parents + to, nothing, mask=missing)
    tl.store(ids + to, nothing, mask=missing)
    highest = tl.max(tl.where(keep, total, -float("inf")), 0)
    tl.store(best_open + source, tl.where(highest == -float("inf"), highest, tl.div_rn(highest, penalty)))


@triton.jit(do_not_specialize=["k"])
def count_open(scores, closed, counts, k, BLOCK: tl.constexpr):
    """How many of one source's paths are open: none if it is closed, otherwise those with scores above -inf."""
    source = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < k
    score = tl.load(scores + source * k + lane, mask=inside, other=-float("inf"))
    is_open = tl.where(tl.load(closed + source) == 0, score, -float("inf")) > -float("inf")
    tl.store(counts + source, tl.sum(is_open.to(tl.int64), 0))


@triton.jit(do_not_specialize=["k"])
def enter_rows(parents, ids, scores, closed, offsets, path_rows, rows, row_ids, k, BLOCK: tl.constexpr):
    """Put one source's open paths into their rows, whose first is number offsets[source].

    `path_rows` (sources, k), the row of each path, is changed in place; `rows` and `row_ids` get, for each new row, the
    row before and the newest id.
    """
    source = tl.program_id(0).to(tl.int64)
    own = source * k
    lane = tl.arange(0, BLOCK)
    inside = lane < k
    parent = tl.load(parents + own + lane, mask=inside, other=0)
    number = tl.load(ids + own + lane, mask=inside, other=0)
    before = tl.load(path_rows + own + parent, mask=inside, other=0)
    score = tl.load(scores + own + lane, mask=inside, other=-float("inf"))
    is_open = tl.where(tl.load(closed + source) == 0, score, -float("inf")) > -float("inf")
    row = tl.load(offsets + source) + tl.cumsum(is_open.to(tl.int64), 0) - 1
    tl.debug_barrier()  # all rows before are read
    tl.store(path_rows + own + lane, tl.maximum(row, 0), mask=inside)
    tl.store(rows + row, before, mask=is_open)
    tl.store(row_ids + row, number, mask=is_open)


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


@triton.jit(do_not_specialize=["used", "capacity"])  # or Triton would specialise on some of its values
def attend(
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
