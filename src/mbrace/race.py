"""Algorithm 1 of the paper, once, for a window of sentences in lockstep.

Standard MBR is this loop without pruning; experiments are this loop over stored utilities. Each time step draws new
pseudo-references for the sentences still open, asks the utility for all of them at once, and prunes each sentence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mbrace.cores import helper_threads
from mbrace.errors import UserError
from mbrace.fast_paths import plan_of, racing_of
from mbrace.forecast import Field, fields, look
from mbrace.prune import PruningFunction, SelfScheduled, Standings, WindowStandings, planner_of, window_pruning
from mbrace.records import Record
from mbrace.replayable import is_function
from mbrace.result import Decoded, Phases, Step
from mbrace.runner import NOBODY, Entry, Runner
from mbrace.sampler import Drawer, Draws, Listed, Sampler, Want, checked_draws
from mbrace.schedule import Schedule, is_all, largest, steps
from mbrace.selection import BEST, Selection, choose
from mbrace.utility import Ask, Scorer, Utility, parallel_of
from mbrace.wording import counted

Watch: TypeAlias = Callable[[Record, NDArray[np.int64], Standings, NDArray[np.bool_]], None]


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
    watch: Watch | None = None,
    phases: Phases | None = None,
    planner: SelfScheduled | None = None,
    keep_utilities: bool = False,
    selection: Selection = BEST,
) -> list[Decoded]:
    """Algorithm 1 for a window of records, in lockstep through the schedule, or as `planner` says: by default the
    pruning function, where it has a schedule of its own.

    `selection` says which of the survivors an n-best list holds.
    """
    phases = Phases() if phases is None else phases
    parallel = parallel_of(utility)
    # a utility that does not work on threads leaves the cores to those who choose
    threads = helper_threads() if parallel is None else parallel.workers
    runners = [  # lines 1 to 3: H_1, and an empty R_0, of every sentence
        Runner(
            record,
            field=field,
            nbest=nbest,
            entry=entry,
            keep_utilities=keep_utilities,
            selection=selection,
        )
        for record, field in zip(records, _fields(records, entry, nbest, threads, phases), strict=True)
    ]
    _check_sources(records, utility)
    window = [runner for runner in runners if runner.is_open]
    if window:
        drawer, scorer = _start(window, sampler, utility, phases)
        name = utility.name
        only_lists = isinstance(sampler, Listed) and watch is None and planner is None
        if not (only_lists and _race_lists(window, prune, schedule, utility, seed, drawer, scorer, phases)):
            for wants in _time_steps(window, prune, schedule, planner or planner_of(prune), utility):  # line 4
                turns = _draw(window, wants, drawer, phases)  # lines 5 to 8: R_t
                _score(turns, scorer, name, phases)  # the utilities of H_t against what is new in R_t
                _prune(turns, prune, seed, watch, threads, phases)  # line 9: H_t+1
        if selection.rule != "best":
            _select(window, selection, scorer, name, phases)
    return [runner.result(utility) for runner in runners]  # line 12


def _race_lists(
    window: Sequence[Runner],
    prune: PruningFunction | None,
    schedule: Schedule,
    utility: Utility,
    seed: int,
    drawer: Drawer,
    scorer: Scorer,
    phases: Phases,
) -> bool:
    """All steps in one call, where the utility can: the same loop in native code.

    False, and nothing has changed, if it cannot, or if a race needs more than a list.
    """
    racing = racing_of(scorer)
    if racing is None or is_all(schedule) or not all(runner.is_plain for runner in window):
        return False
    started, encoded = time.perf_counter(), scorer.encode_seconds
    sizes = list(steps(schedule, utility.schedule, growing=prune is not None))
    found = drawer.draw([Want(index, 0, sizes[-1]) for index in range(len(window))])
    lists = [draws.texts for draws in found]
    draws = {min(size, len(texts)) for texts in lists for size in sizes}
    plan = plan_of(prune, sizes, draws, window[0].nbest, 1, seed)
    if plan is None:
        return False
    drawn = time.perf_counter()
    races = racing.race_lists([runner.tally for runner in window], lists, plan)
    if races is None:
        return False
    for runner, means, own in zip(window, races.means, races.steps, strict=True):
        runner.finish(means, own)
    phases.draw += drawn - started
    phases.encode += scorer.encode_seconds - encoded
    phases.score += races.pair_seconds
    phases.prune += races.decision_seconds
    return True


class _Turn(NamedTuple):
    """One sentence in one time step: who was alive, what was drawn, and who was let in."""

    runner: Runner
    sentence: int  # index into the window
    alive: NDArray[np.int64]
    drawn: int
    new: list[str]  # draws that are new
    newcomers: NDArray[np.int64]  # hypotheses that were let in

    def asks(self) -> list[Ask]:
        """Those alive against what is new, and newcomers against all pseudo-references so far."""
        asks = []
        if self.new and len(self.alive):
            self.alive.setflags(write=False)
            asks.append(Ask(self.sentence, self.alive, tuple(self.new)))
        if self.newcomers is not NOBODY and len(self.newcomers):
            self.newcomers.setflags(write=False)
            asks.append(Ask(self.sentence, self.newcomers, tuple(self.runner.references)))
        return asks

    def cost(self) -> Step:
        """What the step cost, for the answer."""
        tally, draws, alive = self.runner.tally, self.runner.tally.draws, len(self.alive)
        calls, pairs = alive * self.drawn, alive * len(self.new)
        if self.newcomers is not NOBODY:
            calls += len(self.newcomers) * draws
            pairs += len(self.newcomers) * len(self.runner.references)
        return Step(draws, len(tally), calls, pairs)


def _fields(
    records: Sequence[Record],
    entry: Entry,
    nbest: int,
    threads: int,
    phases: Phases,
) -> list[Field]:
    """Who races for each sentence, and who waits outside at first."""
    racing = [record.hypotheses for record in records]
    for given in racing:
        len(given)  # hypotheses that are made when they are first looked at are made now
    began = time.perf_counter()
    found = fields(records, racing, entry.forecast, nbest, threads)
    if entry.forecast:
        phases.forecast += time.perf_counter() - began
    return found


def _check_sources(records: Sequence[Record], utility: Utility) -> None:
    if utility.needs_source:
        for record in records:
            if record.source is None:
                raise record.error(f"source: missing; utility {utility.name} scores with the source")


def _start(window: Sequence[Runner], sampler: Sampler, utility: Utility, phases: Phases) -> tuple[Drawer, Scorer]:
    started = time.perf_counter()
    drawer = sampler.start([runner.record for runner in window])
    ready = time.perf_counter()
    scorer = utility.start([runner.sentence() for runner in window])
    phases.draw += ready - started
    phases.encode += time.perf_counter() - ready
    return drawer, scorer


def _time_steps(
    window: Sequence[Runner],
    prune: PruningFunction | None,
    schedule: Schedule,
    planner: SelfScheduled | None,
    utility: Utility,
) -> Iterator[list[Want]]:
    """What the races still open draw in each time step: up to the next size of the schedule, or as many as the planner
    says, up to the schedule's last size in all."""
    if planner is not None:
        most = largest(schedule, utility.schedule)
        while wants := [
            Want(index, runner.used, count)
            for index, runner in enumerate(window)
            if runner.is_open and (count := runner.planned(planner, most)) > 0
        ]:
            yield wants
        return
    # A function cannot be asked for "all" at once.
    asked = schedule == "all" and any(is_function(runner.record.pseudo_references) for runner in window)
    for size in steps(schedule, utility.schedule, growing=prune is not None or asked):
        wants = []
        for index, runner in enumerate(window):
            draws = runner.used
            if runner.needs_draws:
                wants.append(Want(index, draws, size - draws))
            elif runner.is_called:
                wants.append(Want(index, draws, 0))
        if not wants:
            return
        yield wants
    while wants := [Want(index, runner.used, 0) for index, runner in enumerate(window) if runner.is_called]:
        yield wants  # the draws are over, and hypotheses are still to be let in


def _draw(window: Sequence[Runner], wants: Sequence[Want], drawer: Drawer, phases: Phases) -> list[_Turn]:
    """Lines 5 to 8: draw for all open races in one call, and add to R_t. A race that got nothing has no turn."""
    started = time.perf_counter()
    turns = []
    asked = [want for want in wants if want.count]
    found = iter(checked_draws(drawer.draw(asked), asked, [runner.record for runner in window]) if asked else ())
    for want in wants:
        runner = window[want.sentence]
        alive = runner.tally.alive
        draws = next(found) if want.count else Draws([])
        drawn, new = len(draws.texts), runner.add(draws, want.count)
        newcomers = runner.let_in(new) if runner.grows and (drawn or not want.count) else NOBODY
        if drawn or len(newcomers):
            turns.append(_Turn(runner, want.sentence, alive, drawn, new, newcomers))
    phases.draw += time.perf_counter() - started
    return turns


def _score(turns: Sequence[_Turn], scorer: Scorer, name: str, phases: Phases) -> None:
    """What every open sentence asks for, in one call."""
    asks = [(turn, ask) for turn in turns for ask in turn.asks()]
    if not asks:
        return
    started, encoded = time.perf_counter(), scorer.encode_seconds
    tables = scorer.score([ask for _, ask in asks])
    if len(tables) != len(asks):
        raise UserError(f"utility {name}: returned {counted(len(tables), 'table')} for {counted(len(asks), 'ask')}")
    for turn in turns:
        if not len(turn.alive):  # all are newcomers: their tables have the columns
            turn.runner.tally.add(np.empty((0, len(turn.new)), dtype=np.float32))
    for (turn, ask), table in zip(asks, tables, strict=True):
        turn.runner.score(ask, table, name, entering=ask.hypotheses is turn.newcomers)
    for turn in turns:
        if turn.runner.entry.exclude_self and turn.new:
            turn.runner.leave_out(turn.new)
    encoding = scorer.encode_seconds - encoded
    phases.encode += encoding
    phases.score += time.perf_counter() - started - encoding


def _prune(
    turns: Sequence[_Turn],
    prune: PruningFunction | None,
    seed: int,
    watch: Watch | None,
    threads: int,
    phases: Phases,
) -> None:
    """Line 9, who stays, and the expected utilities: of all sentences in one call where the pruning function can, else
    of one after another."""
    started = time.perf_counter()
    runners = [turn.runner for turn in turns]
    views = [runner.seen_from_outside(runner.outsiders) for runner in runners if runner.outsiders is not None]
    if views:
        look(views, runners[0].nbest, threads)
        looked = time.perf_counter()
        phases.forecast += looked - started
        started = looked
    whole = window_pruning(prune) if watch is None else None
    if whole is None:
        for runner in runners:
            _prune_one(runner, prune, seed, watch)
    elif runners:
        tallies, weights = [runner.tally for runner in runners], [runner.weights() for runner in runners]
        standings = WindowStandings(tallies, weights, runners[0].nbest, run_seed=seed, threads=threads)
        for runner, means in zip(runners, whole.decide_window(standings), strict=True):
            runner.means = means
    for turn in turns:
        turn.runner.steps.append(turn.cost())
    phases.prune += time.perf_counter() - started


def _prune_one(runner: Runner, prune: PruningFunction | None, seed: int, watch: Watch | None) -> None:
    """One sentence. The n best by expected utility stay whatever a pruning function says: an answer is never lost."""
    standings = runner.standings(seed)
    alive = len(standings.means)
    keep = np.ones(alive, dtype=np.bool_)
    if prune is not None and alive > standings.nbest:
        keep = np.array(prune(standings))
        if keep.shape != (alive,) or keep.dtype != np.bool_:
            raise runner.record.error(
                f"the pruning function returned {keep.dtype} of shape {keep.shape}, "
                f"expected True or False for each of {alive} hypotheses"
            )
        keep[standings.leaders()] = True
    keep.setflags(write=False)  # a watcher only looks
    if watch is not None:
        watch(runner.record, runner.tally.alive, standings, keep)
    runner.keep(standings, keep)


def _select(window: Sequence[Runner], selection: Selection, scorer: Scorer, name: str, phases: Phases) -> None:
    """Choose the n-best lists from what is left at the end of each race."""
    started, encoded = time.perf_counter(), scorer.encode_seconds
    finalists = [runner.end(sentence) for sentence, runner in enumerate(window)]
    scoring = choose(finalists, selection, window[0].nbest, scorer, name)
    encoding = scorer.encode_seconds - encoded
    phases.encode += encoding
    phases.score += scoring - encoding
    phases.prune += time.perf_counter() - started - scoring
