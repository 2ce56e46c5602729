"""Triton kernels that choose next ids and extend the paths of a beam, called by fused.py: a row's result depends on no
other row.

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


@triton.jit(do_not_specialize=["parts"])
def totals_of_paths(highest, scores, rows, out, parts, BLOCK: tl.constexpr):
    """The values `highest` (rows, parts) of the row that one path is in, plus its score."""
    path = tl.program_id(0).to(tl.int64)
    highest += tl.load(rows + path) * parts
    score = tl.load(scores + path)
    lane = tl.arange(0, BLOCK)
    for begin in range(0, parts, BLOCK):
        at = begin + lane
        tl.store(out + path * parts + at, tl.load(highest + at, mask=at < parts) + score, mask=at < parts)


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


@triton.jit(do_not_specialize=["longest", "sources", "k", "count"])
def follow_back(extensions, lasts, lengths, out, longest, sources, k, count, BLOCK: tl.constexpr):
    """The ids of BLOCK finished paths, followed back from their last extensions, path x ids + id: out (paths, longest).

    `lasts` and `lengths` (sources, k) are those of finished paths, `extensions` (time, sources, k) of open ones. Beyond
    the length of a path, -1.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = number < sources * k
    source = number // k
    length = tl.load(lengths + number, mask=there, other=0)
    extension = tl.load(lasts + number, mask=there, other=0)
    for before in range(longest):
        time = longest - 1 - before
        earlier = (time * sources + source) * k + extension // count
        parent = tl.load(extensions + earlier, mask=there & (time + 1 < length), other=0)
        extension = tl.where(time + 1 < length, parent, extension)
        id = tl.where(time < length, extension % count, -1)
        tl.store(out + number * longest + time, id.to(tl.int32), mask=there)
