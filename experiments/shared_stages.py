"""What the stages of full_scale.py share: the translators, where the data are, and how progress is logged."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEWS = {"newstest2008-2016": 2, "newstest2019-2020": 2, "newstest2016": 4, "ntrex": 4, "flores": 4, "mlqe-wikipedia": 3}
SPLITS = ("valid", "test")


@dataclass(frozen=True)
class Model:
    """How a translator is trained. Rows of the origins in NEWS, which are like the test sets, are repeated."""

    pairs: tuple[str, ...]
    pieces: int
    minutes: float
    dropout: float
    tokens: int


# Two decoder layers instead of six: half the time to train and a third to sample, at the same encoder.
MODELS = {
    "to-en": Model(("de-en", "tr-en"), 20000, 9.0, 0.1, 32768),
    "en-et": Model(("en-et",), 12000, 5.5, 0.3, 16384),
}
REVERSE = {"en-tr": Model(("tr-en",), 20000, 3.0, 0.1, 32768)}  # for back_translation.py
MODEL_OF = {pair: name for name, model in MODELS.items() for pair in model.pairs}
METRIC_OF = {"de-en": "en", "tr-en": "en", "en-et": "multilingual"}


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
