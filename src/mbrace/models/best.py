"""The best continuations of the rows of a beam, without sorting through the totals of all ids.

Ids are cut into chunks. A chunk among whose ids is one of the n best is itself one of the n best chunks by its maximum:
if n others had higher maxima, those would be n better ids. So the n best chunks are found first, and then the n best
of their ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mbrace.models import choice

CHUNK = 64  # ids


def best_totals(logits: Tensor, bias: Tensor | None, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best totals of each source, best first, and their indexes, row x ids + id: both (sources, count).

    Logits are (sources, width, ids), to which bias (ids,) is added; a total is the log-probability of an id plus the
    score, (sources, width), of its row. Of equal totals at the end of the list any may be missing.
    """
    sources, width, ids = logits.shape
    parts = -(-ids // CHUNK)  # chunks per row
    rows = logits.flatten(0, 1)
    if width * parts <= 2 * count:
        found = choice.add_logprobs(rows, bias, scores.flatten()).view(sources, -1).topk(min(count, width * ids), dim=1)
        return found.values, found.indices
    fused = choice.kernels_for(logits.device)
    if fused is None:
        totals = choice.add_logprobs(rows, bias, scores.flatten())
        highest = _maxima(totals, parts)
    else:
        highest, shifts = fused.chunk_maxima(rows, bias, scores.flatten(), CHUNK)
    chunk = highest.view(sources, -1).topk(count, dim=1, sorted=False).indices
    row, part = chunk // parts, chunk % parts
    number = part[:, :, None] * CHUNK + torch.arange(CHUNK, device=logits.device)
    inside = number < ids
    number.clamp_(max=ids - 1)
    index = (row[:, :, None] * ids + number).flatten(1)
    if fused is None:
        values = totals.view(sources, -1).gather(1, index).view(number.shape)
    else:
        values = logits.flatten(1).gather(1, index).float().view(number.shape)
        if bias is not None:
            values += bias[number]
        values += shifts.view(sources, width).gather(1, row)[:, :, None]
    if parts * CHUNK != ids:
        values.masked_fill_(~inside, -torch.inf)
    best, at = values.flatten(1).topk(count, dim=1)
    return best, index.gather(1, at)


def _maxima(totals: Tensor, parts: int) -> Tensor:
    """The maximum of each chunk, (rows, parts)."""
    missing = parts * CHUNK - totals.shape[1]
    if not missing:
        return totals.view(len(totals), parts, CHUNK).amax(2)
    whole = totals[:, : (parts - 1) * CHUNK].reshape(len(totals), parts - 1, CHUNK).amax(2)
    return torch.cat([whole, totals[:, (parts - 1) * CHUNK :].amax(1, keepdim=True)], dim=1)
