"""The best continuations of the rows of a beam, without sorting through the totals of all ids.

Ids are cut into chunks. A chunk among whose ids is one of the n best is itself one of the n best chunks by its maximum:
if n others had higher maxima, those would be n better ids. So the n best chunks are found first, and then the n best
of their ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mbrace.models import gpu
from mbrace.models.next_ids import log_probabilities

CHUNK = 64  # ids


def best_totals(
    logits: Tensor, bias: Tensor | None, scores: Tensor, count: int, row: Tensor, used: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The `count` best totals of each source, best first, and their indexes, path x ids + id: both (sources, count).

    Logits are (rows, ids), to which bias (ids,) is added; from row `used` (1,) on, if given, they mean nothing. A total
    is the log-probability of an id, in the row that its path is in, plus the score of the path: `row` and `scores` are
    (sources, paths). Of equal totals at the end of the list any may be missing. Logits may be overwritten.
    """
    ids, paths = logits.shape[-1], scores.shape[1]
    parts = -(-ids // CHUNK)  # chunks per row
    fused = gpu.kernels_for(logits.device)
    few = paths * parts <= 2 * count
    if few or fused is None:
        logprobs = log_probabilities(logits, bias, overwrite=True)
        if few:
            found = _of_paths(logprobs, scores, row).topk(min(count, paths * ids), dim=1)
            return found.values, found.indices
        of_chunks = _of_paths(_maxima(logprobs, parts), scores, row)
    else:
        highest, shifts = fused.chunk_maxima(logits, bias, CHUNK, used)
        of_chunks = fused.totals_of_paths(highest, scores, row)
    chunks = of_chunks.topk(count, dim=1, sorted=False).indices
    if fused is None:
        values, first = _chunk_totals(logprobs, scores, row, chunks)
    else:
        values, first = fused.chunk_totals(logits, bias, shifts, scores, row, chunks, CHUNK)
    best, at = values.flatten(1).topk(count, dim=1)
    index = first.gather(1, at // CHUNK) + at % CHUNK
    return best, index.clamp_(max=paths * ids - 1)  # a total of -inf may be one beyond the last id


def _of_paths(of_rows: Tensor, scores: Tensor, row: Tensor) -> Tensor:
    """Values (rows, n) for the paths of each source, (sources, paths x n), with the paths' scores added."""
    return (of_rows[row] + scores[:, :, None]).flatten(1)


def _chunk_totals(logprobs: Tensor, scores: Tensor, row: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
    """The totals of the ids of some chunks (sources, count) of a source's paths, (sources, count, CHUNK), and the index
    of each chunk's first, path x ids + id. Log-probabilities are (rows, ids)."""
    ids, parts = logprobs.shape[1], -(-logprobs.shape[1] // CHUNK)
    path, part = chunks // parts, chunks % parts
    number = part[:, :, None] * CHUNK + torch.arange(CHUNK, device=chunks.device)
    inside = number < ids
    values = logprobs[row.gather(1, path)[:, :, None], number.clamp_(max=ids - 1)]
    values += scores.gather(1, path)[:, :, None]
    if parts * CHUNK != ids:
        values.masked_fill_(~inside, -torch.inf)
    return values, path * ids + part * CHUNK


def _maxima(logprobs: Tensor, parts: int) -> Tensor:
    """The maximum of each chunk, (rows, parts)."""
    missing = parts * CHUNK - logprobs.shape[1]
    if not missing:
        return logprobs.view(len(logprobs), parts, CHUNK).amax(2)
    whole = logprobs[:, : (parts - 1) * CHUNK].reshape(len(logprobs), parts - 1, CHUNK).amax(2)
    return torch.cat([whole, logprobs[:, (parts - 1) * CHUNK :].amax(1, keepdim=True)], dim=1)
