"""Train the translators of full_scale.py."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared_stages import MODELS, NEWS, REVERSE, log, one, read_rows

from mbrace.io.texts import read_pairs


@dataclass
class TrainingData:
    """Sentence pairs to train on and to validate with."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    valid: list[tuple[str, str]] = field(default_factory=list)

    def read(self, args: argparse.Namespace, pair: str) -> None:
        """Add those of a pair; rows like the test sets are repeated."""
        for line in read_rows(one(args.data, f"train.{pair}.tsv*")):
            source, target, origin = line.split("\t")
            self.pairs += [(source, target)] * NEWS.get(origin, 1)
        # beyond the sentences that the figures are made of
        self.valid += read_pairs(one(args.data, f"valid.{pair}.*"))[500:1500]


def train(args: argparse.Namespace) -> None:
    """Train one translator unless it exists, also on back-translated pairs if there are any."""
    data = TrainingData()
    for pair in MODELS[args.name].pairs:
        data.read(args, pair)
    for pair in MODELS[args.name].pairs:
        back = args.out / "back" / f"{pair}.tsv"
        if back.exists():
            written = read_pairs(back)
            data.pairs += written
            log(f"{args.name}: {len(written)} pairs of {pair} were translated back")
    train_one(args, args.name, data, spm=args.data / f"{args.name}.spm")


def train_one(args: argparse.Namespace, name: str, data: TrainingData, *, spm: Path) -> None:
    """Train one translator on these pairs, unless it exists."""
    from mbrace.models.tokenizers import Vocabulary
    from mbrace.training.train import TrainingOptions
    from mbrace.training.train import train as train_model

    model = MODELS.get(name) or REVERSE[name]
    folder = args.out / "models" / name
    if (folder / "training.json").exists() and not (folder / "state.pt").exists():
        log(f"{name}: trained before")
        return
    pairs, valid = data.pairs, data.valid
    if args.small:
        pairs, valid = pairs[-400:], valid[:20]
    if spm.exists() and not args.small:
        pieces = spm.read_bytes()
    else:
        lines = [line for both in pairs for line in both]
        pieces = Vocabulary.train(lines, 400 if args.small else model.pieces, limit=200_000).model
    options: dict[str, Any] = {"size": "tiny", "steps": 12, "validate_every": 12, "chrf_sentences": 0}
    if not args.small:
        minutes = args.minutes or model.minutes
        options = {"size": model.size, "minutes": minutes, "rate": 5e-4, "dropout": model.dropout, "warmup": 1000}
        options |= {"tokens": model.tokens, "threads": 5, "subword_sampling": model.sampling}
        options |= {"chrf_sentences": 0, "half": True}  # the whole sets are scored at the end
    log(f"{name}: {len(pairs)} pairs, {options}")
    train_model(pairs, valid, folder, TrainingOptions(**options), spm=pieces)
    weights = (folder / "model.safetensors").read_bytes()
    log(f"{name}: trained; weights {len(weights) / 1e6:.0f} MB, sha256 {hashlib.sha256(weights).hexdigest()}")
