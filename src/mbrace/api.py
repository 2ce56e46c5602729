"""`decode` and `decode_corpus`: strings in, one `Decoded` out; `rerank` and `rerank_corpus`: by estimated quality."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import LARGEST, Parameter, SettingError, UserError, check_whole, warn
from mbrace.methods import StandardMBR, check_saving
from mbrace.metrics.chrf import ChrF
from mbrace.prune import Bottom, Confidence, Halving
from mbrace.race import Watch
from mbrace.race import race as run_race
from mbrace.records import PseudoReferences, Record, check_record, checked_records
from mbrace.result import Candidate, Decoded, Phases
from mbrace.sampler import Listed, Sampler, check_cover, is_all
from mbrace.setting_fields import settings_from
from mbrace.settings import Race, RaceOptions
from mbrace.utility import (
    PairFunction,
    ParallelUtility,
    QualityUtility,
    Utility,
    as_utility,
    parallel_of,
    quality_of,
)
from mbrace.windows import OnError, Run, stream

if TYPE_CHECKING:
    from typing_extensions import Unpack


def decode(
    hypotheses: Sequence[str],
    pseudo_references: PseudoReferences | None = None,
    *,
    utility: Utility | PairFunction | str | None = None,
    source: str | None = None,
    id: str | int = 0,
    logprobs: Sequence[float] | None = None,
    keep_utilities: bool = False,
    race: Race | None = None,
    **settings: Unpack[RaceOptions],
) -> Decoded:
    """The hypothesis with the highest expected utility over the pseudo-references, found by a race.

    One list is enough: `decode(samples)` uses each string both as hypothesis and as pseudo-reference. `utility` is
    chrF++ by default, a name as on the command line ("comet", "chrf++:0.5+bleu:0.5", "module:function"), an object such
    as `mbrace.Comet(model)`, or any `function(hypothesis, reference) -> float`. How they race is said by the fields of
    `Race` as keywords (docs/options.md lists them), such as `alpha=0.9, nbest=4`, or by `race`; `prune=None` is
    standard MBR.

    A list of pseudo-references is shuffled first (by `seed` and `id`), since a prefix of an ordered list is not a
    random sample. An iterator, or a function that is asked for n more, is not shuffled, and is asked only while the
    race is open. `logprobs` of the pseudo-references ask for model-based weights (Jinnai et al., 2024); if copies of
    one have different ones, their average counts. A string's comparison with itself counts, as in other tools, unless
    `exclude_self` leaves it out where hypotheses are draws themselves. With `keep_utilities`, the answer has the table
    of what was scored.
    """
    record = Record(hypotheses, pseudo_references, id=id, source=source, logprobs=logprobs)
    races = _Races(utility, settings_from(Race, race, settings, decode), keep_utilities=keep_utilities)
    races.check(record)
    (answer,) = races.run([record])
    if isinstance(answer, Exception):
        raise answer
    return answer


def decode_corpus(
    records: Iterable[Record | list[str]],
    *,
    utility: Utility | PairFunction | str | None = None,
    sampler: Sampler | None = None,
    keep_utilities: bool = False,
    watch: Watch | None = None,
    phases: Phases | None = None,
    on_error: OnError | None = None,
    race: Race | None = None,
    **settings: Unpack[RaceOptions],
) -> Iterator[Decoded]:
    """Decode records as they come, `window` of them racing at a time, answers in order; settings as for `decode`.

    A list of strings is a record as well: its strings are hypotheses and pseudo-references, its id is its position.
    The window changes speed and memory, never an answer. A `sampler` draws for records without pseudo-references of
    their own. `watch` is called with every pruning decision. A record that fails stops the run after the answers to the
    records before it; with `on_error`, it is passed to that function instead and left out.
    """
    chosen = settings_from(Race, race, settings, decode_corpus)
    races = _Races(utility, chosen, sampler, keep_utilities=keep_utilities, watch=watch, phases=phases)
    return races.stream(checked_records(records), chosen.window, on_error)


GROUP = 8  # sentences that race at a time with a string metric: what is kept of them fits the processor's caches


class _Races:
    """Runs races with these settings, and refuses what cannot be combined with them."""

    def __init__(
        self,
        utility: Utility | PairFunction | str | None,
        settings: Race,
        sampler: Sampler | None = None,
        *,
        keep_utilities: bool,
        watch: Watch | None = None,
        phases: Phases | None = None,
    ) -> None:
        self._utility = utility_of(utility)
        self._settings, self._prune, self._method = settings, settings.pruning_function(), settings.made_method()
        if sampler is not None:
            _check_live(settings, sampler)
        if self._method is not None:
            self._method.check(self._utility)
            if keep_utilities:
                check_saving(self._method, parameter="keep_utilities")
        self._live, self._watch, self._phases = sampler is not None, watch, phases
        listed = Listed(seed=settings.seed, shuffle=settings.shuffle, cover=settings.cover)
        self._sampler, self._keep_utilities = sampler or listed, keep_utilities
        self._longest = self._utility.schedule[-1] if settings.schedule is None else None

    def check(self, record: Record) -> None:
        """Refuse a record that cannot be raced."""
        check_record(record, pool=self._settings.pool, live=self._live)
        given, longest = record.listed(live=self._live), self._longest
        if longest is not None and isinstance(given, Sequence) and len(given) > longest:
            warn(
                f"the default schedule ends at {longest} pseudo-references, and there are records with more; "
                f"{Parameter('schedule', 'all')} uses them all"
            )
        if self._settings.cover:
            check_cover(record)

    def run(self, group: Sequence[Record]) -> list[Decoded | Exception]:
        """The answer to each record of a group, or the error that it alone caused."""
        return self._race(group, self._utility, self._phases)

    def stream(self, records: Iterable[Record], window: int, on_error: OnError | None) -> Iterator[Decoded]:
        """The answers to records as they come."""
        parallel, single = parallel_of(self._utility), None
        # A live source works on the whole window at once; otherwise a utility may be faster on a few sentences. A
        # user's functions are called in the caller's thread.
        is_ours = not self._watch and type(self._prune) in (type(None), Confidence, Bottom, Halving)
        if parallel is not None and parallel.workers > 1 and is_ours and not self._live:
            single = self._single_threaded(parallel)
        return stream(
            records,
            self.run,
            window=window,
            group_size=window if self._live or parallel is None else min(window, GROUP),
            run_single_threaded=single,
            threads=1 if parallel is None else parallel.workers,
            check=self.check,
            on_error=on_error,
        )

    def _single_threaded(self, parallel: ParallelUtility) -> Run:
        """`run` with the utility on one thread, for calls from several threads at once; their phases are added up."""
        utility, share, adding = parallel.single_threaded(), 1 / parallel.workers, Lock()

        def run_single_threaded(group: Sequence[Record]) -> list[Decoded | Exception]:
            own = Phases()
            answers = self._race(group, utility, own)
            if self._phases is not None:
                with adding:
                    self._phases.add(own, share=share)
            return answers

        return run_single_threaded

    def _race(self, group: Sequence[Record], utility: Utility, phases: Phases | None) -> list[Decoded | Exception]:
        phases = Phases() if phases is None else phases
        race = partial(run_race, watch=self._watch, phases=phases)
        if self._method is None:
            kept = self._keep_utilities
            return race(group, utility, self._settings, sampler=self._sampler, keep_utilities=kept)
        plain = self._settings.replace(method=None, method_options=None, prune="none")
        mbr = StandardMBR(race, utility, self._sampler, plain, self._keep_utilities, phases)
        return self._method.decode(group, mbr)


def utility_of(given: Utility | PairFunction | str | None) -> Utility:
    """A utility given as such, as a function or by name; chrF++ by default."""
    if isinstance(given, str):
        from mbrace.utilities.named import make_utility  # imported only if needed: a plain race starts sooner

        return make_utility(given)
    return as_utility(ChrF() if given is None else given)


def _check_live(settings: Race, sampler: Sampler) -> None:
    """Refuse what cannot be combined with a live source."""
    if not hasattr(sampler, "start"):
        raise SettingError("sampler", sampler, "give an object with `start`, such as model.sampler()")
    if is_all(settings.schedule):
        raise SettingError("schedule", "all", "a live source has no last pseudo-reference; give the sizes")
    if settings.cover:
        raise SettingError("cover", ..., "only valid without a sampler, whose draws cannot be reordered")


def quality_utility_of(given: QualityUtility | str) -> QualityUtility:
    """An estimator of quality, from an object or a name."""
    if isinstance(given, str):
        from mbrace.utilities.named import load_quality

        return load_quality(given)
    if quality_of(given) is None:
        name = getattr(given, "name", None) or repr(given)
        raise UserError(f"qe {name}: cannot estimate quality from the source; give a quality utility such as CometKiwi")
    return given


def rerank(
    hypotheses: Sequence[str], source: str, *, qe: QualityUtility | str, nbest: int = 1, id: str | int = 0
) -> Decoded:
    """The hypothesis of the highest quality by `qe`, an object or a name as in `--qe`; `utility` is the quality."""
    return next(iter(rerank_corpus([Record(hypotheses, id=id, source=source)], qe=qe, nbest=nbest)))


def rerank_corpus(
    records: Iterable[Record],
    *,
    qe: QualityUtility | str,
    nbest: int = 1,
    window: int = 64,
    phases: Phases | None = None,
    on_error: OnError | None = None,
) -> Iterator[Decoded]:
    """Rerank records as they come, `window` at a time, answers in order; pseudo-references are not read.

    A record that fails stops the run after the answers to the records before it; with `on_error`, it is passed to that
    function instead and left out.
    """
    check_whole("window", window, least=1, most=LARGEST)
    check_whole("nbest", nbest, least=1, most=LARGEST)
    estimator = quality_utility_of(qe)

    def check(record: Record) -> None:
        check_record(record)
        _source_of(record, estimator)

    def run(group: Sequence[Record]) -> list[Decoded | Exception]:
        return _reranked(group, estimator, nbest, phases)

    checked = checked_records(records)
    return stream(checked, run, window=window, group_size=window, check=check, on_error=on_error)


def _source_of(record: Record, qe: QualityUtility) -> str:
    """The source of a record; refused if it is missing or empty."""
    if record.source is None or not record.source.strip():
        found = "missing" if record.source is None else "empty"
        raise record.error(
            f"source: {found}; {qe.name} estimates from the source: give one, or {Parameter('on_error', 'skip')}"
        )
    return record.source


def _reranked(
    records: Sequence[Record], qe: QualityUtility, nbest: int, phases: Phases | None
) -> list[Decoded | Exception]:
    """The answers, by one call of `qe` for all; equal strings of a record are estimated once."""
    firsts: list[dict[str, int]] = []  # of each record, the index of the first copy of each hypothesis
    for record in records:
        firsts.append({})
        for index, text in enumerate(record.hypotheses):
            firsts[-1].setdefault(text, index)
    texts = [text for first in firsts for text in first]
    sources = [_source_of(record, qe) for record, first in zip(records, firsts, strict=True) for _ in first]
    began = time.perf_counter()
    found = np.asarray(qe.quality(texts, sources))
    if phases is not None:
        phases.quality += time.perf_counter() - began
    if found.shape != (len(texts),):
        raise UserError(f"utility {qe.name}: returned shape {found.shape} for {len(texts)} hypotheses")
    answers: list[Decoded | Exception] = []
    for record, first in zip(records, firsts, strict=True):
        own, found = found[: len(first)], found[len(first) :]
        answers.append(_best_of(record, first, own, qe, nbest))
    return answers


def _best_of(
    record: Record, first: dict[str, int], qualities: NDArray[np.floating], qe: QualityUtility, nbest: int
) -> Decoded | Exception:
    """The answer that lists the best of a record's distinct hypotheses; equal ones in their order."""
    candidates = [
        Candidate(text, index, float(quality)) for (text, index), quality in zip(first.items(), qualities, strict=True)
    ]
    for each, quality in zip(candidates, qualities, strict=True):
        if not np.isfinite(quality):
            return record.error(
                f"utility {qe.name}: returned {quality} for hypothesis {each.text[:60]!r}; "
                "a utility must return finite numbers"
            )
    ranked = [candidates[row] for row in np.argsort(-qualities, kind="stable")[:nbest].tolist()]
    return Decoded(
        id=record.id,
        text=ranked[0].text,
        index=ranked[0].index,
        utility=ranked[0].utility,
        utility_calls=0,
        pairs_scored=0,
        pseudo_references=0,
        steps=(),
        nbest=tuple(ranked),
        strings=len(first),
        quality_calls=len(first),
    )
