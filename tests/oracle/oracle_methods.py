"""Cluster and complete with the package `mbrs`, and write `scores_methods.json`.

In a virtual environment of its own, with torch:

    pip install --no-deps mbrs==0.1.8
    python tests/oracle/oracle_methods.py tests/oracle/scores_methods.json
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import torch


def main(out: Path) -> None:
    """Inputs beside what the packages make of them."""
    for name in ("bertscore", "bleurt", "comet", "cometkiwi", "cometqe", "metricx", "xcomet"):
        sys.modules[f"mbrs.metrics.{name}"] = MagicMock()  # metrics that need packages which are not used here
    from mbrs.modules.als import MatrixFactorizationALS
    from mbrs.modules.kmeans import Kmeans

    found: dict[str, object] = {"mbrs": importlib.metadata.version("mbrs")}
    rng = torch.Generator().manual_seed(3)
    matrix, mask = torch.rand((12, 15), generator=rng), torch.rand((12, 15), generator=rng) < 0.4
    matrix = torch.where(mask, matrix, 0.0)
    start = torch.Generator().manual_seed(7)
    x = torch.rand((12, 3), generator=start) * (12 * 3) ** -0.5
    y = torch.rand((15, 3), generator=start) * (15 * 3) ** -0.5
    als = MatrixFactorizationALS(regularization_weight=0.1, rank=3)
    left, right = als.factorize(matrix, observed_mask=mask, niter=6, tolerance=-float("inf"), seed=7)
    found["completion"] = {
        "matrix": matrix.tolist(),
        "mask": mask.tolist(),
        "start": [x.tolist(), y.tolist()],
        "product": (left @ right.T).tolist(),
    }

    vectors = torch.randn((30, 4), generator=rng)
    kmeans = Kmeans(Kmeans.Config(ncentroids=5, niter=4, seed=11))
    start = kmeans.init_kmeanspp(vectors, torch.Generator().manual_seed(11), 5)
    centres, assigned = kmeans.train(vectors)
    found["clusters"] = {
        "vectors": vectors.tolist(),
        "start": start.tolist(),
        "centres": centres.tolist(),
        "assigned": assigned.tolist(),
    }
    out.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
