"""Score tiny checkpoints with the original packages `bleurt-pytorch`, `bert-score` and `sentence-transformers`.

Run by `make oracle` in a virtual environment of its own:  python tests/oracle/oracle_encoders.py OUT
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path

import bert_score
import tiny
import tiny_bleurt
import tiny_encoders
import torch
from bleurt_pytorch import BleurtForSequenceClassification, BleurtTokenizer
from sentence_transformers import SentenceTransformer


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


def bertscore(work: Path) -> dict[str, dict[str, list[float]]]:
    """Precision, recall and F1 of aligned pairs: plain, with idf, and rescaled."""
    scores = {}
    for kind in tiny_encoders.KINDS:
        folder = tiny_encoders.make(work, kind)
        os.chdir(folder.parent)  # it looks for "t5" in the path
        (work / "baselines.tsv").write_text(tiny_encoders.BASELINES)
        fast = kind == "xlmr"  # there is no slow tokenizer in that folder
        # One pair at a time: in a batch its padding, at a cosine of 0, wins over tokens whose cosines are all negative.
        common = {"model_type": kind, "num_layers": tiny_encoders.LAYER, "lang": "en", "batch_size": 1}
        common["use_fast_tokenizer"] = fast
        idf = bert_score.utils.get_idf_dict(tiny_encoders.TEXTS, bert_score.utils.get_tokenizer(kind, fast), nthreads=0)
        rescaled = {"rescale_with_baseline": True, "baseline_path": str(work / "baselines.tsv")}
        for name, options in (("plain", {}), ("idf", {"idf": idf}), ("rescaled", rescaled)):
            found = bert_score.score(tiny_encoders.HYPOTHESES, tiny_encoders.REFERENCES, **common, **options)
            measures = ("precision", "recall", "f1")
            scores[f"{kind} {name}"] = {m: values.tolist() for m, values in zip(measures, found, strict=True)}
            print(kind, name, [round(score, 4) for score in scores[f"{kind} {name}"]["f1"]])
    return scores


def cosines(work: Path) -> dict[str, list[float]]:
    """Cosines of aligned pairs."""
    scores = {}
    for name in tiny_encoders.SENTENCE_ENCODERS:
        model = SentenceTransformer(str(tiny_encoders.make_sentence_encoder(work, name)), device="cpu")
        sides = [model.encode(texts, convert_to_tensor=True) for texts in (tiny.HYPOTHESES, tiny.REFERENCES)]
        scores[name] = torch.cosine_similarity(*sides).tolist()
        print(name, [round(score, 4) for score in scores[name]])
    return scores


def main(out: Path) -> None:
    """The scores of every package."""
    scores: dict[str, object] = {}
    for package in ("bleurt-pytorch", "bert-score", "sentence-transformers"):
        scores[package] = importlib.metadata.version(package)
    with tempfile.TemporaryDirectory() as work:
        scores["bleurt"] = bleurt(Path(work))
        scores["bertscore"] = bertscore(Path(work))
        scores["cosine"] = cosines(Path(work))
    out.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
