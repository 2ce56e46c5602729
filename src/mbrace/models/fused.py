"""Decoding on a GPU in fewer passes over memory, with the Triton kernels of kernels.py, and a trial of them.

Imported only where Triton is.
"""

from __future__ import annotations

import itertools
import os
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from mbrace.errors import warn
from mbrace.models import kernels
from mbrace.neural.device import first_line, launch, supports_triton

MOST_PATHS = 1024  # per source: one program has them all
FEW_ROWS = 2048  # for so many, torch's matrix products are faster than ours, even if most rows are not in use


def next_ids(
    logits: Tensor, bias: Tensor | None, uniforms: Tensor, *, epsilon: float, min_p: float, used: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As next_ids.next_ids, for logits (rows, ids) and bias (ids,), at temperature 1; id 0 from row `used` on."""
    logits = logits.contiguous()
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    befores, sizes, totals = (torch.empty_like(ids) for _ in range(3))
    logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    launch(
        kernels.next_ids, len(logits), logits, logits if bias is None else bias, uniforms, ids, befores, sizes, totals,
        logprobs, ids if used is None else used, logits.shape[1], float(epsilon), float(min_p),
        HAS_BIAS=bias is not None, SOME_UNUSED=used is not None, **_block(logits.shape[1]),
    )  # fmt: skip
    return ids, befores, sizes, totals, logprobs


def chunk_maxima(logits: Tensor, bias: Tensor | None, chunk: int, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of each row's log-probabilities the maximum of each chunk of that many ids, (rows, chunks), and what is to be
    added to its biased logits, (rows,); float32. There are at least `chunk` ids, a power of two."""
    logits = logits.contiguous()
    rows, parts = len(logits), triton.cdiv(logits.shape[1], chunk)
    highest = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    shifts = torch.empty(rows, dtype=torch.float32, device=logits.device)
    launch(
        kernels.chunk_maxima, rows, logits, logits if bias is None else bias, highest, shifts,
        shifts if used is None else used, logits.shape[1], parts, HAS_BIAS=bias is not None,
        SOME_UNUSED=used is not None, CHUNK=chunk, **_block(logits.shape[1]),
    )  # fmt: skip
    return highest, shifts


def totals_of_paths(highest: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
    """Values (rows, n) for the paths that are in these rows, (sources, paths x n), plus the paths' scores.

    `rows` (sources, paths) says which row a path is in; scores are of the same shape.
    """
    (sources, paths), parts = scores.shape, highest.shape[1]
    out = torch.empty((sources, paths * parts), dtype=torch.float32, device=highest.device)
    launch(
        kernels.totals_of_paths, sources * paths, highest, scores.contiguous(), rows.contiguous(), out, parts,
        BLOCK=min(256, triton.next_power_of_2(parts)), num_warps=1,
    )  # fmt: skip
    return out


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
        kernels.chunk_totals, triton.cdiv(chunks.numel(), 16), logits, logits if bias is None else bias, shifts,
        scores.contiguous(), rows.contiguous(), chunks, out, first, chunks.numel(), chunks.shape[1], scores.shape[1],
        ids, triton.cdiv(ids, chunk), HAS_BIAS=bias is not None, CHUNK=chunk, CHUNKS=16, num_warps=4,
    )  # fmt: skip
    return out, first


def split_extensions(
    best: Tensor,
    extensions: Tensor,
    ends: Tensor,
    limits: Tensor,
    closed: Tensor,
    penalties: Tensor,
    clock: Tensor,
    ended_scores: Tensor,
    ended: Tensor,
    scores: Tensor,
    ids: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split the 2k best extensions, path x ids + id, into those that end and those that stay open (beam_search.py).

    `best` and `extensions` are (sources, 2k), `ends` the ids that end a path. Changed in place: columns k to 2k of
    `ended_scores` and `ended` (sources, 2k), and `scores` (sources, k). Returned are the k best extensions that stay
    open, their paths and their ids, each (sources, k), and the best one's score by length (sources,).
    """
    sources, k = scores.shape
    kept, parents, numbers = (torch.empty((sources, k), dtype=torch.int64, device=best.device) for _ in range(3))
    best_open = torch.empty(sources, dtype=torch.float32, device=best.device)
    launch(
        kernels.split_extensions, sources, best.contiguous(), extensions.contiguous(), ends, limits, closed, penalties,
        clock, ended_scores, ended, scores, kept, parents, numbers, best_open, len(ends), k, ids,
        BLOCK=max(1024, triton.next_power_of_2(2 * k)), num_warps=4,  # one size for all usual k: compiled once
    )  # fmt: skip
    return kept, parents, numbers, best_open


def enter_rows(
    parents: Tensor, ids: Tensor, scores: Tensor, closed: Tensor, path_rows: Tensor, offsets: Tensor,
    rows: Tensor, row_ids: Tensor,
) -> None:  # fmt: skip
    """Put the open paths of each source into its rows, in their order (see beam_search.py).

    Paths are a parent and one more id, both (sources, k) as are their scores; those of -inf, and those of sources that
    are `closed` (sources,), are not open. Changed in place: path_rows (sources, k), offsets (sources + 1,), and the row
    before and the newest id of each new row, rows and row_ids.
    """
    sources, k = ids.shape
    counts, block = torch.empty_like(closed, dtype=torch.int64), max(512, triton.next_power_of_2(k))
    launch(kernels.count_open, sources, scores, closed, counts, k, BLOCK=block, num_warps=4)
    torch.cumsum(counts, 0, out=offsets[1:])
    launch(
        kernels.enter_rows, sources, parents, ids, scores, closed, offsets, path_rows, rows, row_ids, k,
        BLOCK=block, num_warps=4,
    )  # fmt: skip


def follow_back(extensions: Tensor, lasts: Tensor, lengths: Tensor, longest: int, ids: int) -> Tensor:
    """What `beam_search.follow_back` gives."""
    sources, k = lasts.shape
    out = torch.empty((sources * k, longest), dtype=torch.int32, device=lasts.device)
    launch(
        kernels.follow_back, triton.cdiv(sources * k, 128), extensions, lasts.contiguous(), lengths.contiguous(), out,
        longest, sources, k, ids, BLOCK=128, num_warps=4,
    )  # fmt: skip
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, used: Tensor, activation: Any = None) -> Tensor:
    """activation(weight x + bias) for the first `used` (1,) rows of x (rows, inputs); others mean nothing."""
    (rows, inputs), units = x.shape, len(weight)
    known = {torch.nn.SiLU: 1, torch.nn.ReLU: 2}.get(type(_plain(activation)), 0)
    if inputs % 64:
        y = torch.nn.functional.linear(x, weight, bias)
    else:
        y = x.new_empty((rows, units))
        launch(
            kernels.linear, triton.cdiv(rows, 128) * triton.cdiv(units, 128), x.contiguous(), weight,
            weight if bias is None else bias, y, used, units, INPUTS=inputs, HAS_BIAS=bias is not None,
            ACTIVATION=known, ROWS=128, UNITS=128, STEP=64, GROUP=8, num_warps=8, num_stages=3,
        )  # fmt: skip
        if known:
            return y
    return y if activation is None else activation(y)


def _plain(activation: Any) -> Any:
    """Torch's own activation, if this is transformers' wrapper of it."""
    wrapped = getattr(activation, "act", None)
    return wrapped if isinstance(wrapped, torch.nn.Module) else activation


def attend_to_memory(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, offsets: Tensor, most: int) -> Tensor:
    """Attention (rows, heads x size) of rows to their sources; queries are of the same shape.

    Keys and values are (sources, heads, length, size), the bias (sources, 1, 1, length). Source i has rows offsets[i]
    to offsets[i + 1], at most `most`; from the last offset on, rows are not in use, and the output means nothing.
    """
    sources, heads, length, size = keys.shape
    out = torch.empty_like(query)
    rows = 64 if most > 32 else 16
    blocks = triton.cdiv(most, rows)
    launch(
        kernels.attend_to_memory, sources * heads * blocks, query.contiguous(), keys.contiguous(),
        values.contiguous(), bias.contiguous(), offsets, out, blocks, length, size**-0.5, HEADS=heads, SIZE=size,
        WIDE=max(16, triton.next_power_of_2(size)), ROWS=rows, LENGTH=32, num_warps=4,
    )  # fmt: skip
    return out


def attend(
    new: Tensor, keys: Tensor, values: Tensor, table: Tensor, time: Tensor | int, used: Tensor | None = None
) -> Tensor:
    """Self-attention (rows, heads x size) of the newest position; `new` is (rows, 3, heads, size).

    The caches keys and values are (room, capacity, heads, size): position `time` is stored there, and the earlier ones
    of a row are those of rows table[earlier, row]; table is (room, capacity) int32. `time` is a number or an int64
    tensor (1,), which is read when the kernel runs. From row `used` (1,) on the output means nothing.
    """
    rows, _, heads, size = new.shape
    if isinstance(time, int):
        time = torch.tensor([time], device=new.device)
    out = new.new_empty((rows, heads * size))
    launch(
        kernels.attend, rows * heads, new, keys, values, table, out, time, time if used is None else used,
        keys.shape[1], size**-0.5, HEADS=heads, SIZE=size, WIDE=triton.next_power_of_2(size),
        SOME_UNUSED=used is not None, TIMES=8, num_warps=1,
    )  # fmt: skip
    return out


def _block(width: int) -> dict[str, int]:
    return {"BLOCK": min(2048, triton.next_power_of_2(width)), "num_warps": 4}


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@cache
def usable(device: torch.device) -> bool:
    """Whether the kernels work on a device, found out by a trial (a CPU: only in Triton's interpreter, for tests)."""
    if device.type == "cpu":
        return INTERPRETED
    if not supports_triton(device):
        return False
    try:
        return _trial(device)
    except Exception as error:  # such as no compiler for Triton's launcher: the plain way is always right
        warn(f"decoding goes on without Triton kernels: {first_line(error)}")
        return False


def _trial(device: torch.device) -> bool:
    """Whether small cases come out as with torch."""
    logits = (torch.arange(3 * 5000, device=device) * 37 % 1009).view(3, 5000).float() / 200
    uniforms = torch.tensor([0.1, 0.5, 0.999], device=device, dtype=torch.float64)
    found = next_ids(logits, None, uniforms, epsilon=1e-3, min_p=0.0)
    p = torch.softmax(logits, -1)
    p = torch.where(p >= p.amax(-1, keepdim=True).clamp(max=1e-3), p, 0.0).double()
    share = p.cumsum(-1) / p.sum(-1, keepdim=True)
    low, high = (share.gather(1, found[0][:, None] - shift)[:, 0] for shift in (1, 0))
    right = (low - 1e-5 <= uniforms) & (uniforms <= high + 1e-5)
    highest, shifts = chunk_maxima(logits, None, 64)
    logprobs = logits.log_softmax(-1)
    same = torch.allclose(highest[:, :78], logprobs[:, :4992].view(3, 78, 64).amax(2), atol=1e-4)
    same = same and torch.allclose(logits + shifts[:, None], logprobs, atol=1e-4)
    new = logits[:, : 3 * 2 * 64].reshape(3, 3, 2, 64) / 10
    times = torch.arange(11, device=device)[:, None]  # more than the kernel reads at a time
    keys = (new[:, 1] * (1 + times[:, :, None, None] / 9)).flip(1).contiguous()
    values = (new[:, 2] * (2 - times[:, :, None, None] / 7)).contiguous()
    table = ((times * 2 + torch.arange(3, device=device)) % 3).int()
    mixed = attend(new, keys, values, table, 10)
    table[10] = torch.arange(3, device=device)
    past_keys, past_values = (x[times, table.long()].permute(1, 2, 0, 3) for x in (keys, values))
    attended = torch.nn.functional.scaled_dot_product_attention(new[:, 0, :, None], past_keys, past_values)[
        :, :, 0
    ].flatten(1)
    return (
        bool(right.all())
        and same
        and torch.allclose(mixed, attended, atol=1e-3)
        and _linear_trial(device)
        and _memory_trial(device)
        and _totals_trial(device)
        and _part_trial(device)
        and _rows_trial(device)
        and _follow_trial(device)
    )


def _linear_trial(device: torch.device) -> bool:
    """Whether a matrix product comes out as with torch."""
    used, right = torch.tensor([66], device=device), []
    for dtype in [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]:  # it multiplies no bfloat16
        x = ((torch.arange(70 * 128, device=device) * 37 % 1009).view(70, 128) / 500 - 1).to(dtype)
        weight, bias = x.flip(0)[:40].contiguous(), x[0, :40].contiguous()
        found = linear(x, weight, bias, used, torch.nn.SiLU())[:66]
        expected = torch.nn.functional.silu(torch.nn.functional.linear(x, weight, bias))[:66]
        right.append(torch.allclose(found.float(), expected.float(), atol=0.1, rtol=0.03))
    return all(right)


def _memory_trial(device: torch.device) -> bool:
    """Whether 5 rows attend to their two sources as with torch."""
    x = (torch.arange(4 * 2 * 2 * 24 * 32, device=device) * 37 % 1009).view(4, 2, 2, 24, 32) / 500 - 1
    keys, values, query = x[0], x[1], x[2, 0, :, :5]
    bias = torch.zeros(2, 1, 1, 24, device=device)
    bias[1, :, :, 9:] = -torch.inf
    offsets = torch.tensor([0, 2, 5], device=device)
    found = attend_to_memory(query.transpose(0, 1).flatten(1), keys, values, bias, offsets, 5)
    of_source = torch.tensor([0, 0, 1, 1, 1], device=device)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[:, :, None], keys[of_source], values[of_source], attn_mask=bias[of_source]
    )
    return torch.allclose(found, expected[:, :, 0].flatten(1), atol=1e-3)


def _totals_trial(device: torch.device) -> bool:
    """Whether totals of paths that share rows come out as with torch."""
    paths, width, ids = torch.arange(30, device=device)[None], 4, 70
    logits = (torch.arange(width * ids, device=device) * 37 % 1009).view(width, ids) / 200
    shifts, scores, rows, chunks = paths[0, :width] / 9, -paths / 7, paths * 3 % width, paths * 7 % 60
    of_rows = logits + shifts[:, None]
    totals = of_rows[rows[0]] + scores[0, :, None]
    padded = torch.nn.functional.pad(totals, (0, 58), value=-torch.inf).view(60, 64)
    found, first = chunk_totals(logits, None, shifts, scores, rows, chunks, 64)
    right = [torch.equal(first, chunks // 2 * ids + chunks % 2 * 64)]
    right += [torch.allclose(found[0], padded[chunks[0]], atol=1e-4)]
    right += [torch.allclose(totals_of_paths(of_rows, scores, rows), totals.view(1, -1), atol=1e-4)]
    return all(right)


def _part_trial(device: torch.device) -> bool:
    """Whether 320 of 640 extensions are found to stay open as with torch."""
    k, ids = 320, 70
    best, extensions = -torch.arange(2.0 * k, device=device)[None] / 3, torch.arange(2 * k, device=device)[None] * 11
    ended_scores, ended, scores = torch.zeros_like(best), torch.zeros_like(extensions), torch.zeros_like(best[:, :k])
    clock, end = torch.zeros(1, dtype=torch.int64, device=device), torch.full((1,), 4, device=device)
    kept, parents, numbers, best_open = split_extensions(
        best, extensions, end, end, clock != 0, end / 2, clock, ended_scores, ended, scores, ids
    )
    ending = extensions % ids == end
    right = [torch.equal(kept[0], extensions[~ending][:k]), torch.equal(scores[0], best[~ending][:k])]
    right += [
        torch.equal(parents, kept // ids),
        torch.equal(numbers, kept % ids),
        torch.equal(best_open, scores[:, 0] / 2),
    ]
    right += [torch.equal(ended_scores[:, k:], torch.where(ending, best / 2, -torch.inf)[:, :k])]
    return all(right) and torch.equal(ended[:, k:], extensions[:, :k])


def _rows_trial(device: torch.device) -> bool:
    """Whether 320 paths, of which some are not open, enter rows as with torch, beside a source that has none."""
    number = torch.arange(320, device=device)
    parents, ids, rows, scores = number * 13 % 320, number * 9 % 70, number * 5 % 48, -number / 7
    scores = scores.masked_fill(number % 3 == 1, -torch.inf)
    is_open = scores > -torch.inf
    both_parents, both_ids, both_scores = (x.repeat(2, 1) for x in (parents, ids, scores))
    closed, path_rows = torch.tensor([True, False], device=device), rows.repeat(2, 1)
    offsets, to, row_ids = torch.zeros(3, dtype=torch.int64, device=device), torch.zeros_like(number), number * 0
    enter_rows(both_parents, both_ids, both_scores, closed, path_rows, offsets, to, row_ids)
    count = int(is_open.sum())
    right = [torch.equal(path_rows[1][is_open], number[:count]), offsets.tolist() == [0, 0, count]]
    right += [torch.equal(to[:count], rows[parents][is_open]), torch.equal(row_ids[:count], ids[is_open])]
    return all(right)


def _follow_trial(device: torch.device) -> bool:
    """Whether 200 paths, of which some are empty, are followed back as with torch."""
    numbers = torch.arange(6 * 200, device=device)
    extensions = numbers.view(6, 2, 100) * 37 % 1100  # of 11 ids
    lasts, lengths = numbers[:200].view(2, 100) * 53 % 1100, numbers[:200].view(2, 100) % 7
    found = follow_back(extensions, lasts, lengths, 6, 11).view(2, 100, 6).tolist()
    for source, path in itertools.product(range(2), range(100)):
        expected, extension = [-1] * 6, int(lasts[source, path])
        for time in reversed(range(int(lengths[source, path]))):
            expected[time] = extension % 11
            extension = int(extensions[time - 1, source, extension // 11])
        if found[source][path] != expected:
            return False
    return True
