"""One sentence in a race: its hypotheses still alive (H_t), its pseudo-references (R_t) and the utilities so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Tally
from mbrace.errors import UserError, counted
from mbrace.forecast import View, Waiting
from mbrace.prune import PruningFunction, RaceState, SelfScheduled, Standings, planner_of, stops_by_regret
from mbrace.records import Record, check_logprobs, key, relative_probabilities
from mbrace.result import Candidate, Decoded, Step, UtilityTable
from mbrace.sampler import Draws, Want
from mbrace.settings import Race
from mbrace.utility import Ask, Sentence, Utility

NOBODY = np.empty(0, dtype=np.int64)  # indices of no hypothesis
NOBODY.setflags(write=False)
FEWEST = 4  # equal draws that end a race between draws, where other draws were unusable


class SentenceRace:
    """The race of one sentence. `sizes` are its sample sizes, step by step; `waiting` are, with a forecast, the
    hypotheses that do not race from the start.

    `failure` is why it has no answer; it costs the other sentences of the window nothing.
    """

    def __init__(
        self,
        record: Record,
        settings: Race,
        prune: PruningFunction | None,
        sizes: Iterator[int],
        waiting: Waiting | None,
        keep_utilities: bool,
    ) -> None:
        self.record, self.sizes, self.nbest, self.waiting = record, sizes, settings.nbest, waiting
        self.tally = Tally(record.hypotheses if waiting is None else waiting.starters)
        self.hypotheses = self.tally.hypotheses  # distinct, in the caller's order; then those admitted later
        self.references: list[str] = []  # distinct, as drawn; empty where nothing needs their texts later
        self.means: NDArray[np.float64] | None = None  # expected utilities of those alive
        self.steps: list[Step] = []
        self.failure: Exception | None = None
        self.exhausted = False  # no more pseudo-references are available
        self.used = 0  # draws so far, unusable ones included
        # The race is over once this few are left: one, or where it may stop by regret, as many as are listed.
        self.enough = settings.nbest if stops_by_regret(prune) else 1
        self.pool = settings.pool
        self.grows = settings.pool or waiting is not None  # hypotheses may be admitted
        self._is_planned = settings.pool and planner_of(prune) is not None
        # whether the hypotheses are draws themselves, to be left out of their own expected utility
        self._own_draws = settings.exclude_self and (settings.pool or record.pseudo_references is None)
        self._keep_utilities = keep_utilities
        self._needs_references = self.grows or self._own_draws or keep_utilities
        self._given = len(self.hypotheses)
        self._rows: dict[str, int] = {}  # of hypotheses by text, where draws are looked up among them
        if self._own_draws or settings.pool:
            self._rows = {text: row for row, text in enumerate(self.hypotheses)}
        self._logprobs: dict[str, list[float]] = {}  # of every copy of a pseudo-reference, in the order drawn
        self._scored: list[tuple[NDArray[np.int64], int, NDArray[np.floating]]] = []  # rows, first column, utilities
        self._left_out: list[tuple[int, int]] = []  # row, column

    @property
    def is_open(self) -> bool:
        """Line 4 of Algorithm 1: more than one hypothesis is left, and more pseudo-references are available. With a
        forecast, no race is over while a hypothesis waits for its first time step."""
        return self.needs_draws or self.has_pending

    @property
    def has_pending(self) -> bool:
        """Whether the forecast has admitted hypotheses that are not scored yet."""
        return self.failure is None and self.waiting is not None and bool(self.waiting.pending)

    @property
    def needs_draws(self) -> bool:
        """Whether more pseudo-references are available and change anything for those in the race."""
        if self.exhausted or self.failure is not None:
            return False
        if self.pool and (self._is_planned or not self.steps or self.tally.draws < min(FEWEST, self.used)):
            return True
        return len(self.tally) > (self.enough if self.steps else 1)

    @property
    def is_plain(self) -> bool:
        """Whether it draws from a list, without weights, and no later step needs the texts."""
        given = self.record.listed()
        listed = isinstance(given, list | tuple) and len(given) > 0 and self.record.logprobs is None
        return listed and not self._needs_references

    def finish(self, means: NDArray[np.float64], steps: Sequence[tuple[int, int, int, int]]) -> None:
        """Take the outcome of a race that was run as a whole."""
        self.means, self.steps, self.exhausted = means, [Step(*step) for step in steps], True

    def sentence(self) -> Sentence:
        """What a utility sees, and cannot change."""
        seen = _ReadOnly(self.hypotheses) if self.grows else tuple(self.hypotheses)
        return Sentence(self.record.id, self.record.source, seen)

    def planned(self, planner: SelfScheduled, most: int | None) -> int:
        """How many pseudo-references the planner wants next, so that there are at most `most`."""
        calls = sum(step.utility_calls for step in self.steps)
        state = RaceState(
            len(self.hypotheses), len(self.tally), self.tally.draws, calls, self.nbest, self.used, self.means
        )
        try:
            count = planner.draws(state)
        except UserError as error:
            raise self.record.error(error.message) from None
        return count if most is None else min(count, most - self.used)

    def turn(self, want: Want, draws: Draws) -> Turn:
        """One time step: append draws to R_t (line 7), and let hypotheses in."""
        alive, new = self.tally.alive, self._add(draws, want.count)
        admitted = self._admit(new) if self.grows and (draws.texts or not want.count) else NOBODY
        return Turn(self, want.sentence, alive, len(draws.texts), new, admitted)

    def _add(self, draws: Draws, wanted: int) -> list[str]:
        """Append draws; returns the strings that are new."""
        if draws.failure is not None:
            raise draws.failure
        taken = len(draws.texts) + draws.unusable
        self.used += taken
        self.exhausted = self.exhausted or taken < wanted
        try:
            new = self.tally.draw(draws.texts)
        except TypeError:
            raise self.record.error("pseudo_references: expected strings, got something else") from None
        if draws.texts and (draws.logprobs is None) != (not self._logprobs) and self.tally.draws > len(draws.texts):
            raise self.record.error("logprobs: come with some pseudo-references and not with others; give all or none")
        if draws.logprobs is not None:
            check_logprobs(draws.logprobs, self.record.where)
            for text, logprob in zip(draws.texts, draws.logprobs, strict=True):
                self._logprobs.setdefault(text, []).append(float(logprob))
        if not self.used:
            raise self.record.error("pseudo_references: empty; give at least one")
        if self._needs_references:
            self.references += new
        return new

    def _admit(self, new: Sequence[str]) -> NDArray[np.int64]:
        """The indices of new hypotheses: with `pool` new pseudo-references, with a forecast those it has admitted."""
        if self.waiting is not None:
            admitted, self.waiting.pending = self.waiting.pending, []
        elif self.pool:
            admitted = list(new)
        else:
            return NOBODY
        first = len(self.hypotheses)
        self.hypotheses += admitted
        self._rows.update(zip(admitted, range(first, len(self.hypotheses)), strict=True))
        return np.arange(first, len(self.hypotheses))

    def score(self, ask: Ask, table: NDArray[np.floating], name: str, *, entering: bool = False) -> None:
        """Append the utilities of an ask, or with `entering` those of admitted; refuse what was not asked for."""
        shape = (len(ask.hypotheses), len(ask.references))
        values = np.ascontiguousarray(table)
        if values.shape != shape:
            raise self.record.error(f"utility {name} returned shape {np.shape(table)}, expected {shape}")
        if values.dtype.char not in "fd":
            values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
        cell = self.tally.enter(values) if entering else self.tally.add(values)
        if cell is not None:
            value = np.asarray(table)[cell]
            hypothesis, reference = self.hypotheses[ask.hypotheses[cell[0]]], ask.references[cell[1]]
            raise self.record.error(
                f"utility {name} returned {value} for hypothesis {hypothesis[:60]!r} and "
                f"pseudo-reference {reference[:60]!r}; a utility must return finite numbers"
            )
        if self._keep_utilities:
            first = 0 if entering else len(self.references) - len(ask.references)
            self._scored.append((ask.hypotheses, first, values.copy()))

    def leave_out(self, new: Sequence[str]) -> None:
        """Pseudo-references drawn for the first time that are hypotheses: each is left out where it meets itself."""
        if not self._own_draws:
            return
        alive = {hypothesis: row for row, hypothesis in enumerate(self.tally.alive.tolist())}
        first = len(self.references) - len(new)
        for column, text in enumerate(new, first):
            hypothesis = self._rows.get(text, -1)
            if hypothesis in alive:
                self.tally.leave_out(alive[hypothesis], column)
                self._left_out.append((hypothesis, column))

    def weights(self) -> NDArray[np.float64] | None:
        """The share of each distinct pseudo-reference in the expectation, where the source gave log-probabilities."""
        if not self._logprobs:
            return None
        # Model-based: each distinct pseudo-reference counts once, by its probability (Jinnai et al., 2024).
        weights = relative_probabilities(self._logprobs.values())
        return np.asarray(weights / math.fsum(weights))  # the same in every order of the pseudo-references

    def standings(self, seed: int) -> Standings:
        """What a pruning function sees now."""
        counts, weights = self.tally.counts, self.weights()
        if weights is not None:
            counts = np.ones_like(counts)
        means = self.tally.expected_utilities(weights)
        alive = self.tally.alive
        return Standings(
            utilities=self.tally.utilities_under(weights),
            counts=counts,
            weights=counts / self.tally.draws if weights is None else weights,
            means=means,
            nbest=self.nbest,
            seed=key(seed, self.record.id, f"prune {len(self.steps)}"),
            run_seed=seed,
            equal_draws=weights is None,
            indexes=self._indexes_of(alive),
            texts=[self.hypotheses[row] for row in alive.tolist()],
            spread=self.tally.spread,
        )

    def forecast_view(self) -> View:
        """With a forecast, what hypotheses that wait outside see of the race."""
        assert self.waiting is not None
        return View(self.waiting, self.tally.alive, self.tally.expected_utilities(self.weights()))

    def keep(self, means: NDArray[np.float64], mask: NDArray[np.bool_]) -> None:
        """Drop the hypotheses that a pruning function does not keep."""
        self.tally.keep(mask.nonzero()[0])
        self.means = means[mask]

    def result(self, utility: Utility) -> Decoded | Exception:
        """Line 12: the best of the survivors under all pseudo-references so far; or why there is none."""
        if self.failure is not None:
            return self.failure
        if self.used and not self.tally.draws:
            return self.record.error(
                f"none of {counted(self.used, 'sample')} is usable (each was cut at max_tokens, empty, or without a "
                "match of the pattern); raise max_tokens or change the prompt"
            )
        alive, means = self.tally.alive.tolist(), self.means
        ranked = []
        for rank in self._ranking()[: self.nbest].tolist():
            row = alive[rank]
            mean = None if means is None else float(means[rank])
            ranked.append(Candidate(self.hypotheses[row], self._index_of(row), mean))
        best = ranked[0]
        return Decoded(
            id=self.record.id,
            text=best.text,
            index=best.index,
            utility=best.utility,
            utility_calls=sum(step.utility_calls for step in self.steps),
            pairs_scored=sum(step.pairs_scored for step in self.steps),
            pseudo_references=self.tally.draws,
            steps=tuple(self.steps),
            nbest=tuple(ranked),
            strings=self._strings() if self.steps else 0,
            utilities=self._utility_table(utility) if self._keep_utilities else None,
        )

    def _strings(self) -> int:
        """How many distinct strings the utility saw. The tally knows those that raced from the start, and draws."""
        if self.waiting is None:
            return self.tally.strings
        return self.tally.strings + len(set(self.hypotheses[self._given :]).difference(self.references))

    def _ranking(self) -> NDArray[np.int64]:
        """Indexes into those alive, best first. Equal ones are in the caller's order; drawn ones by their text, not in
        the order of the draws, which the seed decides."""
        alive, means = self.tally.alive, self.means
        if means is None:
            return np.arange(len(alive))
        if not self.grows:
            if self.nbest == 1:  # no need to sort
                return np.array([means.argmax()])
            return np.argsort(-means, kind="stable")
        texts = [self.hypotheses[row] for row in alive.tolist()]
        keys: Any = texts if self.waiting is None else [self._first_copies[text] for text in texts]
        order = np.array(sorted(range(len(texts)), key=keys.__getitem__), dtype=np.int64)
        return np.asarray(order[np.argsort(-means[order], kind="stable")])

    def _indexes_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same for many, -1 for None."""
        if self._given == len(self.record.hypotheses) == len(self.hypotheses):
            return rows.copy()
        found = map(self._index_of, rows.tolist())
        return np.array([-1 if index is None else index for index in found], dtype=np.int64)

    def _index_of(self, row: int) -> int | None:
        """The caller's index of the first copy of a distinct hypothesis; None for one that was only drawn."""
        if row < self._given == len(self.record.hypotheses):
            return row
        return self._first_copies.get(self.hypotheses[row])

    @cached_property
    def _first_copies(self) -> Mapping[str, int]:
        """The caller's index of the first copy of each text."""
        given = self.record.hypotheses
        return dict(zip(reversed(given), range(len(given) - 1, -1, -1), strict=True))

    def _utility_table(self, utility: Utility) -> UtilityTable:
        """What was scored."""
        kind = np.result_type(np.float32, *(values.dtype for _, _, values in self._scored))
        table = np.full((len(self.hypotheses), len(self.references)), np.nan, dtype=kind)
        for rows, first, values in self._scored:
            table[rows, first : first + values.shape[1]] = values
        return UtilityTable(
            id=self.record.id,
            utility=utility.name,
            schedule=tuple(utility.schedule),
            hypotheses=tuple(self.hypotheses),
            pseudo_references=tuple(self.references),
            utilities=table,
            counts=self.tally.counts,
            weights=self.weights(),
            left_out=np.array(self._left_out, dtype=np.int64).reshape(-1, 2),
        )


class Turn(NamedTuple):
    """One sentence in one time step: the hypotheses alive, what was drawn, and the hypotheses admitted."""

    sentence: SentenceRace
    place: int  # in the window
    alive: NDArray[np.int64]
    drawn: int
    new: list[str]  # draws that are new
    admitted: NDArray[np.int64]  # hypotheses that entered in this step

    def asks(self) -> list[Ask]:
        """Those alive against what is new, and admitted against all pseudo-references so far."""
        pairs = [(self.alive, self.new), (self.admitted, self.sentence.references)]
        asks = [Ask(self.place, rows, tuple(texts)) for rows, texts in pairs if len(rows) and texts]
        for ask in asks:
            ask.hypotheses.setflags(write=False)
        return asks

    def cost(self) -> Step:
        """What the step cost, for the answer."""
        tally, alive, admitted = self.sentence.tally, len(self.alive), len(self.admitted)
        calls = alive * self.drawn + admitted * tally.draws
        pairs = alive * len(self.new) + admitted * len(self.sentence.references)
        return Step(tally.draws, len(tally), calls, pairs)


class _ReadOnly(Sequence[str]):
    """A list that grows elsewhere."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._texts[index]
