"""The kernels of `fused.py` by plain torch, where whatever is not in use is NaN, and every index is checked.

With these, searches on a CPU take the way that they take on a GPU: rows that are not in use are kept and skipped.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mbrace.models import beam_search
from mbrace.models import next_ids as choice

MOST_PATHS, FEW_ROWS = 1024, 0
skipped = 0  # how often some rows were not in use


def _count(used: Tensor | None, rows: int) -> int:
    global skipped
    count = rows if used is None else int(used[0])
    assert 0 <= count <= rows
    skipped += count < rows
    return count


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, used: Tensor, activation: Any = None) -> Tensor:
    y = F.linear(x, weight, bias)
    y[_count(used, len(y)) :] = torch.nan
    return y if activation is None else activation(y)  # type: ignore[no-any-return]


def attend(
    new: Tensor, keys: Tensor, values: Tensor, table: Tensor, time: Tensor, used: Tensor | None = None
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
    logprobs = choice.log_probabilities(logits, bias)
    highest = beam_search._maxima(logprobs, -(-logits.shape[1] // chunk))
    highest[_count(used, len(logits)) :] = torch.nan
    return highest, -choice._biased(logits, bias).logsumexp(-1)


def chunk_totals(
    logits: Tensor, bias: Tensor | None, shifts: Tensor, scores: Tensor, rows: Tensor, chunks: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    return beam_search._chunk_totals(choice.log_probabilities(logits, bias), scores, rows, chunks)


def split_extensions(
    totals: Tensor, extensions: Tensor, ends: Tensor, limit: Tensor, closed: Tensor, penalties: Tensor, clock: Tensor,
    ended_scores: Tensor, ended: Tensor, scores: Tensor, ids: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    search: Any = SimpleNamespace(
        kernels=None, k=scores.shape[1], vocabulary=ids, penalties=penalties, clock=clock, limit=limit,
        ends=tuple(ends.tolist()), closed=closed, ended_scores=ended_scores, ended=ended, scores=scores,
    )  # fmt: skip
    return beam_search._Beam._split(search, totals, extensions)


def enter_rows(
    parents: Tensor, ids: Tensor, scores: Tensor, closed: Tensor, path_rows: Tensor, offsets: Tensor, rows: Tensor,
    row_ids: Tensor,
) -> None:  # fmt: skip
    is_open = (scores > -torch.inf) & ~closed[:, None]
    torch.cumsum(is_open.sum(1), 0, out=offsets[1:])
    before = path_rows.gather(1, parents)
    path_rows.copy_((is_open.cumsum(1) - 1 + offsets[:-1, None]).clamp_(min=0))
    count = int(offsets[-1])
    rows[:count], row_ids[:count] = before[is_open], ids[is_open]
    assert 0 <= int(rows.min()) <= int(rows.max()) < len(rows)
