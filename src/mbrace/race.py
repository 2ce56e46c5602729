"""Algorithm 1 of the paper, once, for a window of sentences in lockstep.

Standard MBR is this loop without pruning; experiments are this loop over stored utilities. Each time step draws new
pseudo-references for the sentences still open, asks the utility for all of them at once, and prunes each sentence.
What a race knows of one sentence is in sentence.py, Algorithm 2 in prune.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from mbrace._native import Resamples, decide_window
from mbrace.errors import ServiceError
from mbrace.forecast import Waiting, update_forecasts, waiting_of
from mbrace.prune import Confidence, PruningFunction, SelfScheduled, Standings, planner_of
from mbrace.records import Record
from mbrace.result import Decoded, Phases
from mbrace.sampler import Drawer, Draws, Listed, Sampler, Want, checked_draws, is_all, is_function, largest, steps
from mbrace.sentence import SentenceRace, Turn
from mbrace.settings import Race
from mbrace.utility import Scorer, Utility, check_source, helper_threads, parallel_of, score_asks

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
    """Algorithm 1 for a window of records: the answer to each, or the error that it alone caused."""
    phases, prune = Phases() if phases is None else phases, settings.pruning_function()
    planner, parallel = planner_of(prune), parallel_of(utility)
    # a single-threaded utility leaves the other cores to pruning and forecasts
    threads = helper_threads() if parallel is None else parallel.workers
    sentences = [  # lines 1 to 3: H_1, and an empty R_0, of every sentence
        SentenceRace(record, settings, prune, _sizes(record, settings, utility, prune), waiting, keep_utilities)
        for record, waiting in zip(records, _waiting(records, settings, threads, phases), strict=True)
    ]
    for record in records:
        check_source(record, utility)
    window = [sentence for sentence in sentences if sentence.is_open]
    if window:
        with phases.timed("draw"):
            drawer = sampler.start([sentence.record for sentence in window])
        with phases.timed("encode"):
            scorer = utility.start([sentence.sentence() for sentence in window])
        # The fast path: lines 4 to 9 as a whole in native code, where a utility can. Tests hold it equal to the loop.
        only_lists = isinstance(sampler, Listed) and watch is None
        if not (only_lists and _race_lists(window, prune, settings, utility, drawer, scorer, phases)):
            for wants in _time_steps(window, planner, settings, utility):  # line 4
                turns = _draw(window, wants, drawer, phases)  # lines 5 to 8: R_t
                _score(turns, scorer, utility.name, phases)  # the utilities of H_t against what is new in R_t
                _prune(turns, prune, settings, watch, threads, phases)  # line 9: H_t+1
    return [sentence.result(utility) for sentence in sentences]  # line 12


@contextmanager
def _isolated(sentence: SentenceRace) -> Iterator[None]:
    """An error in this block costs this sentence its answer, and no other."""
    try:
        yield
    except ServiceError:
        raise
    except Exception as error:
        sentence.failure = error


def _waiting(records: Sequence[Record], settings: Race, threads: int, phases: Phases) -> Sequence[Waiting | None]:
    """With a forecast, the hypotheses of each sentence that do not race from the start."""
    if not settings.forecast:
        return [None] * len(records)
    with phases.timed("forecast"):
        return waiting_of(records, settings.forecast, settings.nbest, threads)


def _sizes(record: Record, settings: Race, utility: Utility, prune: PruningFunction | None) -> Iterator[int]:
    """The sample sizes of a sentence's time steps, whatever other sentences are in the window. A function cannot be
    asked for "all" at once."""
    growing = prune is not None or (is_all(settings.schedule) and is_function(record.pseudo_references))
    return steps(settings.schedule, utility.schedule, growing=growing)


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
            size = next(sentence.sizes, sentence.used)
            if planner is not None:
                with _isolated(sentence):
                    size = sentence.used + sentence.planned(planner, most)
            count = size - sentence.used if sentence.needs_draws else 0
            if count > 0 or sentence.has_pending:
                wants.append(Want(index, sentence.used, count))
        if not wants:
            return
        yield wants


def _draw(window: Sequence[SentenceRace], wants: Sequence[Want], drawer: Drawer, phases: Phases) -> list[Turn]:
    """Lines 5 to 8: draw for all open races in one call, and add to R_t. A race that got nothing has no turn."""
    turns = []
    with phases.timed("draw"):
        asked = [want for want in wants if want.count]
        found = iter(checked_draws(drawer.draw(asked), asked, [each.record for each in window]) if asked else ())
        for want in wants:
            sentence, draws = window[want.sentence], next(found) if want.count else Draws([])
            with _isolated(sentence):
                turn = sentence.turn(want, draws)
                if turn.drawn or len(turn.admitted):
                    turns.append(turn)
    return turns


def _score(turns: Sequence[Turn], scorer: Scorer, name: str, phases: Phases) -> None:
    """Score what all open sentences ask for, in one call."""
    asks = [(turn, ask) for turn in turns for ask in turn.asks()]
    if not asks:
        return
    with phases.scoring(scorer):
        tables = score_asks(scorer, [ask for _, ask in asks], name)
        for turn in turns:
            if not len(turn.alive):  # all are admitted: their tables have the columns
                turn.sentence.tally.add(np.empty((0, len(turn.new)), dtype=np.float32))
        for (turn, ask), table in zip(asks, tables, strict=True):
            if turn.sentence.failure is None:
                with _isolated(turn.sentence):
                    turn.sentence.score(ask, table, name, entering=ask.hypotheses is turn.admitted)
        for turn in turns:
            if turn.new and turn.sentence.failure is None:
                turn.sentence.leave_out(turn.new)


def _prune(
    turns: Sequence[Turn],
    prune: PruningFunction | None,
    settings: Race,
    watch: Watch | None,
    threads: int,
    phases: Phases,
) -> None:
    """Line 9: decide which hypotheses stay."""
    turns = [turn for turn in turns if turn.sentence.failure is None]
    views = [turn.sentence.forecast_view() for turn in turns if turn.sentence.waiting is not None]
    if views:
        with phases.timed("forecast"):
            update_forecasts(views, settings.nbest, threads)
    with phases.timed("prune"):
        if watch is None and _is_native(prune):
            _prune_natively([turn.sentence for turn in turns], prune, settings, threads)
        else:
            for turn in turns:
                with _isolated(turn.sentence):
                    _prune_one(turn.sentence, prune, settings.seed, watch)
        for turn in turns:
            turn.sentence.steps.append(turn.cost())


def _prune_one(sentence: SentenceRace, prune: PruningFunction | None, seed: int, watch: Watch | None) -> None:
    """One sentence. The n best by expected utility stay whatever a pruning function says: an answer is never lost."""
    standings = sentence.standings(seed)
    alive = len(standings.means)
    keep = np.ones(alive, dtype=np.bool_)
    if prune is not None and alive > standings.nbest:
        keep = np.array(prune(standings))
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


# Fast paths: native code that decides for many sentences in one call, and that runs whole races


def _is_native(prune: PruningFunction | None) -> TypeGuard[Confidence | None]:
    """Whether native code has this pruning function. Tests hold its decisions equal to those of `Confidence`."""
    return prune is None or type(prune) is Confidence


def _limits(prune: Confidence | None, settings: Race) -> dict[str, Any]:
    """The numbers by which native code decides; without resamples, it drops nobody."""
    losing, regret = (0, 0.0) if prune is None else (prune.max_losing_wins, prune.regret)
    return {"nbest": settings.nbest, "max_losing_wins": losing, "max_regret": regret}


def _prune_natively(sentences: Sequence[SentenceRace], prune: Confidence | None, settings: Race, threads: int) -> None:
    """The same decisions as `_prune_one`, for all sentences in one call."""
    tallies, weights = [each.tally for each in sentences], [each.weights() for each in sentences]
    resamples: list[Resamples | None] = [None] * len(tallies)
    if prune is not None:
        sizes = [tally.draws if own is None else len(own) for tally, own in zip(tallies, weights, strict=True)]
        resamples = [prune.resamples(size, settings.seed) for size in sizes]
    means = decide_window(tallies, resamples, weights, threads=threads, **_limits(prune, settings))
    for sentence, own in zip(sentences, means, strict=True):
        sentence.means = own


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
    race_lists = getattr(scorer, "race_lists", None)  # as that of metrics/chrf.py
    if race_lists is None or not _is_native(prune):
        return False
    if is_all(settings.schedule) or not all(sentence.is_plain for sentence in window):
        return False
    with phases.timed("draw"):
        sizes = list(steps(settings.schedule, utility.schedule, growing=prune is not None))
        lists = [draws.texts for draws in drawer.draw([Want(index, 0, sizes[-1]) for index in range(len(window))])]
        drawn = {min(size, len(texts)) for texts in lists for size in sizes}
        resamples = {} if prune is None else {size: prune.resamples(size, settings.seed) for size in drawn}
    encoded, tallies = scorer.encode_seconds, [sentence.tally for sentence in window]
    options = {"sizes": sizes, "resamples": resamples, "enough": window[0].enough, **_limits(prune, settings)}
    races = race_lists(tallies, lists, **options)
    if races is None:
        return False
    means, own_steps, pair_seconds, decision_seconds = races
    for sentence, own, each in zip(window, means, own_steps, strict=True):
        sentence.finish(own, each)
    phases.encode += scorer.encode_seconds - encoded
    phases.score += pair_seconds
    phases.prune += decision_seconds
    return True
