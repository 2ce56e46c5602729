"""Attention and pooling for strings whose tokens follow one another without padding, on a GPU with Triton.

On an H200, torch's attention with a mask, and pooling with one, which writes every layer's states once more, took 52 of
the 129 ms in which MiniLM embedded 31,600 strings of 30 tokens.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.neural.device import has_16_bits, launch, supports_triton, without_cudnn_attention

_TRIAL_LENGTHS = [70, 33, 16, 1]  # for each of the block sizes of `_blocks`, several blocks, or one that is full


def attend_within(qkv: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """Attention (tokens, heads x size) of each token to those of its string.

    `qkv` (tokens, 3, heads, size) are queries, keys and values. String i has tokens offsets[i] to offsets[i + 1], at
    most `longest`.
    """
    import triton

    from mbrace.neural import packed_kernels

    tokens, _, heads, size = qkv.shape
    out = qkv.new_empty((tokens, heads * size))
    shape = _blocks(longest)
    blocks = triton.cdiv(longest, shape["ROWS"])
    launch(
        packed_kernels.attend_within, (len(offsets) - 1) * heads * blocks, qkv.contiguous(), offsets, out, blocks,
        math.log2(math.e) * size**-0.5, HEADS=heads, SIZE=size, WIDE=max(16, triton.next_power_of_2(size)), **shape,
    )  # fmt: skip
    return out


def _blocks(longest: int) -> dict[str, int]:
    """How many queries a program has, and keys at a time: as few as there are in most strings."""
    if longest <= 16:
        return {"ROWS": 16, "KEYS": 16, "num_warps": 1, "num_stages": 1}
    if longest <= 64:
        return {"ROWS": 32, "KEYS": 32, "num_warps": 2, "num_stages": 1}
    return {"ROWS": 64, "KEYS": 64, "num_warps": 4, "num_stages": 2}


def add_mean(sums: Tensor, states: Tensor, ids: Tensor, offsets: Tensor, *, weight: float, pad: int) -> None:
    """Add weight x the mean over each string's tokens to `sums` (strings, units), in float32.

    `states` are (tokens, units). Tokens whose id is `pad` count in the length, and are left out of the sum.
    """
    import triton

    from mbrace.neural import packed_kernels

    units = states.shape[1]
    block = min(128, triton.next_power_of_2(units))
    launch(
        packed_kernels.add_mean, len(sums) * triton.cdiv(units, block), states.contiguous(), ids, offsets, sums,
        float(weight), pad, UNITS=units, BLOCK=block, TOKENS=16, num_warps=4,
    )  # fmt: skip


@cache
def usable(device: torch.device, dtype: torch.dtype, heads: int, size: int) -> bool:
    """Whether these kernels can be used for a network of such heads, found out by a trial."""
    if not has_16_bits(dtype) or not supports_triton(device):
        return False
    try:
        return trial(device, dtype, heads, size)
    except Exception:  # such as no Triton, or too large a head: the padded way is always right
        return False


@torch.inference_mode()
@without_cudnn_attention()
def trial(device: torch.device, dtype: torch.dtype, heads: int, size: int) -> bool:
    """Whether attention and means come out as with torch, for strings of all block sizes."""
    width, right = heads * size, []
    for lengths in (_TRIAL_LENGTHS, _TRIAL_LENGTHS[1:], _TRIAL_LENGTHS[2:]):
        offsets = F.pad(torch.tensor(lengths, device=device).cumsum(0), (1, 0))
        tokens = sum(lengths)
        numbers = torch.arange(tokens * 3 * width, device=device) * 37 % 1009
        qkv = (numbers / 250 - 2).to(dtype).view(tokens, 3, heads, size)
        ids, sums = torch.arange(tokens, device=device) % 7, torch.ones((len(lengths), width), device=device)
        found, means = attend_within(qkv, offsets, lengths[0]), qkv.reshape(tokens, -1)[:, :width].contiguous()
        add_mean(sums, means, ids, offsets, weight=0.5, pad=3)
        expected = [_attended(part) for part in torch.split(qkv, lengths)]
        kept = torch.split(means.float() * (ids != 3)[:, None], lengths)
        right += [torch.allclose(found.float(), torch.cat(expected).float(), atol=0.05, rtol=0.05)]
        right += [torch.allclose(sums, 1 + 0.5 * torch.stack([part.mean(0) for part in kept]), atol=1e-3)]
    return all(right)


def _attended(qkv: Tensor) -> Tensor:
    """Attention (tokens, heads x size) in one string, as torch does it."""
    q, k, v = qkv.permute(1, 2, 0, 3)[:, None]
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)
