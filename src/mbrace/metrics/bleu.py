"""Sentence BLEU as a utility: equal to sacreBLEU's, counted in native code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mbrace import _native
from mbrace.errors import SettingError, check_number, check_switches, check_threads, check_whole, require
from mbrace.metrics.base import Multithreaded
from mbrace.utility import Ask, Sentence, check_aligned

NATIVE_TOKENIZERS = ("13a", "char", "none")
# The default value of each smoothing method; None: it takes no value.
SMOOTHING_VALUES = {"exp": None, "floor": 0.1, "add-k": 1.0, "none": None}
USUAL_ORDER = 4
MAX_ORDER = 24


@dataclass(frozen=True, kw_only=True)
class BLEU(Multithreaded):
    """Sentence BLEU from 0 to 100 (Papineni et al. 2002), equal to sacreBLEU's `sentence_bleu` for one reference.

    `tokenize` is 13a, char, none, or, where sacreBLEU is installed, any other of its tokenizers (intl, zh, ja-mecab
    ...). `smooth_method` is exp, floor, add-k or none, with `smooth_value` for floor (0.1) and add-k (1).
    `effective_order` leaves out orders longer than the hypothesis, as `sentence_bleu` does; the corpus score never
    does, as in `corpus_bleu`. `threads`: all cores by default; it changes no score.
    """

    tokenize: str = "13a"
    smooth_method: str = "exp"
    smooth_value: float | None = None
    max_ngram_order: int = USUAL_ORDER
    effective_order: bool = True
    lowercase: bool = False
    threads: int | None = None

    schedule: ClassVar[tuple[int, ...]] = (16, 32, 64, 128, 256)
    needs_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_switches(self)
        if self.smooth_method not in SMOOTHING_VALUES:
            known = ", ".join(SMOOTHING_VALUES)
            raise SettingError("smooth_method", self.smooth_method, f"unknown; choose from {known}")
        if self.smooth_value is not None:
            if SMOOTHING_VALUES[self.smooth_method] is None:
                only = f"only valid with smooth_method floor or add-k, not {self.smooth_method}"
                raise SettingError("smooth_value", self.smooth_value, only)
            check_number("smooth_value", self.smooth_value, least=0)
        check_whole("max_ngram_order", self.max_ngram_order, least=1, most=MAX_ORDER)
        check_threads(self.threads)
        if self.tokenize not in NATIVE_TOKENIZERS:
            _sacrebleu_tokenizer(self.tokenize)

    @property
    def name(self) -> str:
        """sacreBLEU's signature: the parts that the score of a sentence depends on."""
        default = SMOOTHING_VALUES[self.smooth_method]
        smoothing = self.smooth_method + ("" if default is None else f"[{self._smoothing_value:.2f}]")
        return (
            f"BLEU|case:{'lc' if self.lowercase else 'mixed'}|eff:{'yes' if self.effective_order else 'no'}"
            f"|tok:{self.tokenize}|smooth:{smoothing}"
            + (f"|order:{self.max_ngram_order}" if self.max_ngram_order != USUAL_ORDER else "")
        )

    @property
    def _smoothing_value(self) -> float:
        return (SMOOTHING_VALUES[self.smooth_method] or 0.0) if self.smooth_value is None else self.smooth_value

    @property
    def _native_tokenizer(self) -> str:
        """The native tokenizer for `_prepared` texts: sacreBLEU's tokenizers leave spaces between tokens."""
        return self.tokenize if self.tokenize in NATIVE_TOKENIZERS else "none"

    def start(self, sentences: Sequence[Sentence]) -> BLEUScorer:
        """Begin the races of a window; the n-grams of its hypotheses live as long as its scorer."""
        return BLEUScorer(self, sentences)

    def pairs(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Sentence scores of aligned pairs, (pairs,)."""
        return self._scores(self.statistics(hypotheses, references), self.effective_order).astype(np.float32)

    def corpus(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """Corpus score: BLEU of the counts summed over all pairs, as sacreBLEU's `corpus_bleu`."""
        return self.from_statistics(self.statistics(hypotheses, references).sum(axis=0))

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
        """(pairs, 2 + 2 * order): tokens of each hypothesis and reference, then matches and n-grams by order."""
        check_aligned(self.name, hypotheses=hypotheses, references=references)
        return _native.bleu_statistics(
            self._prepared(hypotheses),
            self._prepared(references),
            tokenizer=self._native_tokenizer,
            order=self.max_ngram_order,
            threads=self.workers,
        )

    def from_statistics(self, totals: NDArray[np.int64]) -> float:
        """The corpus score of summed `statistics`, (2 + 2 * order,)."""
        return float(self._scores(np.asarray(totals, dtype=np.int64)[None], effective_order=False)[0])

    def _scores(self, statistics: NDArray[np.int64], effective_order: bool) -> NDArray[np.float64]:
        return _native.bleu_scores(
            np.ascontiguousarray(statistics),
            smoothing=self.smooth_method,
            smoothing_value=self._smoothing_value,
            effective_order=effective_order,
        )

    def _prepared(self, texts: Sequence[str]) -> list[str]:
        prepared = [text.lower() for text in texts] if self.lowercase else list(texts)
        if self.tokenize in NATIVE_TOKENIZERS:
            return prepared
        tokenizer = _sacrebleu_tokenizer(self.tokenize)
        return [tokenizer(text.rstrip()) for text in prepared]


@lru_cache(maxsize=8)
def _sacrebleu_tokenizer(name: str) -> Callable[[str], str]:
    metrics = require("sacrebleu.metrics", extra="strings")
    known = list(metrics.BLEU.TOKENIZERS)
    if name not in known:
        raise SettingError("tokenize", name, f"unknown; choose from {', '.join(known)}")
    try:
        tokenizer: Callable[[str], str] = metrics.BLEU(tokenize=name).tokenizer
    except Exception as error:  # it may need another package or a download
        raise SettingError("tokenize", name, " ".join(str(error).split())) from error
    return tokenizer


class BLEUScorer:
    """Scores the races of one window. The n-grams of a hypothesis are counted when an ask first names it."""

    def __init__(self, utility: BLEU, sentences: Sequence[Sentence]) -> None:
        self._utility = utility
        self._sentences = sentences
        self._indexes = [
            _native.BleuIndex(tokenizer=utility._native_tokenizer, order=utility.max_ngram_order) for _ in sentences
        ]
        self.encode_seconds = 0.0

    def score(self, asks: Sequence[Ask]) -> list[NDArray[np.float32]]:
        """The utilities of each ask, (hypotheses, references)."""
        utility, began = self._utility, time.perf_counter()
        self._index(asks)
        references = [utility._prepared(ask.references) for ask in asks]
        indexed = time.perf_counter()
        tables, encode_share = _native.score_bleu_window(
            [self._indexes[ask.sentence] for ask in asks],
            [ask.hypotheses for ask in asks],
            list(references),
            smoothing=utility.smooth_method,
            smoothing_value=utility._smoothing_value,
            effective_order=utility.effective_order,
            threads=utility.workers,
        )
        self.encode_seconds += indexed - began + encode_share * (time.perf_counter() - indexed)
        return tables

    def _index(self, asks: Sequence[Ask]) -> None:
        """Count the n-grams of the hypotheses that are new, up to the last one that an ask names."""
        ends: dict[int, int] = {}
        for ask in asks:
            end = int(ask.hypotheses.max(initial=-1)) + 1
            if end > max(len(self._indexes[ask.sentence]), ends.get(ask.sentence, 0)):
                ends[ask.sentence] = end
        if ends:
            starts = {sentence: len(self._indexes[sentence]) for sentence in ends}
            _native.add_bleu_hypotheses(
                [self._indexes[sentence] for sentence in ends],
                [self._utility._prepared(self._sentences[s].hypotheses[starts[s] : end]) for s, end in ends.items()],
                threads=self._utility.workers,
            )
