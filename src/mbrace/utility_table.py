"""The utilities of one record: which pairs of its strings were scored, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mbrace._native import expected_utilities


@dataclass(frozen=True, eq=False)
class UtilityTable:
    """What the race of one record scored. Equal strings are merged. NaN stands for a pair that was not scored because
    the hypothesis had been pruned before the pseudo-reference was drawn.

    A pair in `left_out` (row, column) was scored, but one draw of the column does not count in the row's expected
    utility, because that draw is the hypothesis itself (`exclude_self`).
    """

    id: str | int
    utility: str  # its signature
    schedule: tuple[int, ...]  # the utility's own
    hypotheses: Sequence[str]  # rows, in the caller's order, then drawn strings that were let in
    pseudo_references: Sequence[str]  # columns, in the order in which they were first drawn
    utilities: NDArray[np.floating]  # (hypotheses, pseudo-references), float32 or float64
    counts: NDArray[np.int64]  # (pseudo-references,) how often each was drawn
    weights: NDArray[np.float64] | None  # (pseudo-references,) shares by probability; None: by counts
    left_out: NDArray[np.int64]  # (pairs, 2)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Row of each hypothesis."""
        return {text: row for row, text in enumerate(self.hypotheses)}

    @cached_property
    def columns(self) -> Mapping[str, int]:
        """Column of each pseudo-reference."""
        return {text: column for column, text in enumerate(self.pseudo_references)}

    def expected(self) -> NDArray[np.float64]:
        """(hypotheses,): expected utilities as the race computed them; NaN for a hypothesis that was not scored against
        every pseudo-reference."""
        found = np.full(len(self.hypotheses), np.nan)
        full = np.flatnonzero(np.isfinite(self.utilities).all(axis=1))
        if len(full) and len(self.pseudo_references):
            found[full] = expected_utilities(self.utilities[full], self._shares)
        for row, column in self.left_out.tolist():
            shares = self._shares.copy()
            if self.weights is None:
                shares[column] -= 1
            elif self.counts[column] == 1:  # with weights, all copies of a string share its weight
                shares[column] = 0
            if shares.any() and np.isfinite(found[row]):
                found[row] = expected_utilities(self.utilities[row : row + 1], shares)[0]
        return found

    @property
    def _shares(self) -> NDArray[np.float64]:
        return self.counts.astype(np.float64) if self.weights is None else self.weights
