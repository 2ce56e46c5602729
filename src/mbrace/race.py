"""Algorithm 1 of the paper, once, for a window of sentences in lockstep.

Standard MBR is this loop without pruning; experiments are this loop over stored utilities. Each time step draws new
pseudo-references for the sentences still open, asks the utility for all of them at once, and prunes each sentence.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace._native import decide_window, expected_utilities
from mbrace.errors import UserError
from mbrace.prune import Confidence, PruningFunction, Standings
from mbrace.randomness import key
from mbrace.records import Record, check_logprobs
from mbrace.sampler import Draws, Sampler, Want
from mbrace.schedule import Schedule, steps
from mbrace.utility import Ask, Scorer, Sentence, Utility


@dataclass(frozen=True)
class Step:
    """One time step: pseudo-references drawn so far, survivors after pruning, and what the step cost."""

    pseudo_references: int
    survivors: int
    utility_calls: int
    pairs_scored: int


@dataclass(frozen=True)
class Candidate:
    """A hypothesis of an n-best list: its text, the caller's index of its first copy, its expected utility."""

    text: str
    index: int
    utility: float | None


@dataclass(frozen=True)
class Decoded:
    """The answer for one sentence.

    `utility` is the expected utility over the pseudo-references used, None if all hypotheses were equal and none was
    needed. `utility_calls` counts as the paper does (alive hypotheses x new pseudo-references, repeated ones included);
    `pairs_scored` counts what was computed after equal strings were merged.
    """

    id: str | int
    text: str
    index: int
    utility: float | None
    utility_calls: int
    pairs_scored: int
    pseudo_references: int
    steps: tuple[Step, ...]
    nbest: tuple[Candidate, ...]


@dataclass
class Phases:
    """Seconds spent drawing pseudo-references, encoding strings, scoring pairs, and pruning; of races side by side on
    several threads, each thread's share of the time that passed."""

    draw: float = 0.0
    encode: float = 0.0
    score: float = 0.0
    prune: float = 0.0

    def add(self, other: Phases, share: float) -> None:
        """Add a share of another's."""
        for phase in fields(self):
            setattr(self, phase.name, getattr(self, phase.name) + share * getattr(other, phase.name))


Watch: TypeAlias = Callable[[Record, NDArray[np.int64], Standings, NDArray[np.bool_]], None]


@dataclass
class _Runner:
    """One sentence of the window: H_t, R_t and the utilities known so far."""

    record: Record
    nbest: int
    hypotheses: list[str] = field(init=False)  # distinct, in the caller's order
    alive: NDArray[np.int64] = field(init=False)  # H_t, into `hypotheses`
    utilities: NDArray[np.float32] = field(init=False)  # (alive, distinct references)
    draws: Counter[str] = field(default_factory=Counter)  # R_t: a column of `utilities` for each distinct one
    counts: NDArray[np.int64] = field(init=False)  # of `draws`
    logprobs: list[float] | None = None
    drawn: int = 0
    exhausted: bool = False
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hypotheses = list(dict.fromkeys(self.record.hypotheses))
        if not self.hypotheses:
            raise UserError(f"{self.where}: hypotheses: empty; give at least one string")
        self.alive = np.arange(len(self.hypotheses))
        self.utilities = np.empty((len(self.hypotheses), 0), dtype=np.float32)

    @property
    def where(self) -> str:
        return self.record.where or f"record {self.record.id!r}"

    @property
    def open(self) -> bool:
        """Line 4 of Algorithm 1: more than one hypothesis is left, and more pseudo-references can be had."""
        return len(self.alive) > 1 and not self.exhausted

    def add(self, draws: Draws, wanted: int) -> list[str]:
        """Append draws to R_t (line 7) and return the strings that are new."""
        self.exhausted = len(draws.texts) < wanted
        known = len(self.draws)
        self.draws.update(draws.texts)
        self.counts = np.fromiter(self.draws.values(), dtype=np.int64, count=len(self.draws))
        new = list(itertools.islice(self.draws, known, None))
        self.drawn += len(draws.texts)
        if draws.logprobs is not None:
            check_logprobs(draws.logprobs, f"{self.where}: logprobs")
            first = dict(zip(reversed(draws.texts), reversed(draws.logprobs), strict=True))
            self.logprobs = (self.logprobs or []) + [float(first[text]) for text in new]
        if self.drawn == 0:
            raise UserError(f"{self.where}: pseudo_references: empty; give at least one")
        return new

    def weighed(self) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """How often each distinct pseudo-reference counts as drawn, and its share if that does not say it all."""
        if self.logprobs is None:
            return self.counts, None
        # Model-based: each distinct pseudo-reference counts once, by its probability (Jinnai et al., 2024).
        weights = np.exp(np.array(self.logprobs) - max(self.logprobs))
        return np.ones_like(self.counts), weights / weights.sum()

    def standings(self, seed: int) -> Standings:
        """What a pruning function sees now."""
        counts, weights = self.weighed()
        shares = counts / self.drawn if weights is None else weights
        means = expected_utilities(self.utilities, shares)
        own = key(seed, self.record.id, f"prune {len(self.steps)}")
        return Standings(self.utilities, counts, shares, means, self.nbest, own, seed, equal_draws=weights is None)

    def result(self, means: NDArray[np.float64] | None) -> Decoded:
        """Line 12: the best of the survivors under all pseudo-references so far."""
        order = range(len(self.alive)) if means is None else np.argsort(-means, kind="stable").tolist()
        given = self.record.hypotheses
        ranked = []
        for rank in list(order)[: self.nbest]:
            place = int(self.alive[rank])
            text = self.hypotheses[place]
            index = place if len(given) == len(self.hypotheses) else given.index(text)
            ranked.append(Candidate(text, index, None if means is None else float(means[rank])))
        best = ranked[0]
        return Decoded(
            id=self.record.id,
            text=best.text,
            index=best.index,
            utility=best.utility,
            utility_calls=sum(step.utility_calls for step in self.steps),
            pairs_scored=sum(step.pairs_scored for step in self.steps),
            pseudo_references=self.drawn,
            steps=tuple(self.steps),
            nbest=tuple(ranked),
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
    watch: Watch | None = None,
    phases: Phases | None = None,
) -> list[Decoded]:
    """Algorithm 1 for a window of records, in lockstep through the schedule."""
    phases = phases if phases is not None else Phases()
    runners = [_Runner(record, nbest) for record in records]
    if utility.needs_source:
        for runner in runners:
            if runner.record.source is None:
                raise UserError(f"{runner.where}: source: missing; utility {utility.name} scores with the source")
    means: list[NDArray[np.float64] | None] = [None] * len(runners)
    racing = [position for position, runner in enumerate(runners) if runner.open]
    if not racing:
        return [runner.result(None) for runner in runners]

    window = [runners[position] for position in racing]
    threads = int(getattr(utility, "workers", 1))
    started = time.perf_counter()
    drawer = sampler.start([runner.record for runner in window])
    phases.draw += time.perf_counter() - started
    started = time.perf_counter()
    scorer = utility.start([Sentence(r.record.id, r.record.source, r.hypotheses) for r in window])
    phases.encode += time.perf_counter() - started

    for size in steps(schedule, utility.schedule, pruning=prune is not None):
        open_now = [place for place, runner in enumerate(window) if runner.open]
        if not open_now:
            break
        started = time.perf_counter()
        wants = [Want(place, window[place].drawn, size - window[place].drawn) for place in open_now]
        news: dict[int, list[str]] = {}
        added: dict[int, int] = {}
        for want, draws in zip(wants, drawer.draw(wants), strict=True):
            news[want.sentence] = window[want.sentence].add(draws, want.count)
            added[want.sentence] = len(draws.texts)
        phases.draw += time.perf_counter() - started

        open_now = [place for place in open_now if added[place]]
        _score(window, scorer, {place: news[place] for place in open_now if news[place]}, utility.name, phases)

        started = time.perf_counter()
        for place, (mean, stay) in zip(
            open_now, _decide(prune, [window[place] for place in open_now], seed, watch, threads), strict=True
        ):
            runner = window[place]
            alive = len(runner.alive)
            means[racing[place]] = mean
            if len(stay) < alive:
                runner.alive = runner.alive[stay]
                runner.utilities = runner.utilities.take(stay, axis=0)
                means[racing[place]] = mean[stay]
            runner.steps.append(Step(runner.drawn, len(runner.alive), alive * added[place], alive * len(news[place])))
        phases.prune += time.perf_counter() - started
    return [runner.result(mean) for runner, mean in zip(runners, means, strict=True)]


def _score(
    window: Sequence[_Runner],
    scorer: Scorer,
    news: dict[int, list[str]],
    name: str,
    phases: Phases,
) -> None:
    """Utilities of the survivors against the new pseudo-references, all open sentences in one call."""
    if not news:
        return
    asks = [Ask(place, window[place].alive, texts) for place, texts in news.items()]
    started, encoded = time.perf_counter(), scorer.encode_seconds
    tables = scorer.score(asks)
    if len(tables) != len(asks):
        raise UserError(f"utility {name}: returned {len(tables)} tables for {len(asks)} sentences")
    for ask, table in zip(asks, tables, strict=True):
        runner = window[ask.sentence]
        _check(runner, ask, table, name)
        runner.utilities = np.concatenate([runner.utilities, table], axis=1, dtype=np.float32)
    encoding = scorer.encode_seconds - encoded
    phases.encode += encoding
    phases.score += time.perf_counter() - started - encoding


def _check(runner: _Runner, ask: Ask, table: NDArray[np.float32], name: str) -> None:
    shape = (len(ask.survivors), len(ask.references))
    if np.shape(table) != shape:
        raise UserError(f"{runner.where}: utility {name} returned shape {np.shape(table)}, expected {shape}")
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        hypothesis = runner.hypotheses[ask.survivors[row]]
        raise UserError(
            f"{runner.where}: utility {name} returned {table[row, column]} for hypothesis {hypothesis[:60]!r} and "
            f"pseudo-reference {ask.references[column][:60]!r}; a utility must return finite numbers"
        )


def _decide(
    prune: PruningFunction | None, runners: Sequence[_Runner], seed: int, watch: Watch | None, threads: int
) -> Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Expected utilities of each sentence's survivors, and the places of those that stay. Our own bootstrap, and
    standard MBR, decide all sentences in one native call, on the utility's threads."""
    if not runners:
        return []
    if watch is None and (prune is None or type(prune) is Confidence):
        counts, weights = zip(*(runner.weighed() for runner in runners), strict=True)
        draws = [
            len(own) if share is not None else r.drawn for r, own, share in zip(runners, counts, weights, strict=True)
        ]
        return decide_window(
            [None if prune is None else prune.resamples_of(size, seed) for size in draws],
            [runner.utilities for runner in runners],
            list(counts),
            list(weights),
            nbest=runners[0].nbest,
            enough=0 if prune is None else prune.enough,
            threads=threads,
        )
    found = []
    for runner in runners:
        standings = runner.standings(seed)
        keep = np.ones(len(standings.means), dtype=np.bool_)
        if prune is not None and len(keep) > standings.nbest:
            keep = _checked(np.array(prune(standings)), standings, runner)
        if watch is not None:
            watch(runner.record, runner.alive, standings, keep)
        found.append((standings.means, keep.nonzero()[0]))
    return found


def _checked(keep: NDArray[np.bool_], standings: Standings, runner: _Runner) -> NDArray[np.bool_]:
    """A pruning function's mask. The n best by expected utility stay whatever it says: an answer is never lost."""
    alive = len(standings.means)
    if keep.shape != (alive,) or keep.dtype != np.bool_:
        raise UserError(
            f"{runner.where}: the pruning function returned {keep.dtype} of shape {keep.shape}, "
            f"expected True or False for each of {alive} hypotheses"
        )
    keep[standings.leaders()] = True
    return keep
