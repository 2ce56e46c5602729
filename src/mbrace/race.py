"""Algorithm 1 of the paper, once, for a window of sentences in lockstep.

Standard MBR is this loop without pruning; experiments are this loop over stored utilities. Each time step draws new
pseudo-references for the sentences still open, asks the utility for all of them at once, and prunes each sentence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Tally, expected_utilities
from mbrace.errors import UserError
from mbrace.prune import (
    PruningFunction,
    RaceState,
    SelfScheduled,
    Standings,
    WindowStandings,
    planner_of,
    window_pruning,
)
from mbrace.randomness import key
from mbrace.records import Record, check_logprobs
from mbrace.sampler import Draws, Sampler, Want, checked_draws, is_function
from mbrace.schedule import Schedule, largest, steps
from mbrace.selection import Finalists, Selection, choose
from mbrace.utility import Ask, ParallelUtility, Scorer, Sentence, Utility
from mbrace.utility_table import UtilityTable
from mbrace.wording import counted


@dataclass(frozen=True)
class Step:
    """One time step: pseudo-references drawn so far, survivors after pruning, and what the step cost."""

    pseudo_references: int
    survivors: int
    utility_calls: int
    pairs_scored: int


@dataclass(frozen=True)
class Candidate:
    """A hypothesis of an n-best list: its text, the caller's index of its first copy (None if it was drawn and let into
    the race), its expected utility."""

    text: str
    index: int | None
    utility: float | None


@dataclass(frozen=True)
class Decoded:
    """The answer for one sentence.

    `index` is the caller's of the hypothesis, None if it was drawn and let into the race. `utility` is the expected
    utility over the pseudo-references used, None if only one hypothesis could win and none was needed. `utility_calls`
    counts as the paper does (hypotheses asked about x pseudo-references, repeated ones included), and the
    pairs of hypotheses that a diverse selection compared; `pairs_scored` counts what was computed after equal strings
    were merged, `strings` the distinct strings that were encoded for it.

    What chose the hypotheses that race is counted apart (None if it was not asked for): `quality_calls` the hypotheses
    whose quality was estimated without a reference, `coarse_calls` the calls of the coarse utility, counted as
    `utility_calls` is. `strings` and `pseudo_references` then are those of both races together.

    `utilities` is what the race scored (None unless that was asked for).
    """

    id: str | int
    text: str
    index: int | None
    utility: float | None
    utility_calls: int
    pairs_scored: int
    pseudo_references: int
    steps: tuple[Step, ...]
    nbest: tuple[Candidate, ...]
    strings: int = 0
    quality_calls: int | None = None
    coarse_calls: int | None = None
    utilities: UtilityTable | None = field(default=None, compare=False, repr=False)


@dataclass
class Phases:
    """Seconds spent drawing pseudo-references, encoding strings, scoring pairs, pruning, estimating quality, and on
    races of the coarse utility (without their draws); of races side by side on several threads, each thread's share of
    the time that passed."""

    draw: float = 0.0
    encode: float = 0.0
    score: float = 0.0
    prune: float = 0.0
    quality: float = 0.0
    coarse: float = 0.0

    def add(self, other: Phases, share: float) -> None:
        """Add a share of another's."""
        for phase in fields(self):
            setattr(self, phase.name, getattr(self, phase.name) + share * getattr(other, phase.name))


Watch: TypeAlias = Callable[[Record, NDArray[np.int64], Standings, NDArray[np.bool_]], None]


@dataclass(frozen=True)
class Entry:
    """Who may race besides the hypotheses of a record, and against what."""

    pool: bool = False  # pseudo-references enter the race as hypotheses when they are drawn
    exclude_self: bool = False  # a string that is both is not compared with its own draw
    start: int | None = None  # with `pool`: only so many hypotheses, the first, are there from the start; None: all


@dataclass
class _Runner:
    """One sentence of the window: H_t, R_t and the utilities known so far."""

    record: Record
    nbest: int
    entry: Entry
    starting: Sequence[int] | None = None  # the caller's indices of those that race; None: all
    for_survivors: bool = False  # the race is over when `nbest` are left, and not for one of them
    keep_utilities: bool = False
    selection: Selection = field(default_factory=Selection)
    tally: Tally = field(init=False)
    hypotheses: list[str] = field(init=False)  # distinct, in the caller's order; then those let in
    references: list[str] = field(default_factory=list)  # distinct, as drawn; where they are needed later
    means: NDArray[np.float64] | None = None  # expected utilities of those alive
    logprobs: list[float] | None = None  # of each distinct pseudo-reference; of copies that differ, the average
    exhausted: bool = False
    steps: list[Step] = field(default_factory=list)
    pruned_means: list[float] = field(default_factory=list)  # where a pruning function decides race by race
    finalists: Finalists | None = None  # at the end, where not simply the best are the answer

    def __post_init__(self) -> None:
        given = self.record.hypotheses if self.entry.start is None else self.record.hypotheses[: self.entry.start]
        self.tally = Tally(given if self.starting is None else [given[index] for index in self.starting])
        self.hypotheses = self.tally.hypotheses
        if not self.hypotheses and not self.entry.pool:
            raise self.record.error("hypotheses: empty; give at least one string")
        self._given = len(self.hypotheses)
        self._known: dict[str, int] = {}  # hypotheses by text, where draws are looked up among them
        if self.entry.pool or self.own_draws:
            self._known = {text: index for index, text in enumerate(self.hypotheses)}
        self._logprobs: dict[str, list[float]] = {}  # of every copy of a pseudo-reference, in the order of `new`
        self._scored: list[tuple[NDArray[np.int64], int, NDArray[np.floating]]] = []  # rows, first column, utilities
        self._left_out: list[tuple[int, int]] = []  # row, column

    @property
    def open(self) -> bool:
        """Line 4 of Algorithm 1: more than one hypothesis is left, and more pseudo-references can be had. Where those
        are let in, one hypothesis (or none) is not left but has not begun."""
        enough = self.nbest if self.for_survivors else 1
        return not self.exhausted and (len(self.tally) > enough or (self.entry.pool and not self.steps))

    @property
    def own_draws(self) -> bool:
        """Whether the hypotheses are draws themselves, to be left out of their own expected utility."""
        return self.entry.exclude_self and self.record.pseudo_references is None

    def sentence(self) -> Sentence:
        """What a utility sees, and cannot change."""
        seen = _ReadOnly(self.hypotheses) if self.entry.pool else tuple(self.hypotheses)
        return Sentence(self.record.id, self.record.source, seen)

    def planned(self, planner: SelfScheduled, most: int | None) -> int:
        """How many pseudo-references the planner wants next."""
        calls = sum(step.utility_calls for step in self.steps)
        state = RaceState(len(self.hypotheses), len(self.tally), self.tally.draws, calls, self.nbest)
        try:
            count = planner.draws(state)
        except UserError as error:
            raise self.record.error(str(error)) from None
        return count if most is None else min(count, most - state.draws)

    def add(self, draws: Draws, wanted: int) -> list[str]:
        """Append draws to R_t (line 7) and return the strings that are new."""
        self.exhausted = len(draws.texts) < wanted
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
            self.logprobs = [math.fsum(values) / len(values) for values in self._logprobs.values()]
        if self.tally.draws == 0:
            raise self.record.error("pseudo_references: empty; give at least one")
        if self.entry.pool or self.own_draws or self.keep_utilities or self.selection.rule != "best":
            self.references += new
        return new

    def let_in(self, new: Sequence[str]) -> NDArray[np.int64]:
        """New pseudo-references that were no hypotheses become some; their indexes."""
        if not self.entry.pool:
            return np.empty(0, dtype=np.int64)
        first = len(self.hypotheses)
        newcomers = [text for text in new if text not in self._known]
        self.hypotheses += newcomers
        self._known.update(zip(newcomers, range(first, len(self.hypotheses)), strict=True))
        return np.arange(first, len(self.hypotheses))

    def leave_out(self, new: Sequence[str]) -> None:
        """Pseudo-references drawn for the first time that are hypotheses: each is left out where it meets itself."""
        alive = {hypothesis: row for row, hypothesis in enumerate(self.tally.alive.tolist())}
        first = len(self.references) - len(new)
        for column, text in enumerate(new, first):
            hypothesis = self._known.get(text, -1)
            if hypothesis in alive and (self.own_draws or hypothesis >= self._given):
                self.tally.leave_out(alive[hypothesis], column)
                self._left_out.append((hypothesis, column))

    def weights(self) -> NDArray[np.float64] | None:
        """The share of each distinct pseudo-reference in the expectation, where the source gave log-probabilities."""
        if self.logprobs is None:
            return None
        # Model-based: each distinct pseudo-reference counts once, by its probability (Jinnai et al., 2024).
        weights = np.exp(np.array(self.logprobs) - max(self.logprobs))
        return np.asarray(weights / math.fsum(weights))  # the same in every order of the pseudo-references

    def standings(self, seed: int) -> Standings:
        """What a pruning function sees now."""
        utilities, counts, weights = self.tally.utilities, self.tally.counts, self.weights()
        if weights is not None:
            counts = np.ones_like(counts)
        means = expected_utilities(utilities, counts.astype(np.float64) if weights is None else weights)
        alive = self.tally.alive.tolist()
        indexes = [self.index_of(row) for row in alive]
        return Standings(
            utilities=utilities,
            counts=counts,
            weights=counts / self.tally.draws if weights is None else weights,
            means=means,
            nbest=self.nbest,
            seed=key(seed, self.record.id, f"prune {len(self.steps)}"),
            run_seed=seed,
            equal_draws=weights is None,
            indexes=np.array([-1 if index is None else index for index in indexes], dtype=np.int64),
            texts=[self.hypotheses[row] for row in alive],
            spread=_standard_deviation([*self.pruned_means, *means]),
        )

    def keep(self, standings: Standings, mask: NDArray[np.bool_]) -> None:
        """Drop those that a pruning function does not keep."""
        self.pruned_means += standings.means[~mask].tolist()
        self.tally.keep(mask.nonzero()[0])
        self.means = standings.means[mask]

    def index_of(self, row: int) -> int | None:
        """The caller's index of the first copy of a distinct hypothesis; None for one that was only drawn."""
        given = self.record.hypotheses
        if row < self._given == len(given):
            return row
        text = self.hypotheses[row]
        return given.index(text) if text in given else None

    def score(self, ask: Ask, table: NDArray[np.floating], name: str, *, entering: bool = False) -> None:
        """Append the utilities of an ask; refuse what was not asked for."""
        shape = (len(ask.hypotheses), len(ask.references))
        if np.shape(table) != shape:
            raise self.record.error(f"utility {name} returned shape {np.shape(table)}, expected {shape}")
        values = np.ascontiguousarray(table)
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
        cell = self.tally.enter(values) if entering else self.tally.add(values)
        if cell is not None:
            value = np.asarray(table)[cell]
            hypothesis, reference = self.hypotheses[ask.hypotheses[cell[0]]], ask.references[cell[1]]
            raise self.record.error(
                f"utility {name} returned {value} for hypothesis {hypothesis[:60]!r} and "
                f"pseudo-reference {reference[:60]!r}; a utility must return finite numbers"
            )
        if self.keep_utilities:
            first = 0 if entering else len(self.references) - len(ask.references)
            self._scored.append((ask.hypotheses, first, values.copy()))

    def utility_table(self, utility: Utility) -> UtilityTable:
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

    def end(self, sentence: int) -> Finalists:
        """Those that are left, to be chosen from; `sentence` is the index into the window."""
        assert self.means is not None  # the race was open
        weights, counts, alive = self.weights(), self.tally.counts, self.tally.alive
        self.finalists = Finalists(
            record=self.record,
            sentence=sentence,
            rows=alive,
            texts=[self.hypotheses[row] for row in alive.tolist()],
            means=self.means,
            utilities=self.tally.utilities,
            weights=counts / self.tally.draws if weights is None else weights,
            columns={text: column for column, text in enumerate(self.references)},
        )
        return self.finalists

    def result(self, utility: Utility) -> Decoded:
        """Line 12: the best of the survivors under all pseudo-references so far."""
        alive, means = self.tally.alive.tolist(), self.means
        order = range(len(alive)) if means is None else np.argsort(-means, kind="stable").tolist()
        compared = 0
        if self.finalists is not None:
            order, compared = self.finalists.chosen, self.finalists.calls
        ranked = []
        for rank in order if self.for_survivors else order[: self.nbest]:
            row = alive[rank]
            mean = None if means is None else float(means[rank])
            ranked.append(Candidate(self.hypotheses[row], self.index_of(row), mean))
        best = ranked[0]
        return Decoded(
            id=self.record.id,
            text=best.text,
            index=best.index,
            utility=best.utility,
            utility_calls=sum(step.utility_calls for step in self.steps) + compared,
            pairs_scored=sum(step.pairs_scored for step in self.steps) + compared,
            pseudo_references=self.tally.draws,
            steps=tuple(self.steps),
            nbest=tuple(ranked),
            strings=self.tally.strings if self.steps else 0,
            utilities=self.utility_table(utility) if self.keep_utilities else None,
        )


def race(
    records: Sequence[Record],
    utility: Utility,
    *,
    prune: PruningFunction | None,
    schedule: Schedule,
    sampler: Sampler,
    seed: int,
    nbest: int,
    entry: Entry = Entry(),  # noqa: B008  (frozen)
    starting: Sequence[Sequence[int] | None] | None = None,
    for_survivors: bool = False,
    watch: Watch | None = None,
    phases: Phases | None = None,
    planner: SelfScheduled | None = None,
    keep_utilities: bool = False,
    selection: Selection = Selection(),  # noqa: B008  (frozen)
) -> list[Decoded]:
    """Algorithm 1 for a window of records, in lockstep through the schedule, or as `planner` says: by default the
    pruning function, where it has a schedule of its own.

    `starting` has, for each record, the indices of the hypotheses that race (None: all). A race `for_survivors` is over
    as soon as `nbest` are left, and the n-best lists of its answers hold all survivors. `selection` says which of the
    survivors an n-best list holds.
    """
    phases = phases if phases is not None else Phases()
    starters = [None] * len(records) if starting is None else starting
    pairs = zip(records, starters, strict=True)
    how = for_survivors, keep_utilities, selection
    runners = [_Runner(record, nbest, entry, indices, *how) for record, indices in pairs]
    if utility.needs_source:
        for runner in runners:
            if runner.record.source is None:
                raise runner.record.error(f"source: missing; utility {utility.name} scores with the source")
    window = [runner for runner in runners if runner.open]
    if not window:
        return [runner.result(utility) for runner in runners]

    threads = utility.workers if isinstance(utility, ParallelUtility) else 1
    started = time.perf_counter()
    drawn_for = [runner.record for runner in window]
    drawer = sampler.start(drawn_for)
    phases.draw += time.perf_counter() - started
    started = time.perf_counter()
    scorer = utility.start([r.sentence() for r in window])
    phases.encode += time.perf_counter() - started

    planner = planner_of(prune) if planner is None else planner
    if planner is not None:
        time_steps = _planned_wants(window, planner, largest(schedule, utility.schedule))
    else:
        # A function cannot be asked for "all" at once.
        asked = schedule == "all" and any(is_function(runner.record.pseudo_references) for runner in window)
        time_steps = _scheduled_wants(window, steps(schedule, utility.schedule, growing=prune is not None or asked))
    for wants in time_steps:
        started = time.perf_counter()
        stepping: list[_Stepping] = []
        for want, draws in zip(wants, checked_draws(drawer.draw(wants), wants, drawn_for), strict=True):
            runner = window[want.sentence]
            before, alive = runner.tally.draws, runner.tally.alive
            new = runner.add(draws, want.count)
            if len(draws.texts):
                drawn = runner.tally.draws - before
                stepping.append(_Stepping(runner, want.sentence, alive, drawn, new, runner.let_in(new)))
        phases.draw += time.perf_counter() - started

        _score(stepping, scorer, utility.name, phases)

        started = time.perf_counter()
        _decide(prune, [step.runner for step in stepping], seed, watch, threads)
        for step in stepping:
            step.runner.steps.append(step.count())
        phases.prune += time.perf_counter() - started
    if selection.rule != "best":
        started, encoded = time.perf_counter(), scorer.encode_seconds
        finalists = [runner.end(sentence) for sentence, runner in enumerate(window)]
        scoring = choose(finalists, selection, nbest, scorer, utility.name)
        phases.encode += scorer.encode_seconds - encoded
        phases.score += scoring - (scorer.encode_seconds - encoded)
        phases.prune += time.perf_counter() - started - scoring
    return [runner.result(utility) for runner in runners]


def _scheduled_wants(window: Sequence[_Runner], sizes: Iterator[int]) -> Iterator[list[Want]]:
    """Of every time step, what the races still open draw: up to the next size."""
    for size in sizes:
        open_now = [(index, runner.tally.draws) for index, runner in enumerate(window) if runner.open]
        if not open_now:
            return
        yield [Want(index, drawn, size - drawn) for index, drawn in open_now]


def _planned_wants(window: Sequence[_Runner], planner: SelfScheduled, most: int | None) -> Iterator[list[Want]]:
    """Of every time step, what the races still open draw: each as many as the planner says, up to `most` in all."""
    while True:
        wants = []
        for index, runner in enumerate(window):
            count = runner.planned(planner, most) if runner.open else 0
            if count > 0:
                wants.append(Want(index, runner.tally.draws, count))
        if not wants:
            return
        yield wants


@dataclass(frozen=True)
class _Stepping:
    """One sentence in one time step: who was alive, what was drawn, and who was let in."""

    runner: _Runner
    sentence: int  # index into the window
    alive: NDArray[np.int64]
    drawn: int
    new: list[str]  # draws that are new
    newcomers: NDArray[np.int64]

    def asks(self) -> list[Ask]:
        """Those alive against what is new, and newcomers against all so far."""
        asks = [Ask(self.sentence, self.alive, tuple(self.new))] if len(self.alive) and self.new else []
        return asks + (
            [Ask(self.sentence, self.newcomers, tuple(self.runner.references))] if len(self.newcomers) else []
        )

    def count(self) -> Step:
        """What the step cost."""
        tally, alive, newcomers = self.runner.tally, len(self.alive), len(self.newcomers)
        calls = alive * self.drawn + newcomers * tally.draws
        pairs = alive * len(self.new) + newcomers * len(self.runner.references)
        return Step(tally.draws, len(tally), calls, pairs)


def _score(stepping: Sequence[_Stepping], scorer: Scorer, name: str, phases: Phases) -> None:
    """What every open sentence asks for, in one call."""
    asks = [(step, ask) for step in stepping for ask in step.asks()]
    if not asks:
        return
    started, encoded = time.perf_counter(), scorer.encode_seconds
    tables = scorer.score([ask for _, ask in asks])
    if len(tables) != len(asks):
        raise UserError(f"utility {name}: returned {counted(len(tables), 'table')} for {counted(len(asks), 'ask')}")
    for step in stepping:
        if not len(step.alive):  # all are newcomers: their tables have the columns
            step.runner.tally.add(np.empty((0, len(step.new)), dtype=np.float32))
    for (step, ask), table in zip(asks, tables, strict=True):
        step.runner.score(ask, table, name, entering=ask.hypotheses is step.newcomers)
    for step in stepping:
        if step.runner.entry.exclude_self and step.new:
            step.runner.leave_out(step.new)
    encoding = scorer.encode_seconds - encoded
    phases.encode += encoding
    phases.score += time.perf_counter() - started - encoding


def _decide(
    prune: PruningFunction | None, runners: Sequence[_Runner], seed: int, watch: Watch | None, threads: int
) -> None:
    """Who stays, and expected utilities: of all sentences in one call where the pruning function can, else of one
    after another."""
    whole = window_pruning(prune) if watch is None else None
    if whole is not None:
        if runners:
            tallies, weights = [runner.tally for runner in runners], [runner.weights() for runner in runners]
            window = WindowStandings(tallies, weights, runners[0].nbest, run_seed=seed, threads=threads)
            for runner, means in zip(runners, whole.decide_window(window), strict=True):
                runner.means = means
        return
    for runner in runners:
        standings = runner.standings(seed)
        keep = np.ones(len(standings.means), dtype=np.bool_)
        if prune is not None and len(keep) > standings.nbest:
            keep = _checked(np.array(prune(standings)), standings, runner)
        keep.setflags(write=False)  # a watcher only looks
        if watch is not None:
            watch(runner.record, runner.tally.alive, standings, keep)
        runner.keep(standings, keep)


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


def _standard_deviation(means: Sequence[float]) -> float:
    """Of numbers of any size: their squares may be too large for a double."""
    exponent = int(np.frexp(np.max(np.abs(means)))[1])
    return float(np.ldexp(np.std(np.ldexp(means, -exponent)), exponent))


def _checked(keep: NDArray[np.bool_], standings: Standings, runner: _Runner) -> NDArray[np.bool_]:
    """A pruning function's mask. The n best by expected utility stay whatever it says: an answer is never lost."""
    alive = len(standings.means)
    if keep.shape != (alive,) or keep.dtype != np.bool_:
        raise runner.record.error(
            f"the pruning function returned {keep.dtype} of shape {keep.shape}, "
            f"expected True or False for each of {alive} hypotheses"
        )
    keep[standings.leaders()] = True
    return keep
