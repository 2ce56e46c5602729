"""The kernels of `kernels.py` by plain torch, where whatever is not in use is NaN, and every index is checked.

With these, searches on a CPU take the way that they take on a GPU: rows that are not in use are kept and skipped.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.models import beam_search
from mbrace.models import next_ids as choice

FEW_ROWS = 0
skipped = 0  # how often some rows were not in use


def _count(used: Tensor | None, rows: int) -> int:
    global skipped
    count = rows if used is None else int(used[0])
    assert 0 <= count <= rows
    skipped += count < rows
    return count


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, used: Tensor) -> Tensor:
    y = F.linear(x, weight, bias)
    y[_count(used, len(y)) :] = torch.nan
    return y


def attend(
    new: Tensor, keys: Tensor, values: Tensor, table: Tensor, time: Tensor | int, used: Tensor | None = None
) -> Tensor:
    now, count = int(time), _count(used, len(new))
    q, k, v = new[:count].unbind(1)
    keys[now, :count], values[now, :count] = k, v
    rows, times = table[: now + 1, :count].long(), torch.arange(now + 1)[:, None]
    past_keys, past_values = (x[times, rows].permute(1, 2, 0, 3) for x in (keys, values))
    assert not past_keys.isnan().any()
    out = new.new_full((len(new), new.shape[2] * new.shape[3]), torch.nan)
    out[:count] = F.scaled_dot_product_attention(q[:, :, None], past_keys, past_values)[:, :, 0].flatten(1)
    return out


def attend_to_memory(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, offsets: Tensor, most: int) -> Tensor:
    out, heads, ends = torch.full_like(query, torch.nan), keys.shape[1], offsets.tolist()
    assert len(ends) == len(keys) + 1
    for source, (begin, end) in enumerate(pairwise(ends)):
        assert 0 <= end - begin <= most
        if end > begin:
            q = query[begin:end].view(1, end - begin, heads, -1).transpose(1, 2)
            one = slice(source, source + 1)
            mask = bias[one].expand(-1, heads, end - begin, -1)
            seen = F.scaled_dot_product_attention(q, keys[one], values[one], attn_mask=mask)
            out[begin:end] = seen[0].transpose(0, 1).flatten(1)
    return out


def next_ids(
    logits: Tensor, bias: Tensor | None, u: Tensor, *, epsilon: float, min_p: float, used: Tensor | None = None
) -> tuple[Tensor, ...]:
    count = _count(used, len(logits))
    assert not logits[:count].isnan().any()
    weights = choice.Truncation(epsilon or None, min_p=min_p or None)(choice._biased(logits[:count], bias))
    ids, before, size, total = choice._intervals(weights, u[:count])
    logprobs = weights.gather(1, ids[:, None])[:, 0].log()
    filled = [
        F.pad(x, (0, len(logits) - count), value=value)
        for x, value in ((ids, 0), (before, 0), (size, 1), (total, 1), (logprobs, 0))
    ]
    return tuple(filled)


def chunk_maxima(logits: Tensor, bias: Tensor | None, chunk: int, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
    biased = logits.clone() if bias is None else logits + bias
    shifts = -biased.logsumexp(-1)
    highest = beam_search._maxima(biased + shifts[:, None], -(-logits.shape[1] // chunk))
    highest[_count(used, len(logits)) :] = torch.nan
    return highest, shifts
