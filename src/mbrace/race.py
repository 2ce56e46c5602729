"""Algorithm 1 of the paper, once, for a window of sentences in lockstep.

Standard MBR is this loop without pruning; experiments are this loop over stored utilities. Each time step draws new
pseudo-references for the sentences still open, asks the utility for all of them at once, and prunes each sentence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Resamples, Tally
from mbrace.errors import ServiceError, UserError, counted
from mbrace.forecast import Outsiders, outsiders_of, update_forecasts
from mbrace.prune import (
    Confidence,
    PruningFunction,
    SelfScheduled,
    Standings,
    WindowStandings,
    planner_of,
    window_pruning,
)
from mbrace.records import Record
from mbrace.result import Decoded, Phases, Step
from mbrace.sampler import Drawer, Draws, Listed, Sampler, Want, checked_draws, is_all, is_function, largest, steps
from mbrace.sentence import NOBODY, SentenceRace
from mbrace.settings import Race
from mbrace.utility import Ask, Scorer, Utility, helper_threads, implements, parallel_of, short_name

Watch: TypeAlias = Callable[[Record, NDArray[np.int64], Standings, NDArray[np.bool_]], None]


def race(
    records: Sequence[Record],
    utility: Utility,
    settings: Race,
    *,
    sampler: Sampler,
    watch: Watch | None = None,
    phases: Phases | None = None,
    keep_utilities: bool = False,
) -> list[Decoded | Exception]:
    """Algorithm 1 for a window of records: of each its answer, or the error that it alone is to blame for."""
    phases, prune = Phases() if phases is None else phases, settings.pruning_function()
    planner, parallel = planner_of(prune), parallel_of(utility)
    # a single-threaded utility leaves the other cores to pruning and forecasts
    threads = helper_threads() if parallel is None else parallel.workers
    waiting = _outsiders(records, settings, threads, phases)
    sentences = [  # lines 1 to 3: H_1, and an empty R_0, of every sentence
        SentenceRace(record, settings, sizes, prune=prune, outsiders=outsiders, keep_utilities=keep_utilities)
        for record, sizes, outsiders in zip(records, _sizes(records, settings, utility, prune), waiting, strict=True)
    ]
    _check_sources(records, utility)
    window = [sentence for sentence in sentences if sentence.is_open]
    if window:
        drawer, scorer = _start(window, sampler, utility, phases)
        # The fast path: lines 4 to 9 as a whole in native code, where a utility can. Tests hold it equal to the loop.
        only_lists = isinstance(sampler, Listed) and watch is None and planner is None
        if not (only_lists and _race_lists(window, prune, settings, utility, drawer, scorer, phases)):
            for wants in _time_steps(window, planner, settings, utility):  # line 4
                turns = _draw(window, wants, drawer, phases)  # lines 5 to 8: R_t
                _score(turns, scorer, utility.name, phases)  # the utilities of H_t against what is new in R_t
                _prune(turns, prune, settings, watch, threads, phases)  # line 9: H_t+1
    return [sentence.result(utility) for sentence in sentences]  # line 12


class _Turn(NamedTuple):
    """One sentence in one time step: who was alive, what was drawn, and who was let in."""

    sentence: SentenceRace
    place: int  # in the window
    alive: NDArray[np.int64]
    drawn: int
    new: list[str]  # draws that are new
    newcomers: NDArray[np.int64]  # hypotheses that were let in

    def asks(self) -> list[Ask]:
        """Those alive against what is new, and newcomers against all pseudo-references so far."""
        asks = []
        if self.new and len(self.alive):
            self.alive.setflags(write=False)
            asks.append(Ask(self.place, self.alive, tuple(self.new)))
        if self.newcomers is not NOBODY and len(self.newcomers):
            self.newcomers.setflags(write=False)
            asks.append(Ask(self.place, self.newcomers, tuple(self.sentence.references)))
        return asks

    def cost(self) -> Step:
        """What the step cost, for the answer."""
        tally, draws, alive = self.sentence.tally, self.sentence.tally.draws, len(self.alive)
        calls, pairs = alive * self.drawn, alive * len(self.new)
        if self.newcomers is not NOBODY:
            calls += len(self.newcomers) * draws
            pairs += len(self.newcomers) * len(self.sentence.references)
        return Step(draws, len(tally), calls, pairs)


class _Isolated:
    """An error in this block costs this sentence its answer, and no other."""

    def __init__(self, sentence: SentenceRace) -> None:
        self._sentence = sentence

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, ServiceError):
            return False
        self._sentence.failure = error
        return True


def _outsiders(records: Sequence[Record], settings: Race, threads: int, phases: Phases) -> Sequence[Outsiders | None]:
    """Who waits outside at first, for each sentence."""
    if not settings.forecast:
        return [None] * len(records)
    began = time.perf_counter()
    found = outsiders_of(records, settings.forecast, settings.nbest, threads)
    phases.forecast += time.perf_counter() - began
    return found


def _sizes(
    records: Sequence[Record], settings: Race, utility: Utility, prune: PruningFunction | None
) -> list[Iterator[int]]:
    """The sample sizes of each sentence's time steps, whatever other sentences are in the window. A function cannot be
    asked for "all" at once."""
    grows = [
        prune is not None or (is_all(settings.schedule) and is_function(each.pseudo_references)) for each in records
    ]
    if is_all(settings.schedule):
        return [steps(settings.schedule, utility.schedule, growing=growing) for growing in grows]
    sizes = tuple(steps(settings.schedule, utility.schedule, growing=prune is not None))
    return [iter(sizes) for _ in records]


def _check_sources(records: Sequence[Record], utility: Utility) -> None:
    if utility.needs_source:
        for record in records:
            if record.source is None:
                raise record.error(f"source: missing; utility {short_name(utility)} scores with the source")


def _start(window: Sequence[SentenceRace], sampler: Sampler, utility: Utility, phases: Phases) -> tuple[Drawer, Scorer]:
    started = time.perf_counter()
    drawer = sampler.start([sentence.record for sentence in window])
    ready = time.perf_counter()
    scorer = utility.start([sentence.sentence() for sentence in window])
    phases.draw += ready - started
    phases.encode += time.perf_counter() - ready
    return drawer, scorer


def _time_steps(
    window: Sequence[SentenceRace], planner: SelfScheduled | None, settings: Race, utility: Utility
) -> Iterator[list[Want]]:
    """What the races still open draw in each time step: up to the next size of the schedule, or as many as the pruning
    function plans, up to the schedule's last size in all."""
    most = None if planner is None else largest(settings.schedule, utility.schedule)
    while True:
        wants = []
        for index, sentence in enumerate(window):
            if not sentence.is_open:
                continue
            draws = sentence.used
            size = next(sentence.sizes, draws)
            if planner is not None:
                with _Isolated(sentence):
                    size = draws + sentence.planned(planner, most)
            count = size - draws if sentence.needs_draws else 0
            if count > 0 or sentence.is_called:
                wants.append(Want(index, draws, count))
        if not wants:
            return
        yield wants


def _draw(window: Sequence[SentenceRace], wants: Sequence[Want], drawer: Drawer, phases: Phases) -> list[_Turn]:
    """Lines 5 to 8: draw for all open races in one call, and add to R_t. A race that got nothing has no turn."""
    started = time.perf_counter()
    turns = []
    asked = [want for want in wants if want.count]
    found = iter(checked_draws(drawer.draw(asked), asked, [each.record for each in window]) if asked else ())
    for want in wants:
        sentence = window[want.sentence]
        alive = sentence.tally.alive
        draws = next(found) if want.count else Draws([])
        with _Isolated(sentence):
            drawn, new = len(draws.texts), sentence.add(draws, want.count)
            newcomers = sentence.let_in(new) if sentence.grows and (drawn or not want.count) else NOBODY
            if drawn or len(newcomers):
                turns.append(_Turn(sentence, want.sentence, alive, drawn, new, newcomers))
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
            turn.sentence.tally.add(np.empty((0, len(turn.new)), dtype=np.float32))
    for (turn, ask), table in zip(asks, tables, strict=True):
        if turn.sentence.failure is None:
            with _Isolated(turn.sentence):
                turn.sentence.score(ask, table, name, entering=ask.hypotheses is turn.newcomers)
    for turn in turns:
        if turn.new and turn.sentence.failure is None:
            turn.sentence.leave_out(turn.new)
    encoding = scorer.encode_seconds - encoded
    phases.encode += encoding
    phases.score += time.perf_counter() - started - encoding


def _prune(
    turns: Sequence[_Turn],
    decide: PruningFunction | None,
    settings: Race,
    watch: Watch | None,
    threads: int,
    phases: Phases,
) -> None:
    """Line 9, who stays, and the expected utilities: of all sentences in one call where the pruning function can, else
    of one after another."""
    started = time.perf_counter()
    turns = [turn for turn in turns if turn.sentence.failure is None]
    sentences = [turn.sentence for turn in turns]
    views = [each.seen_from_outside(each.outsiders) for each in sentences if each.outsiders is not None]
    if views:
        update_forecasts(views, settings.nbest, threads)
        updated = time.perf_counter()
        phases.forecast += updated - started
        started = updated
    whole = window_pruning(decide) if watch is None else None
    if whole is None:
        for sentence in sentences:
            with _Isolated(sentence):
                _prune_one(sentence, decide, settings.seed, watch)
    elif sentences:
        tallies, weights = [each.tally for each in sentences], [each.weights() for each in sentences]
        standings = WindowStandings(tallies, weights, settings.nbest, run_seed=settings.seed, threads=threads)
        for sentence, means in zip(sentences, whole.decide_window(standings), strict=True):
            sentence.means = means
    for turn in turns:
        turn.sentence.steps.append(turn.cost())
    phases.prune += time.perf_counter() - started


def _prune_one(sentence: SentenceRace, decide: PruningFunction | None, seed: int, watch: Watch | None) -> None:
    """One sentence. The n best by expected utility stay whatever a pruning function says: an answer is never lost."""
    standings = sentence.standings(seed)
    alive = len(standings.means)
    keep = np.ones(alive, dtype=np.bool_)
    if decide is not None and alive > standings.nbest:
        keep = np.array(decide(standings))
        if keep.shape != (alive,) or keep.dtype != np.bool_:
            raise sentence.record.error(
                f"the pruning function returned {keep.dtype} of shape {keep.shape}, "
                f"expected True or False for each of {alive} hypotheses"
            )
        keep[standings.leaders()] = True
    keep.setflags(write=False)  # for watchers
    if watch is not None:
        watch(sentence.record, sentence.tally.alive, standings, keep)
    sentence.keep(standings.means, keep)


# The fast path


class RacePlan(NamedTuple):
    """How races over lists of pseudo-references go: `sizes` of the list step by step, and who is dropped at each."""

    sizes: Sequence[int]
    resamples: dict[int, Resamples]  # by the number of draws; none: nobody is dropped
    nbest: int
    enough: int  # a race is over when this few are left after a step
    max_losing_wins: int
    max_regret: float


class FinishedRaces(NamedTuple):
    """What races came to."""

    means: list[NDArray[np.float64]]  # of each race, expected utilities of those left
    steps: list[list[tuple[int, int, int, int]]]  # of each race: draws, survivors, calls, pairs
    pair_seconds: float
    decision_seconds: float


@runtime_checkable
class RacingScorer(Protocol):
    """A scorer that can run whole races over lists, without going back to the race after every step."""

    def race_lists(
        self, tallies: Sequence[Tally], drawn: Sequence[Sequence[str]], plan: RacePlan
    ) -> FinishedRaces | None:
        """The races of all sentences of the window; None, and nothing has changed, if it cannot run these."""
        ...


def _race_lists(
    window: Sequence[SentenceRace],
    prune: PruningFunction | None,
    settings: Race,
    utility: Utility,
    drawer: Drawer,
    scorer: Scorer,
    phases: Phases,
) -> bool:
    """All steps in one call. False, and nothing has changed, if the utility cannot do that, or a race needs more than a
    list, or other decisions than native ones."""
    if not implements(scorer, RacingScorer) or type(prune) not in (Confidence, type(None)):
        return False
    if is_all(settings.schedule) or not all(sentence.is_plain for sentence in window):
        return False
    started, encoded = time.perf_counter(), scorer.encode_seconds
    sizes = list(steps(settings.schedule, utility.schedule, growing=prune is not None))
    found = drawer.draw([Want(index, 0, sizes[-1]) for index in range(len(window))])
    lists = [draws.texts for draws in found]
    plan = RacePlan(sizes, {}, settings.nbest, window[0].enough, 0, 0.0)
    if isinstance(prune, Confidence):
        draws = {min(size, len(texts)) for texts in lists for size in sizes}
        resamples = {size: prune.resamples_of(size, settings.seed) for size in draws}
        plan = plan._replace(resamples=resamples, max_losing_wins=prune.max_losing_wins, max_regret=prune.regret)
    drawn = time.perf_counter()
    races = cast(RacingScorer, scorer).race_lists([sentence.tally for sentence in window], lists, plan)
    if races is None:
        return False
    for sentence, means, own in zip(window, races.means, races.steps, strict=True):
        sentence.finish(means, own)
    phases.draw += drawn - started
    phases.encode += scorer.encode_seconds - encoded
    phases.score += races.pair_seconds
    phases.prune += races.decision_seconds
    return True
