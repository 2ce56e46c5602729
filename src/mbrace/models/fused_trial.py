"""Whether the Triton kernels of decoding (fused.py) can be used on a device, found out by a trial.

Imported only where Triton is.
"""

from __future__ import annotations

import os
from functools import cache

import torch

from mbrace.errors import warn
from mbrace.models import fused, paths
from mbrace.neural.device import first_line, supports_triton

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
    found = fused.next_ids(logits, None, uniforms, epsilon=1e-3, min_p=0.0)
    p = torch.softmax(logits, -1)
    p = torch.where(p >= p.amax(-1, keepdim=True).clamp(max=1e-3), p, 0.0).double()
    share = p.cumsum(-1) / p.sum(-1, keepdim=True)
    low, high = (share.gather(1, found.ids[:, None] - shift)[:, 0] for shift in (1, 0))
    right = (low - 1e-5 <= uniforms) & (uniforms <= high + 1e-5)
    highest, shifts = fused.chunk_maxima(logits, None, 64)
    logprobs = logits.log_softmax(-1)
    same = torch.allclose(highest[:, :78], logprobs[:, :4992].view(3, 78, 64).amax(2), atol=1e-4)
    same = same and torch.allclose(logits + shifts[:, None], logprobs, atol=1e-4)
    new = logits[:, : 3 * 2 * 64].reshape(3, 3, 2, 64) / 10
    times = torch.arange(11, device=device)[:, None]  # more than the kernel reads at a time
    keys = (new[:, 1] * (1 + times[:, :, None, None] / 9)).flip(1).contiguous()
    values = (new[:, 2] * (2 - times[:, :, None, None] / 7)).contiguous()
    table = ((times * 2 + torch.arange(3, device=device)) % 3).int()
    mixed = fused.attend(new, keys, values, table, 10)
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
        found = fused.linear(x, weight, bias, used, torch.nn.SiLU())[:66]
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
    found = fused.attend_to_memory(query.transpose(0, 1).flatten(1), keys, values, bias, offsets, 5)
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
    found, first = fused.chunk_totals(logits, None, shifts, scores, rows, chunks, 64)
    right = [torch.equal(first, chunks // 2 * ids + chunks % 2 * 64)]
    right += [torch.allclose(found[0], padded[chunks[0]], atol=1e-4)]
    right += [torch.allclose(fused.totals_of_paths(of_rows, scores, rows), totals.view(1, -1), atol=1e-4)]
    return all(right)


def _part_trial(device: torch.device) -> bool:
    """Whether 320 of 640 extensions are found to stay open as with torch."""
    k, ids = 320, 70
    best, extensions = -torch.arange(2.0 * k, device=device)[None] / 3, torch.arange(2 * k, device=device)[None] * 11
    ended_scores, ended, scores = torch.zeros_like(best), torch.zeros_like(extensions), torch.zeros_like(best[:, :k])
    clock, end = torch.zeros(1, dtype=torch.int64, device=device), torch.full((1,), 4, device=device)
    kept, parents, numbers, best_open = fused.split_extensions(
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
    fused.enter_rows(both_parents, both_ids, both_scores, closed, path_rows, offsets, to, row_ids)
    count = int(is_open.sum())
    right = [torch.equal(path_rows[1][is_open], number[:count]), offsets.tolist() == [0, 0, count]]
    right += [torch.equal(to[:count], rows[parents][is_open]), torch.equal(row_ids[:count], ids[is_open])]
    return all(right)


def _follow_trial(device: torch.device) -> bool:
    """Whether 200 paths, of which some are empty, are followed back as with torch."""
    numbers = torch.arange(6 * 200, device=device)
    extensions = numbers.view(6, 2, 100) * 37 % 1100  # of 11 ids
    lasts, lengths = numbers[:200].view(2, 100) * 53 % 1100, numbers[:200].view(2, 100) % 7
    expected = paths.follow_back(extensions, lasts, lengths, 6, 11)
    return torch.equal(fused.follow_back(extensions, lasts, lengths, 6, 11), expected)
