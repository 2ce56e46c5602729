"""Which hypotheses an n-best list holds: the best, or a diverse set.

The latter is DMBR of Jinnai et al. (2024), "Generating Diverse and High-Quality Texts by Minimum Bayes Risk Decoding",
with the utility itself as similarity. It chooses among the hypotheses that are left at the end of a race.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, check_number
from mbrace.records import Record
from mbrace.utility import Ask, Scorer

RULES = ("best", "diverse")
DIVERSITY = 0.5


@dataclass(frozen=True)
class Selection:
    """How an n-best list is chosen. `diversity` is the weight of the similarity between those chosen, for "diverse"."""

    rule: str = "best"
    diversity: float = DIVERSITY

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UserError(f"select {self.rule!r}: unknown; choose from {', '.join(RULES)}")
        check_number("diversity", self.diversity, least=0)


BEST = Selection()


def selection_of(rule: str, diversity: float | None, *, nbest: int, prune: object) -> Selection:
    """The selection for these options, checked: unless it is "best", nothing may be pruned, as all need full scores."""
    if diversity is not None and rule != "diverse":
        raise UserError(f'diversity {diversity}: only valid with select="diverse"')
    if rule == "best":
        return BEST
    selection = Selection(rule, DIVERSITY if diversity is None else diversity)
    if nbest < 2:
        raise UserError(f'select="{rule}": chooses several; give nbest=2 or more')
    if prune is not None:
        raise UserError(f'select="{rule}": chooses among hypotheses with full scores; give prune=None')
    return selection


@dataclass
class Finalists:
    """The hypotheses of one sentence that are left at the end of its race, and which of them are chosen."""

    record: Record
    sentence: int  # index into the window
    rows: NDArray[np.int64]  # indexes into `Sentence.hypotheses`
    texts: Sequence[str]
    means: NDArray[np.float64]  # expected utilities
    utilities: NDArray[np.floating]  # (hypotheses, distinct pseudo-references)
    weights: NDArray[np.float64]  # (distinct pseudo-references,) in the expectation; need not sum to 1
    columns: Mapping[str, int]  # column of each pseudo-reference
    chosen: list[int] = field(default_factory=list)  # in the order of the n-best list
    calls: int = 0  # pairs of hypotheses that were scored to choose

    def ranking(self) -> list[int]:
        """Indices of all of them, best first; ties in their order."""
        return np.argsort(-self.means, kind="stable").tolist()  # type: ignore[no-any-return]


def choose(finalists: Sequence[Finalists], selection: Selection, count: int, scorer: Scorer, utility: str) -> float:
    """Choose `count` for each sentence: sets `chosen` and `calls`, and returns the seconds that `scorer` took."""
    return _choose_diverse(finalists, selection.diversity, count, scorer, utility)


def _choose_diverse(
    finalists: Sequence[Finalists], diversity: float, count: int, scorer: Scorer, utility: str
) -> float:
    """Greedily, in lockstep over the window: the best hypothesis, then whichever adds most to

    sum of expected utilities - diversity / (count - 1) x sum of u(h, h') over ordered pairs of those chosen.
    """
    seconds = 0.0
    penalties = [np.zeros(len(each.rows)) for each in finalists]
    for each in finalists:
        each.chosen = each.ranking()[: count if count >= len(each.rows) else 1]
    open_now = [index for index, each in enumerate(finalists) if len(each.chosen) < min(count, len(each.rows))]
    while open_now:
        all_similarities, spent = _similarities([finalists[index] for index in open_now], scorer, utility)
        seconds += spent
        for index, similarities in zip(open_now, all_similarities, strict=True):
            each = finalists[index]
            penalties[index] += diversity / (count - 1) * similarities
            gains = each.means - penalties[index]
            gains[each.chosen] = -np.inf
            each.chosen.append(int(np.argmax(gains)))  # the first of equal ones
        open_now = [index for index in open_now if len(finalists[index].chosen) < count]
    return seconds


def _similarities(
    finalists: Sequence[Finalists], scorer: Scorer, utility: str
) -> tuple[list[NDArray[np.float64]], float]:
    """For each sentence, u(h, last) + u(last, h) for each h that can still be chosen, where `last` was chosen last; 0
    for the others. What the race has scored is not scored again. Also returns the seconds that scoring took."""
    similarities = [np.zeros(len(each.rows)) for each in finalists]
    asks: list[Ask] = []
    wanted: list[tuple[int, NDArray[np.int64]]] = []  # for each ask: the index into `finalists`, and its hypotheses
    for index, each in enumerate(finalists):
        last, others = each.chosen[-1], np.setdiff1d(np.arange(len(each.rows)), each.chosen)
        column = each.columns.get(each.texts[last])
        if column is not None:
            similarities[index][others] += each.utilities[others, column]
        else:
            asks.append(Ask(each.sentence, each.rows[others], (each.texts[last],)))
            wanted.append((index, others))
        columns = np.array([each.columns.get(each.texts[other], -1) for other in others.tolist()])
        known, unknown = others[columns >= 0], others[columns < 0]
        similarities[index][known] += each.utilities[last, columns[columns >= 0]]
        if len(unknown):
            asks.append(Ask(each.sentence, each.rows[[last]], tuple(each.texts[other] for other in unknown.tolist())))
            wanted.append((index, unknown))
    started = time.perf_counter()
    tables = scorer.score(asks) if asks else []
    seconds = time.perf_counter() - started
    if len(tables) != len(asks):
        raise UserError(f"utility {utility}: returned {len(tables)} tables for {len(asks)} asks")
    for ask, (index, about), table in zip(asks, wanted, tables, strict=True):
        each = finalists[index]
        if np.shape(table) != (len(ask.hypotheses), len(ask.references)) or not np.isfinite(table).all():
            raise each.record.error(
                f"utility {utility} returned {np.shape(table)} numbers for two hypotheses, or one that is not finite; "
                "a utility must return a finite number per pair"
            )
        similarities[index][about] += np.asarray(table, dtype=np.float64).ravel()
        each.calls += len(about)
    return similarities, seconds
