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
    return bool(right.all()) and close and same


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
