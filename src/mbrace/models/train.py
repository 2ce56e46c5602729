"""Train a translation model on parallel text; the result is an ordinary Marian folder that transformers loads.

Vaswani et al. (2017)'s transformer, without label smoothing (Cheng & Vlachos 2023, section 4: sampling wants the
model's own distribution). With a budget (`minutes` or `steps`) the learning rate falls linearly to zero at its end,
which is worth much in a short run; without one it falls with the inverse square root until validation loss stops
falling.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mbrace.errors import UserError, require
from mbrace.models.batches import Corpus
from mbrace.models.run import Pairs, Run, Training
from mbrace.models.sizes import SIZES
from mbrace.models.vocabulary import Vocabulary

__all__ = ["Training", "train"]


def train(
    pairs: Pairs, valid: Pairs, folder: str | Path, options: Training, *, spm: bytes | None = None
) -> dict[str, Any]:
    """Train on `pairs` until the budget ends or validation loss stops falling; write the best model to `folder`.

    Takes up an interrupted run of the same folder. Returns the history, also written to `folder`/training.json.
    """
    started = time.monotonic()
    if options.size not in SIZES:
        raise UserError(f"size {options.size!r} is not one of {', '.join(SIZES)}")
    torch = require("torch", extra="models")
    require("transformers", extra="models")
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary(pairs, out, options, spm)
    corpora = [
        Corpus.of(
            vocabulary.encode([source for source, _ in part], threads=options.threads),
            vocabulary.encode([target for _, target in part], threads=options.threads),
            longest=options.longest,
        )
        for part in (pairs, valid)
    ]
    if not all(map(len, corpora)):
        raise UserError(f"no training or validation pair has at most {options.longest} pieces a side")
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    run = Run(vocabulary, corpora[0], corpora[1], valid, out, options, device, started)
    run.log(
        f"{len(corpora[0])} pairs, {corpora[0].lengths().sum(axis=0)} ids, {run.weights() / 1e6:.1f}M weights, {device}"
    )
    return run.train()


def _vocabulary(pairs: Pairs, out: Path, options: Training, spm: bytes | None) -> Vocabulary:
    if spm is None and (out / "source.spm").exists():
        spm = (out / "source.spm").read_bytes()  # of the run we take up
    if spm is not None:
        vocabulary = Vocabulary(spm)
    else:
        size = options.vocabulary or SIZES[options.size].vocabulary
        lines = (line for pair in pairs for line in pair)
        vocabulary = Vocabulary.train(lines, size, seed=options.seed, threads=options.threads)
    vocabulary.save(out)
    return vocabulary
