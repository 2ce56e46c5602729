"""Score the tiny checkpoints with the original `unbabel-comet` package and write `scores.json`.

Run by `make oracle` in a virtual environment of its own:  python tests/oracle/oracle.py tests/oracle/scores.json
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import tiny
import torch
from comet import load_from_checkpoint


def main(out: Path) -> None:
    """One list of scores for each variant: aligned triples, as `comet-score` computes them."""
    scores: dict[str, object] = {"unbabel-comet": importlib.metadata.version("unbabel-comet")}
    with tempfile.TemporaryDirectory() as work:
        for name in tiny.VARIANTS:
            folder = tiny.make(Path(work), name)
            if tiny.VARIANTS[name].get("features") == 4:
                add_blind_source(folder)
            # The original takes `pretrained_model` for a folder relative to where it runs, else for a hub name,
            # and MiniLM's tokenizer always from "xlm-roberta-base".
            os.chdir(folder)
            if (folder / "tiny-minilm").is_dir():
                shutil.copytree(folder / "tiny-minilm", folder / "xlm-roberta-base")
            model = load_from_checkpoint(str(folder / "checkpoints" / "model.ckpt"), strict=True)
            model.eval()
            triples = zip(tiny.SOURCES, tiny.HYPOTHESES, tiny.REFERENCES, strict=True)
            samples = [{"src": src, "mt": mt, "ref": ref} for src, mt, ref in triples]
            with torch.no_grad():
                found = model.predict(samples, batch_size=4, gpus=0, progress_bar=False, num_workers=0)
            scores[name] = found["scores"]
            print(name, [round(score, 4) for score in found["scores"]])
    out.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


def add_blind_source(folder: Path) -> None:
    """The original has no head without source: zero weights for h*s and |h-s| make it one."""
    path = folder / "checkpoints" / "model.ckpt"
    saved = torch.load(path, weights_only=True)
    weight = saved["state_dict"]["estimator.ff.0.weight"]
    saved["state_dict"]["estimator.ff.0.weight"] = torch.cat(
        [weight, torch.zeros(len(weight), weight.shape[1] // 2)], 1
    )
    torch.save(saved, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
