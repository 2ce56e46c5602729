"""Decoding on a GPU in fewer passes over memory, with the Triton kernels of kernels.py.

Imported only where Triton is.
"""

from __future__ import annotations

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
FEW_ROWS = 2048  # up to this many, torch's matrix products are faster than ours even if most rows are unused


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


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, used: Tensor, activation: Any = None) -> Tensor:
    """activation(weight x + bias) for the first `used` (1,) rows of x (rows, inputs); the others are undefined."""
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
    to offsets[i + 1], at most `most`; from the last offset on, rows are unused and the output is undefined.
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
    tensor (1,), which is read when the kernel runs. From row `used` (1,) on the output is undefined.
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
    """Whether the kernels can be compiled for a device (a CPU: only in Triton's interpreter, for tests)."""
    if device.type == "cpu":
        return INTERPRETED
    if not supports_triton(device):
        return False
    try:
        logits = torch.zeros(1, 128, device=device)
        next_ids(logits, None, logits[0, :1].double(), epsilon=0.0, min_p=0.0)
    except Exception as error:  # such as no compiler for Triton's launcher
        warn(f"decoding goes on without Triton kernels: {first_line(error)}")
        return False
    return True
