"""The C++ kernel: exact chrF by bit counting, and bootstrap resamples as counts. See docs/kernel.md."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class ChrFIndex:
    """The distinct hypotheses of one sentence, numbered and turned into bits once; read-only and shared by threads."""

    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of the numbering tables."""
    @property
    def words(self) -> int:
        """64-bit words of a row."""

def build_indexes(
    hypotheses: list[Sequence[str]], *, char_order: int, word_order: int, whitespace: bool, threads: int = 1
) -> list[ChrFIndex]:
    """One index for the hypotheses of each sentence; the interpreter lock is released."""

def score_window(
    indexes: list[ChrFIndex],
    survivors: list[NDArray[np.int64]],
    references: list[Sequence[str]],
    *,
    beta: float,
    eps_smoothing: bool,
    threads: int = 1,
    simd: str = "",
) -> tuple[list[NDArray[np.float32]], float]:
    """For each sentence the scores, (survivors, references) 0 to 100, and the share of time that encoding took.

    `simd` forces one of `simd_variants()`; all give the same bits.
    """

def score_pairs(
    hypotheses: list[str],
    references: list[str],
    *,
    char_order: int,
    word_order: int,
    whitespace: bool,
    beta: float,
    eps_smoothing: bool,
    threads: int = 1,
    simd: str = "",
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores of aligned pairs, (pairs,), and the corpus totals, (orders, 3): n-grams of the two sides, matches."""

def resample_counts(seed: int, owners: NDArray[np.int64], distinct: int, bootstraps: int) -> NDArray[np.float64]:
    """Multinomial counts, (bootstraps, distinct): `len(owners)` draws with replacement in each resample.

    `owners` maps each pseudo-reference to its distinct string. The same seed gives the same counts on every platform.
    """

def simd_variants() -> list[str]:
    """The instruction sets this machine can count with, best first; the last is "portable"."""
