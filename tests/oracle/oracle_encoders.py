"""Score tiny checkpoints with the original `bleurt-pytorch` package and write `scores_encoders.json`.

Run by `make oracle` in a virtual environment of its own:  python tests/oracle/oracle_encoders.py OUT
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path

import tiny_bleurt
import torch
from bleurt_pytorch import BleurtForSequenceClassification, BleurtTokenizer


def bleurt(work: Path) -> dict[str, list[float]]:
    """Scores of aligned pairs, as the package's own example computes them."""
    scores = {}
    for name in tiny_bleurt.VARIANTS:
        folder = str(tiny_bleurt.make(work, name))
        model = BleurtForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = BleurtTokenizer.from_pretrained(folder)
        with torch.no_grad():
            inputs = tokenizer(tiny_bleurt.REFERENCES, tiny_bleurt.HYPOTHESES, padding="longest", return_tensors="pt")
            scores[name] = model(**inputs).logits.flatten().tolist()
        print(name, [round(score, 4) for score in scores[name]])
    return scores


def main(out: Path) -> None:
    """The scores of every package."""
    scores: dict[str, object] = {}
    for package in ("bleurt-pytorch",):
        scores[package] = importlib.metadata.version(package)
    with tempfile.TemporaryDirectory() as work:
        scores["bleurt"] = bleurt(Path(work))
    out.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
