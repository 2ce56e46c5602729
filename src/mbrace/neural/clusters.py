"""k-means, initialised by k-means++, for centroids of references."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ITERATIONS = 5


def k_means(vectors: Tensor, weights: NDArray[np.float64], count: int, seed: int) -> tuple[Tensor, NDArray[np.float32]]:
    """Centres (count, units) of clusters of `vectors`, (texts, units), weighted by `weights`, (texts,); and the share
    of the weights in each cluster, (count,)."""
    chosen = spread_out(vectors, weights, count, np.random.Generator(np.random.PCG64(seed)))
    centres, assigned = lloyd(vectors, weights, vectors[torch.from_numpy(chosen).to(vectors.device)])
    shares = np.bincount(assigned, weights=weights, minlength=count) / weights.sum()
    return centres, shares.astype(np.float32)


def spread_out(
    vectors: Tensor, weights: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """k-means++: indices chosen at random, each with chances in proportion to the squared distance from those
    before."""
    chosen = [_drawn(weights, rng)]
    nearest = _squares(vectors, vectors[chosen[-1]])
    while len(chosen) < count:
        chances = weights * nearest
        # if all that are left equal one that was chosen, any will do
        chosen.append(_drawn(chances if chances.sum() > 0 else weights, rng))
        nearest = np.minimum(nearest, _squares(vectors, vectors[chosen[-1]]))
    return np.array(chosen)


def lloyd(
    vectors: Tensor, weights: NDArray[np.float64], centres: Tensor, *, iterations: int = ITERATIONS
) -> tuple[Tensor, NDArray[np.int64]]:
    """Moves each centre to the mean of the vectors nearest to it, several times; returns the centres, and which one
    each vector belongs to. A centre that is nearest to no vector stays where it is."""
    counts = vectors.new_tensor(weights)
    assigned: Tensor | None = None
    for _ in range(iterations):
        nearest = torch.cdist(vectors, centres).argmin(dim=1)
        if assigned is not None and torch.equal(nearest, assigned):
            break
        assigned = nearest
        totals = counts.new_zeros(len(centres)).index_add_(0, assigned, counts)
        sums = torch.zeros_like(centres).index_add_(0, assigned, vectors * counts[:, None])
        centres = torch.where(totals[:, None] > 0, sums / totals.clamp(min=1e-30)[:, None], centres)
    assert assigned is not None
    return centres, assigned.cpu().numpy()


def _drawn(chances: NDArray[np.float64], rng: np.random.Generator) -> int:
    """A random index, in proportion to the chances."""
    ends = np.cumsum(chances)
    return int(min(np.searchsorted(ends, rng.random() * ends[-1], side="right"), np.flatnonzero(chances)[-1]))


def _squares(vectors: Tensor, centre: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = ((vectors - centre) ** 2).sum(dim=1).double().cpu().numpy()
    return found
