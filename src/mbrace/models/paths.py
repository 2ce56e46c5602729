"""The paths of a beam, from their ends to ids."""

from __future__ import annotations

import torch
from torch import Tensor


def follow_back(extensions: Tensor, lasts: Tensor, lengths: Tensor, longest: int, ids: int) -> Tensor:
    """The ids (paths, longest) of finished paths, filled up with -1: each is followed back from its last extension.

    An extension is path x ids + id. `lasts` and `lengths` are (sources, k); the extensions of open paths are (time,
    sources, k).
    """
    parents = torch.zeros_like(lasts)
    path = torch.empty_like(extensions[:longest])
    for time in reversed(range(longest)):
        torch.where(lengths == time + 1, lasts, extensions[time].gather(1, parents), out=path[time])
        parents = path[time] // ids
    found = (path % ids).int().permute(1, 2, 0)
    times = torch.arange(longest, device=found.device)
    return torch.where(times < lengths[:, :, None], found, -1).flatten(0, 1).contiguous()
