"""Triton kernels of decoding, called by fused.py: one program per row, so that a row's result depends on no other."""

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


@triton.jit
def next_ids(
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


@triton.jit
def add_logprobs(logits, bias, scores, out, count, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """The log-probabilities of one row plus its score."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * count
    out += row * count
    lane = tl.arange(0, BLOCK)
    best, norm = _softmax(logits, bias, count, HAS_BIAS, BLOCK)
    shift = tl.load(scores + row) - best - tl.log(norm)
    for begin in range(0, count, BLOCK):
        at = begin + lane
        tl.store(out + at, _logits(logits, bias, at, count, HAS_BIAS) + shift, mask=at < count)


@triton.jit
def chunk_maxima(
    logits, bias, scores, highest, shifts, count, parts,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The largest logit of each chunk of one row plus what `add_logprobs` adds to all of its logits, and that."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * count
    highest += row * parts
    lane = tl.arange(0, BLOCK)
    part = tl.arange(0, BLOCK // CHUNK)
    best, norm = _softmax(logits, bias, count, HAS_BIAS, BLOCK)
    shift = tl.load(scores + row) - best - tl.log(norm)
    for begin in range(0, count, BLOCK):
        x = _logits(logits, bias, begin + lane, count, HAS_BIAS)
        largest = tl.max(tl.reshape(x, (BLOCK // CHUNK, CHUNK)), 1)
        at = begin // CHUNK + part
        tl.store(highest + at, largest + shift, mask=at < parts)
    tl.store(shifts + row, shift)


@triton.jit(do_not_specialize=["paths", "width", "parts"])
def totals_of_paths(highest, scores, states, out, paths, width, parts, BLOCK: tl.constexpr):
    """The values `highest` (sources x width, parts) of the row that one path is in, plus its score."""
    path = tl.program_id(0).to(tl.int64)
    highest += (path // paths * width + tl.load(states + path)) * parts
    score = tl.load(scores + path)
    lane = tl.arange(0, BLOCK)
    for begin in range(0, parts, BLOCK):
        at = begin + lane
        tl.store(out + path * parts + at, tl.load(highest + at, mask=at < parts) + score, mask=at < parts)


@triton.jit(do_not_specialize=["chosen", "chosen_per_source", "paths", "width"])
def chunk_totals(
    logits, bias, shifts, scores, states, chunks, out, first, chosen, chosen_per_source, paths, width, count, parts,
    HAS_BIAS: tl.constexpr, SHARED: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The totals of the ids of CHUNKS chosen chunks, -inf beyond the last id, and the index of each chunk's first.

    A row's biased logits plus its shift are totals; where several paths are in a row (SHARED), a path's score, too.
    """
    number = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    there = number < chosen
    source = number // chosen_per_source
    chunk = tl.load(chunks + number, mask=there, other=0)
    path = chunk // parts
    begin = (chunk - path * parts) * CHUNK
    row = source * width
    if SHARED:
        row += tl.load(states + source * paths + path, mask=there, other=0)
    else:
        row += path
    at = begin[:, None] + tl.arange(0, CHUNK)[None, :]
    inside = there[:, None] & (at < count)
    x = tl.load(logits + row[:, None] * count + at, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + at, mask=inside, other=0.0)
    x += tl.load(shifts + row, mask=there, other=0.0)[:, None]
    if SHARED:
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


@triton.jit(do_not_specialize=["k", "width", "width_before"])
def recombine(
    parents, ids, keys, states, scores, rows, row_ids, new_keys, ranks, k, width, width_before,
    BITS: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The states of one source's paths: those with the same last ids share that of the first of them, which leads it.

    Keys, states and scores (sources, k) are changed in place: keys and states from those of the parents, scores to -inf
    for paths without a state. `rows` and `row_ids` (sources, width) are each state's row before and its newest id, the
    leader's; those of path 0, if there is no leader. `new_keys` and `ranks` (sources, k) are work space, by which the
    threads of a program read what others have found.
    """
    source = tl.program_id(0).to(tl.int64)
    own = source * k
    lane = tl.arange(0, BLOCK)
    inside = lane < k
    parent = tl.load(parents + own + lane, mask=inside, other=0)
    number = tl.load(ids + own + lane, mask=inside, other=0)
    before = tl.load(states + own + parent, mask=inside, other=0)
    key = ((tl.load(keys + own + parent, mask=inside, other=0) << BITS) | number) & MASK
    tl.store(new_keys + own + lane, key, mask=inside)
    tl.debug_barrier()  # all old keys and states are read, all new keys are written
    tl.store(keys + own + lane, key, mask=inside)
    first = lane  # the first path with the same key
    for begin in range(0, k, TILE):
        other = begin + tl.arange(0, TILE)
        theirs = tl.load(new_keys + own + other, mask=other < k, other=-1)
        same = key[:, None] == theirs[None, :]
        first = tl.minimum(first, tl.min(tl.where(same, other[None, :], BLOCK), 1))
    leads = inside & (first == lane)
    rank = tl.cumsum(leads.to(tl.int32), 0) - 1
    tl.store(ranks + own + lane, rank, mask=inside)
    tl.debug_barrier()
    state = tl.load(ranks + own + first, mask=inside, other=0)
    tl.store(states + own + lane, tl.minimum(state, width - 1).to(tl.int64), mask=inside)
    tl.store(scores + own + lane, tl.full((BLOCK,), -float("inf"), tl.float32), mask=inside & (state >= width))
    row = source * width_before + before
    led = leads & (rank < width)
    tl.store(rows + source * width + rank, row, mask=led)
    tl.store(row_ids + source * width + rank, number, mask=led)
    missing = (lane >= tl.sum(leads.to(tl.int32), 0)) & (lane < width)
    nothing = tl.zeros_like(row)
    first_row = tl.sum(tl.where(lane == 0, row, 0), 0)
    first_id = tl.sum(tl.where(lane == 0, number, 0), 0)
    tl.store(rows + source * width + lane, nothing + first_row, mask=missing)
    tl.store(row_ids + source * width + lane, nothing + first_id, mask=missing)


@triton.jit(do_not_specialize=["capacity"])  # or Triton would compile it anew for some of its values
def attend(
    new, keys, values, table, out, clock, opened, capacity, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TIMES: tl.constexpr, SOME_CLOSED: tl.constexpr,
):  # fmt: skip
    """Self-attention of the newest position of one row, in one head.

    `new` (rows, 3, heads, size) is its query, key and value; key and value are stored in the cache (room, capacity,
    heads, size) at the time that `clock` holds. Earlier ones are those of row table[earlier time, row]. With
    SOME_CLOSED, a row where `opened` (rows,) is 0 is finished: its past is not read.
    """
    time = tl.load(clock)
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    if SOME_CLOSED:
        past = tl.where(tl.load(opened + row) != 0, time, 0)
    else:
        past = time
    head = tl.program_id(0) % HEADS
    unit = tl.arange(0, WIDE)
    own = unit < SIZE
    new += row * (3 * HEADS * SIZE) + head * SIZE + unit
    query = tl.load(new, mask=own, other=0.0).to(tl.float32) * scale
    key = tl.load(new + HEADS * SIZE, mask=own, other=0.0)
    value = tl.load(new + 2 * HEADS * SIZE, mask=own, other=0.0)
    stored = ((time * capacity + row) * HEADS + head) * SIZE + unit
    tl.store(keys + stored, key, mask=own)
    tl.store(values + stored, value, mask=own)
    best = tl.sum(query * key.to(tl.float32), 0)
    norm = best * 0.0 + 1.0
    mixed = value.to(tl.float32)
    step = tl.arange(0, TIMES)
    for begin in range(0, past, TIMES):
        at = begin + step
        there = at < past
        rows = tl.load(table + at * capacity + row, mask=there, other=0).to(tl.int64)
        where = ((at.to(tl.int64) * capacity + rows) * HEADS + head) * SIZE
        both = there[:, None] & own[None, :]
        k = tl.load(keys + where[:, None] + unit[None, :], mask=both, other=0.0).to(tl.float32)
        s = tl.where(there, tl.sum(k * query[None, :], 1), -float("inf"))
        higher = tl.maximum(best, tl.max(s, 0))
        weights = tl.exp(s - higher)
        shrink = tl.exp(best - higher)
        v = tl.load(values + where[:, None] + unit[None, :], mask=both, other=0.0).to(tl.float32)
        norm = norm * shrink + tl.sum(weights, 0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * v, 0)
        best = higher
    tl.store(out + row * (HEADS * SIZE) + head * SIZE + unit, (mixed / norm).to(out.dtype.element_ty), mask=own)
