"""The public calls: one sentence, or a corpus that streams through in windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from mbrace.errors import LARGEST, Parameter, UserError, check_whole, warn
from mbrace.forecast import check_forecast
from mbrace.method_names import Method, method_of
from mbrace.metrics.chrf import ChrF
from mbrace.pairwise import PairFunction, as_utility
from mbrace.prune import Confidence, PruningFunction, planner_of, window_pruning
from mbrace.race import Watch, race
from mbrace.records import PseudoReferences, Record, check_record
from mbrace.result import Decoded, Phases
from mbrace.runner import Entry
from mbrace.sampler import Listed, Sampler, check_cover
from mbrace.schedule import Schedule, check, is_all
from mbrace.selection import selection_of
from mbrace.utility import ParallelUtility, Utility, parallel_of
from mbrace.windows import CallerCalls, OnError, Run, stream

if TYPE_CHECKING:
    from mbrace.preparation import Preparation


def decode(
    hypotheses: Sequence[str],
    pseudo_references: PseudoReferences | None = None,
    *,
    utility: Utility | PairFunction | str | None = None,
    prune: PruningFunction | None = Confidence(),  # noqa: B008  (frozen)
    schedule: Schedule = None,
    seed: int = 0,
    nbest: int = 1,
    select: str = "best",
    diversity: float | None = None,
    source: str | None = None,
    id: str | int = 0,
    logprobs: Sequence[float] | None = None,
    shuffle: bool = True,
    cover: bool = False,
    pool: bool = False,
    exclude_self: bool = False,
    forecast: float = 0.0,
    method: Method | str | None = None,
    keep_utilities: bool = False,
) -> Decoded:
    """The hypothesis with the highest expected utility over the pseudo-references, found by a race.

    One list is enough: `decode(samples)` uses each string both as hypothesis and as pseudo-reference. With `pool`, one
    list is drawn while the race is open: there are no hypotheses, and each pseudo-reference becomes one when it is
    drawn. A string's comparison with itself counts, as in other tools; with `exclude_self`, a string is not compared
    with the draw that is the string itself.

    With `forecast`, a race begins with a few hypotheses, and another one enters only when its expected improvement on
    the leader, forecast from hypotheses in the race that share n-grams with it, is more than this fraction of the
    spread between hypotheses (0.0005 is a good choice; with 0, all race from the start). The others need not be
    encoded. Use it where strings are expensive, as with a neural utility, and not with chrF++, whose pairs cost less
    than the forecast.

    `utility` is chrF++ by default, a name as on the command line ("comet", "chrf++:0.5+bleu:0.5", "module:function"),
    an object such as `mbrace.Comet(model)`, or any `function(hypothesis, reference) -> float`. `prune=None` is standard
    MBR.
    `schedule` is a list of growing sample sizes, None for the utility's own (16 ... 256 for chrF++), or "all" to use
    every pseudo-reference given. A list of pseudo-references is shuffled first (by `seed` and `id`), since a prefix of
    an ordered list is not a random sample. An iterator, or a function that is asked for n more, is not shuffled, and is
    asked only while the race is open. With `cover`, a list is instead put into an order in which the first few have the
    n-grams of all: 16 then do the work of 32 to 64, so that races end sooner (docs/choosing.md). `logprobs` of the
    pseudo-references ask for model-based weights (Jinnai et al., 2024); if copies of a pseudo-reference have different
    ones, their average counts.

    `method` is another published way to score fewer pairs, by name ("aggregate", "centroid", "low-rank") or as an
    object such as `mbrace.LowRank(fraction=0.1)`; see docs/methods.md. None is the race.

    An n-best list holds the best. With `prune=None`, so that all have full scores, `select="diverse"` weighs expected
    utility against similarity to those chosen before, measured by the utility itself (`diversity`, 0.5 by default, is
    the weight of the similarity). See `mbrace.selection`. With `keep_utilities`, the answer has the table of what was
    scored.
    """
    record = Record(hypotheses, pseudo_references, id=id, source=source, logprobs=logprobs)
    races = _Races(
        utility=utility,
        prune=prune,
        schedule=schedule,
        seed=seed,
        nbest=nbest,
        select=select,
        diversity=diversity,
        shuffle=shuffle,
        cover=cover,
        entry=Entry(pool, exclude_self, forecast),
        method=method,
        keep_utilities=keep_utilities,
    )
    races.check(record)
    return races.run([record])[0]


def decode_corpus(
    records: Iterable[Record],
    *,
    utility: Utility | PairFunction | str | None = None,
    prune: PruningFunction | None = Confidence(),  # noqa: B008  (frozen)
    schedule: Schedule = None,
    seed: int = 0,
    nbest: int = 1,
    select: str = "best",
    diversity: float | None = None,
    window: int = 64,
    sampler: Sampler | None = None,
    shuffle: bool = True,
    cover: bool = False,
    pool: bool = False,
    exclude_self: bool = False,
    forecast: float = 0.0,
    method: Method | str | None = None,
    keep_utilities: bool = False,
    watch: Watch | None = None,
    phases: Phases | None = None,
    on_error: OnError | None = None,
) -> Iterator[Decoded]:
    """Decode records as they come, `window` of them racing at a time, answers in order; options as for `decode`.

    The window changes speed and memory, never an answer. A `sampler` draws for records without pseudo-references of
    their own. `watch` is called with every pruning decision. A record that fails stops the run after the answers to the
    records before it; with `on_error`, it is passed to that function instead and left out.
    """
    check_whole("window", window, least=1, most=LARGEST)
    races = _Races(
        utility=utility,
        prune=prune,
        schedule=schedule,
        seed=seed,
        nbest=nbest,
        select=select,
        diversity=diversity,
        sampler=sampler,
        shuffle=shuffle,
        cover=cover,
        entry=Entry(pool, exclude_self, forecast),
        method=method,
        keep_utilities=keep_utilities,
        watch=watch,
        phases=phases,
    )
    return races.stream(records, window, on_error)


class _Races:
    """Runs races with these options, and refuses options that cannot be combined."""

    def __init__(
        self,
        *,
        utility: Utility | PairFunction | str | None,
        prune: PruningFunction | None,
        schedule: Schedule,
        seed: int,
        nbest: int,
        select: str,
        diversity: float | None,
        sampler: Sampler | None = None,
        shuffle: bool,
        cover: bool,
        entry: Entry,
        method: Method | str | None,
        keep_utilities: bool,
        watch: Watch | None = None,
        phases: Phases | None = None,
    ) -> None:
        check_whole("nbest", nbest, least=1, most=LARGEST)
        check_whole("seed", seed)
        _check_objects(prune, sampler)
        self._utility = _utility(utility)
        if schedule is not None and not is_all(schedule):
            schedule = check(schedule)
        if schedule == "all" and sampler is not None:
            raise UserError('schedule "all": a live source has no last pseudo-reference; give the sizes')
        if cover and (sampler is not None or not shuffle):
            other = "shuffle=False" if sampler is None else "a sampler, whose draws have an order of their own"
            raise UserError(f"cover: only valid without {other}")
        self._before: Preparation | None = None
        way = method_of(method)
        if way is not None:
            from mbrace.preparation import Preparation  # imported only if needed: a plain race starts sooner

            self._before = Preparation(
                self._utility,
                way,
                prune=prune,
                schedule=schedule,
                seed=seed,
                nbest=nbest,
                entry=entry,
                select=select,
                keep_utilities=keep_utilities,
            )
            prune = self._before.prune
        check_forecast(entry.forecast, prune=prune, pool=entry.pool, exclude_self=entry.exclude_self, method=way)
        planner = planner_of(prune)
        if planner is not None and entry.pool:
            raise UserError(
                f"prune {prune!r}: only valid without pool, which lets in hypotheses that its schedule omits"
            )
        self._pool, self._live, self._watched = entry.pool, sampler is not None, watch is not None
        self._longest = self._utility.schedule[-1] if schedule is None else None
        self._prune, self._cover, self._phases = prune, cover, phases
        self._options: dict[str, Any] = {
            "schedule": schedule,
            "sampler": Listed(seed=seed, shuffle=shuffle, cover=cover) if sampler is None else sampler,
            "seed": seed,
            "nbest": nbest,
            "entry": entry,
            "watch": watch,
            "planner": planner,
            "keep_utilities": keep_utilities,
            "selection": selection_of(select, diversity, nbest=nbest, prune=prune),
        }

    def check(self, record: Record) -> None:
        """Refuse a record that cannot be raced."""
        check_record(record, pool=self._pool, live=self._live)
        given, longest = record.listed(live=self._live), self._longest
        if longest is not None and isinstance(given, Sequence) and len(given) > longest:
            warn(
                f"the default schedule ends at {longest} pseudo-references, and there are records with more; "
                f"{Parameter('schedule', 'all')} uses them all"
            )
        if self._cover:
            check_cover(record)
        if self._before is not None:
            self._before.check(record)

    def run(self, group: Sequence[Record]) -> list[Decoded]:
        """The answers to a group of records."""
        return self._race(group, self._utility, self._prune, self._phases)

    def stream(self, records: Iterable[Record], window: int, on_error: OnError | None) -> Iterator[Decoded]:
        """The answers to records as they come."""
        parallel, single, calls = parallel_of(self._utility), None, None
        # A live source works on the whole window at once; otherwise a utility may be faster on a few sentences.
        if parallel is not None and parallel.workers > 1 and not (self._live or self._watched):
            calls = CallerCalls()
            single = self._single_threaded(parallel, calls)
        return stream(
            records,
            self.run,
            window=window,
            group_size=window if self._live or parallel is None else min(window, parallel.group_size),
            run_single_threaded=single,
            threads=1 if parallel is None else parallel.workers,
            calls=calls,
            check=self.check,
            on_error=on_error,
        )

    def _single_threaded(self, parallel: ParallelUtility, calls: CallerCalls) -> Run:
        """`run` with the utility on one thread, for calls from several threads at once; their phases are added up."""
        utility, share, adding = parallel.single_threaded(), 1 / parallel.workers, Lock()
        prune = self._prune
        if prune is not None and window_pruning(prune) is None:
            prune = calls.wrap(prune)

        def run_single_threaded(group: Sequence[Record]) -> list[Decoded]:
            own = Phases()
            answers = self._race(group, utility, prune, own)
            if self._phases is not None:
                with adding:
                    self._phases.add(own, share=share)
            return answers

        return run_single_threaded

    def _race(
        self, group: Sequence[Record], utility: Utility, prune: PruningFunction | None, phases: Phases | None
    ) -> list[Decoded]:
        run_races = race if self._before is None else self._before.race
        return run_races(group, utility, prune=prune, phases=phases, **self._options)


def _utility(given: Utility | PairFunction | str | None) -> Utility:
    if isinstance(given, str):
        from mbrace.utilities.named import make_utility  # imported only if needed: a plain race starts sooner

        return make_utility(given)
    return as_utility(ChrF() if given is None else given)


def _check_objects(prune: object, sampler: object) -> None:
    if prune is not None and not callable(prune):
        raise UserError(f"prune {prune!r}: give a pruning function such as mbrace.Confidence(), or None")
    if sampler is not None and not hasattr(sampler, "start"):
        raise UserError(f"sampler {sampler!r}: give an object with `start`, such as model.sampler()")
