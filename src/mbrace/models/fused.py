"""Decoding on a GPU in fewer passes over memory, with the Triton kernels of kernels.py.

Imported only where Triton is.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import triton
from torch import Tensor

from mbrace.errors import warn
from mbrace.models import kernels
from mbrace.models.chosen_ids import ChosenIds
from mbrace.utilities.neural.device import first_line, launch, supports_triton

MOST_RECOMBINED = 1024  # paths per source: each is compared with all others, by one program
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
    low, high = (share.gather(1, found.ids[:, None] - shift)[:, 0] for shift in (1, 0))
    right = (low - 1e-5 <= uniforms) & (uniforms <= high + 1e-5)
    totals = add_logprobs(logits, None, torch.zeros(3, device=device))
    highest, shifts = chunk_maxima(logits, None, torch.zeros(3, device=device), 64)
    maxima = totals[:, :4992].view(3, 78, 64).amax(2)
    same = torch.allclose(highest[:, :78], maxima, atol=1e-4) and torch.allclose(
        logits + shifts[:, None], totals, atol=1e-4
    )
    new = logits[:, : 3 * 2 * 64].reshape(3, 3, 2, 64) / 10
    keys, values = new[:, 1].expand(2, -1, -1, -1).flip(1).contiguous(), new[:, 2].expand(2, -1, -1, -1).contiguous()
    table = torch.tensor([[2, 2, 0], [0, 1, 2]], dtype=torch.int32, device=device)
    mixed = attend(new, keys, values, table, 1)
    past_keys, past_values = (torch.stack([x[0, table[0].long()], x[1]]).permute(1, 2, 0, 3) for x in (keys, values))
    attended = torch.nn.functional.scaled_dot_product_attention(new[:, 0, :, None], past_keys, past_values)[
        :, :, 0
    ].flatten(1)
    close = torch.allclose(totals, logits.log_softmax(-1), atol=1e-4) and torch.allclose(mixed, attended, atol=1e-3)
    return (
        bool(right.all())
        and close
        and same
        and _totals_trial(device)
        and _part_trial(device)
        and _recombine_trial(device)
    )


def _totals_trial(device: torch.device) -> bool:
    """Whether totals of paths that share rows come out as with torch."""
    paths, width, ids = torch.arange(30, device=device)[None], 4, 70
    logits = (torch.arange(width * ids, device=device) * 37 % 1009).view(1, width, ids) / 200
    shifts, scores, states, chunks = paths[0, :width] / 9, -paths / 7, paths * 3 % width, paths * 7 % 60
    of_rows = logits[0] + shifts[:, None]
    totals = of_rows[states[0]] + scores[0, :, None]
    padded = torch.nn.functional.pad(totals, (0, 58), value=-torch.inf).view(60, 64)
    found, first = chunk_totals(logits, None, shifts, scores, states, chunks, 64)
    right = [torch.equal(first, chunks // 2 * ids + chunks % 2 * 64)]
    right += [torch.allclose(found[0], padded[chunks[0]], atol=1e-4)]
    right += [torch.allclose(totals_of_paths(of_rows, scores, states), totals.view(1, -1), atol=1e-4)]
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


def _recombine_trial(device: torch.device) -> bool:
    """Whether 320 paths, of which many end alike, enter 48 states as with torch."""
    width, bits, number = 48, 21, torch.arange(320, device=device)
    parents, ids, states, scores = number * 13 % 320, number * 9 % 70, number * 5 % width, -number / 7
    key = (number % 4)[parents] * 2**bits + ids
    first = (key[:, None] == key).int().argmax(1)
    leads = first == number
    expected, before = (leads.cumsum(0) - 1)[first], states[parents]
    keys, states, scores = (number % 4)[None].clone(), states[None].clone(), scores[None].clone()
    rows, row_ids = recombine(parents[None], ids[None], keys, states, scores, width, width, bits)
    right = [torch.equal(keys[0], key), torch.equal(states[0], expected.clamp(max=width - 1))]
    right += [torch.equal(scores[0] == -torch.inf, expected >= width)]
    right += [torch.equal(rows[0], before[leads][:width]), torch.equal(row_ids[0], ids[leads][:width])]
    return all(right)


def next_ids(logits: Tensor, bias: Tensor | None, uniforms: Tensor, *, epsilon: float, min_p: float) -> ChosenIds:
    """What choice.choose gives for logits (rows, ids) plus bias (ids,), at temperature 1."""
    logits = logits.contiguous()
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    befores, sizes, totals = (torch.empty_like(ids) for _ in range(3))
    logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    launch(
        kernels.next_ids, len(logits), logits, logits if bias is None else bias, uniforms, ids, befores, sizes, totals,
        logprobs, logits.shape[1], float(epsilon), float(min_p), HAS_BIAS=bias is not None, **_block(logits.shape[1]),
    )  # fmt: skip
    return ChosenIds(ids, befores, sizes, totals, logprobs)


def add_logprobs(logits: Tensor, bias: Tensor | None, scores: Tensor) -> Tensor:
    """Log-probabilities (rows, ids) in float32, plus a score per row."""
    logits = logits.contiguous()
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    launch(
        kernels.add_logprobs, len(logits), logits, logits if bias is None else bias, scores.contiguous(), out,
        logits.shape[1], HAS_BIAS=bias is not None, **_block(logits.shape[1]),
    )  # fmt: skip
    return out


def chunk_maxima(logits: Tensor, bias: Tensor | None, scores: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Of each row's totals (see `add_logprobs`) the maximum of each chunk of that many ids, (rows, chunks), and what
    was added to its biased logits, (rows,); float32. There are at least `chunk` ids, a power of two."""
    logits = logits.contiguous()
    rows, parts = len(logits), triton.cdiv(logits.shape[1], chunk)
    highest = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    shifts = torch.empty(rows, dtype=torch.float32, device=logits.device)
    launch(
        kernels.chunk_maxima, rows, logits, logits if bias is None else bias, scores.contiguous(), highest, shifts,
        logits.shape[1], parts, HAS_BIAS=bias is not None, CHUNK=chunk, **_block(logits.shape[1]),
    )  # fmt: skip
    return highest, shifts


def totals_of_paths(highest: Tensor, scores: Tensor, states: Tensor) -> Tensor:
    """Values (sources x width, n) of rows for the paths that are in them, (sources, paths x n), plus the paths' scores.

    `states` (sources, paths) says which of a source's rows a path is in; scores are of the same shape.
    """
    (sources, paths), parts = scores.shape, highest.shape[1]
    out = torch.empty((sources, paths * parts), dtype=torch.float32, device=highest.device)
    launch(
        kernels.totals_of_paths, sources * paths, highest, scores.contiguous(), states.contiguous(), out, paths,
        len(highest) // sources, parts, BLOCK=min(256, triton.next_power_of_2(parts)), num_warps=1,
    )  # fmt: skip
    return out


def chunk_totals(
    logits: Tensor,
    bias: Tensor | None,
    shifts: Tensor,
    scores: Tensor,
    states: Tensor | None,
    chunks: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """The totals of the ids of some chunks of each source's paths, and the index of each chunk's first id.

    Logits are (sources, width, ids); shifts (sources x width,) are those of `chunk_maxima`. `chunks` (sources, count)
    are path x parts + part. A path's score is added if `states` (sources, paths) says which row it is in; if None, each
    is in its own, and its shift includes the score. Totals are (sources, count, chunk) in float32, -inf beyond the last
    id; indexes, path x ids + id, are (sources, count).
    """
    logits, (_, width, ids) = logits.contiguous(), logits.shape
    out = torch.empty((*chunks.shape, chunk), dtype=torch.float32, device=logits.device)
    first = torch.empty_like(chunks)
    launch(
        kernels.chunk_totals, triton.cdiv(chunks.numel(), 16), logits, logits if bias is None else bias, shifts,
        scores.contiguous(), chunks if states is None else states.contiguous(), chunks, out, first, chunks.numel(),
        chunks.shape[1], scores.shape[1], width, ids, triton.cdiv(ids, chunk), HAS_BIAS=bias is not None,
        SHARED=states is not None, CHUNK=chunk, CHUNKS=16, num_warps=4,
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


def recombine(
    parents: Tensor, ids: Tensor, keys: Tensor, states: Tensor, scores: Tensor, width: int, width_before: int, bits: int
) -> tuple[Tensor, Tensor]:
    """Let paths with the same last ids share a state, one of `width` per source; at most MOST_RECOMBINED paths.

    A path's last ids are a key of 63 bits, `bits` for each id. Paths are a parent and one more id, all (sources, k), as
    are keys, states and scores, which are changed in place. Returns the decoder's row that each state continues, and
    the id that follows there, (sources, width); before, a source had `width_before` rows.
    """
    sources, k = ids.shape
    rows, row_ids = (torch.empty((sources, width), dtype=torch.int64, device=ids.device) for _ in range(2))
    block = max(512, triton.next_power_of_2(k))  # one size for all usual k: compiled once
    launch(
        kernels.recombine, sources, parents, ids, keys, states, scores, rows, row_ids, torch.empty_like(ids),
        torch.empty_like(ids, dtype=torch.int32), k, width, width_before, BITS=bits,
        MASK=(1 << 63 // bits * bits) - 1, BLOCK=block, TILE=32, num_warps=8,
    )  # fmt: skip
    return rows, row_ids


def attend(
    new: Tensor, keys: Tensor, values: Tensor, table: Tensor, time: Tensor | int, opened: Tensor | None = None
) -> Tensor:
    """Self-attention (rows, heads x size) of the newest position; `new` is (rows, 3, heads, size).

    The caches keys and values are (room, capacity, heads, size): position `time` is stored there, and the earlier ones
    of a row are those of rows table[earlier, row]; table is (room, capacity) int32. `time` is a number or an int64
    tensor (1,), which is read when the kernel runs. For rows that are not `opened` (rows,) the output means nothing.
    """
    rows, _, heads, size = new.shape
    if isinstance(time, int):
        time = torch.tensor([time], device=new.device)
    out = new.new_empty((rows, heads * size))
    launch(
        kernels.attend, rows * heads, new, keys, values, table, out, time, time if opened is None else opened,
        keys.shape[1], size**-0.5, HEADS=heads, SIZE=size, WIDE=triton.next_power_of_2(size), TIMES=16,
        SOME_CLOSED=opened is not None, num_warps=1,
    )  # fmt: skip
    return out


def _block(width: int) -> dict[str, int]:
    return {"BLOCK": min(2048, triton.next_power_of_2(width)), "num_warps": 4}
