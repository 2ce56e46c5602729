"""What the stages of full_scale.py share: the translators, where the data are, and how progress is logged."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEWS = {"newstest2008-2016": 2, "newstest2016": 4, "mlqe-wikipedia": 3}
# What is decided on: sets that no model was trained on and nobody had looked at (flores: not with these models).
CONFIRM = {"de-en": ("wmt21", "wmt22"), "tr-en": ("flores",), "en-et": ("flores",)}


@dataclass(frozen=True)
class Model:
    """How a translator is trained. Rows of the origins in NEWS, which are like the test sets, are repeated."""

    pairs: tuple[str, ...]
    pieces: int
    minutes: float
    dropout: float
    tokens: int = 16384
    sampling: float | None = None  # of segmentations
    size: str = "base"


# Transformer base, one model per pair, trained side by side on one GPU. The smallest training set gets the least
# time, more dropout and sampled segmentations.
MODELS = {
    "de-en": Model(("de-en",), 16000, 7.2, 0.1),
    "tr-en": Model(("tr-en",), 16000, 6.4, 0.2),
    "en-et": Model(("en-et",), 12000, 5.0, 0.2, sampling=0.2),
}
REVERSE = {"en-tr": Model(("tr-en",), 16000, 2.3, 0.1, size="shallow")}  # for back_translation.py
MODEL_OF = {pair: name for name, model in MODELS.items() for pair in model.pairs}


def splits_of(pair: str) -> tuple[str, ...]:
    """The sets of a pair in the order in which they are made: figures and margins, the paper's test set, what is
    decided on."""
    return "valid", "test", *CONFIRM[pair]


def log(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)


def one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise SystemExit(f"{folder}: no {pattern}; see the top of full_scale.py")
    return found[0]


def guarded(what: str, step: Callable[[], Any]) -> None:
    """Run a step; if it fails, log that and continue."""
    try:
        step()
    except Exception:
        log(f"{what}: FAILED")
        traceback.print_exc()
        sys.stderr.flush()


def read_rows(path: Path) -> Iterator[str]:
    from mbrace.io.reading import read_lines

    return (line for line in read_lines(str(path)) if line.count("\t") == 2)
