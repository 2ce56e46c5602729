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


def best_totals(
    logits: Tensor, bias: Tensor | None, scores: Tensor, count: int, states: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The `count` best totals of each source, best first, and their indexes, path x ids + id: both (sources, count).

    Logits are (sources, width, ids), to which bias (ids,) is added. A total is the log-probability of an id plus the
    score, (sources, paths), of its path. `states` (sources, paths) says which row each path is in, if several may be in
    one; by default each is in its own. Of equal totals at the end of the list any may be missing.
    """
    ids, paths = logits.shape[-1], scores.shape[1]
    parts = -(-ids // CHUNK)  # chunks per row
    rows = logits.flatten(0, 1)
    of_rows = scores.flatten() if states is None else scores.new_zeros(len(rows))
    fused = choice.kernels_for(logits.device)
    few = paths * parts <= 2 * count
    if few or fused is None:
        totals = choice.add_logprobs(rows, bias, of_rows)
        if few:
            found = _of_paths(totals, scores, states).topk(min(count, paths * ids), dim=1)
            return found.values, found.indices
        highest = _maxima(totals, parts)
    else:
        highest, shifts = fused.chunk_maxima(rows, bias, of_rows, CHUNK)
    if fused is None or states is None:
        of_chunks = _of_paths(highest, scores, states)
    else:
        of_chunks = fused.totals_of_paths(highest, scores, states)
    chunks = of_chunks.topk(count, dim=1, sorted=False).indices
    if fused is None:
        values, first = _chunk_totals(totals, scores, states, chunks)
    else:
        values, first = fused.chunk_totals(logits, bias, shifts, scores, states, chunks, CHUNK)
    best, at = values.flatten(1).topk(count, dim=1)
    index = first.gather(1, at // CHUNK) + at % CHUNK
    return best, index.clamp_(max=paths * ids - 1)  # a total of -inf may be one beyond the last id


def _of_paths(of_rows: Tensor, scores: Tensor, states: Tensor | None) -> Tensor:
    """Values (rows, n) for the paths of each source, (sources, paths x n), with the paths' scores added."""
    sources = len(scores)
    if states is None:
        return of_rows.view(sources, -1)  # they have been added
    values = of_rows.view(sources, -1, of_rows.shape[1])
    return (values.gather(1, states[:, :, None].expand(-1, -1, values.shape[2])) + scores[:, :, None]).flatten(1)


def _chunk_totals(totals: Tensor, scores: Tensor, states: Tensor | None, chunks: Tensor) -> tuple[Tensor, Tensor]:
    """The totals of the ids of some chunks (sources, count) of a source's paths, (sources, count, CHUNK), and the index
    of each chunk's first, path x ids + id. Totals (rows, ids) include the scores only where there are no states."""
    ids, parts = totals.shape[1], -(-totals.shape[1] // CHUNK)
    path, part = chunks // parts, chunks % parts
    row = path if states is None else states.gather(1, path)
    number = part[:, :, None] * CHUNK + torch.arange(CHUNK, device=chunks.device)
    inside = number < ids
    index = row[:, :, None] * ids + number.clamp_(max=ids - 1)
    values = totals.view(len(chunks), -1).gather(1, index.flatten(1)).view(index.shape)
    if states is not None:
        values += scores.gather(1, path)[:, :, None]
    if parts * CHUNK != ids:
        values.masked_fill_(~inside, -torch.inf)
    return values, path * ids + part * CHUNK


def _maxima(totals: Tensor, parts: int) -> Tensor:
    """The maximum of each chunk, (rows, parts)."""
    missing = parts * CHUNK - totals.shape[1]
    if not missing:
        return totals.view(len(totals), parts, CHUNK).amax(2)
    whole = totals[:, : (parts - 1) * CHUNK].reshape(len(totals), parts - 1, CHUNK).amax(2)
    return torch.cat([whole, totals[:, (parts - 1) * CHUNK :].amax(1, keepdim=True)], dim=1)
