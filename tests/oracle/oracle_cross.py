"""Score the tiny cross-encoders with the originals and write `scores_cross.json`.

COMET's classes by the `unbabel-comet` package; MetricX by transformers' own mT5 and the recipe of its published
`predict.py`, written out naively. Run by `make oracle`: python tests/oracle/oracle_cross.py FILE
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
import tiny_cross
import torch
from comet import load_from_checkpoint
from transformers import AutoTokenizer, MT5ForConditionalGeneration

LIMITS = {"23": 1024, "24": 1536}
LONG = " ".join(f"token{number}" for number in range(400))  # over MetricX's limits


def main(out: Path) -> None:
    """Per variant a list of scores of aligned triples with a reference (`pairs`), and without (`quality`)."""
    scores: dict[str, object] = {"unbabel-comet": importlib.metadata.version("unbabel-comet")}
    with tempfile.TemporaryDirectory() as work:
        for name, settings in tiny_cross.VARIANTS.items():
            scores[name] = comet(tiny_cross.make(Path(work), name), settings)
            print(name, {kind: [round(one, 4) for one in found] for kind, found in scores[name].items()})
        for name, version in tiny_cross.METRICX.items():
            folder = tiny_cross.make_metricx(Path(work), name)
            kinds = {"quality": True} if name.endswith("qe") else {"pairs": False}
            kinds |= {"quality": True} if version == "24" else {}
            scores[name] = {kind: metricx(folder, version, qe) for kind, qe in kinds.items()}
            print(name, {kind: [round(one, 4) for one in found] for kind, found in scores[name].items()})
    out.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


def comet(folder: Path, settings: dict) -> dict[str, list[float]]:
    """Scores by the original class, with references where it reads them and without where it reads sources."""
    os.chdir(folder)
    if (folder / "tiny-minilm").is_dir():
        shutil.copytree(folder / "tiny-minilm", folder / "xlm-roberta-base")
    model = load_from_checkpoint(str(folder / "checkpoints" / "model.ckpt"), strict=True)
    model.eval()
    triples = zip(tiny.SOURCES, tiny.HYPOTHESES, tiny.REFERENCES, strict=True)
    samples = [{"src": src, "mt": mt, "ref": ref} for src, mt, ref in triples]
    quality_only = settings["class_identifier"].startswith("referenceless")
    segments = ["mt", "src"] if quality_only else settings.get("input_segments", ["mt", "src", "ref"])
    wanted = {}
    with torch.no_grad():
        for kind, segment in (("pairs", "ref"), ("quality", "src")):
            if segment in segments:
                given = [{k: v for k, v in one.items() if kind == "pairs" or k != "ref"} for one in samples]
                found = model.predict(given, batch_size=3, gpus=0, progress_bar=False, num_workers=0)
                wanted[kind] = found["scores"]
    return wanted


def metricx(folder: Path, version: str, qe: bool) -> list[float]:
    """One input at a time: the text, its ids without the last one, one decoder step, one logit."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = MT5ForConditionalGeneration.from_pretrained(str(folder)).eval()
    hypotheses = [*tiny.HYPOTHESES, LONG]
    found = []
    for index, hypothesis in enumerate(hypotheses):
        source, reference = tiny.SOURCES[index % 8], tiny.REFERENCES[index % 8]
        if version == "24":
            text = "source: " + source + " candidate: " + hypothesis + ("" if qe else " reference: " + reference)
        else:
            text = "candidate: " + hypothesis + (" source: " + source if qe else " reference: " + reference)
        ids = tokenizer(text, max_length=LIMITS[version], truncation=True, padding=False)["input_ids"][:-1]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[0]])).logits
        found.append(float(torch.clamp(logits[0, 0, 250089], 0, 25)))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
