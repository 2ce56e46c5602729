"""Decoding candidate files: `DecodeJob`, its worker, and `decode_file` for a caller in Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mbrace.api import decode_corpus
from mbrace.errors import UserError
from mbrace.io.candidates import Item, Paths, checked_input, expand, item_from, read_items
from mbrace.io.output import answer_line
from mbrace.jobs.outcomes import answer_items
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, Summary, run_job
from mbrace.jobs.settings import AnyUtility, RaceSettings, describe_utility, load_utility
from mbrace.jobs.shortlist import ShortlistSettings
from mbrace.method_names import Method, check_method, method_of
from mbrace.metrics.chrf import ChrF
from mbrace.pairwise import PairFunction
from mbrace.prune import Confidence, PruningFunction
from mbrace.race import Watch
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.sampler import Sampler
from mbrace.schedule import Schedule
from mbrace.utility import Cost, QualityUtility, Utility, truncated_texts, utility_cost
from mbrace.windows import OnError

if TYPE_CHECKING:
    from mbrace.io.folders import UtilityFolder


def decode_file(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    utility: Utility | PairFunction | str = "chrf++",
    prune: PruningFunction | None = Confidence(),  # noqa: B008  (frozen)
    schedule: Schedule = None,
    seed: int = 0,
    nbest: int = 1,
    select: str = "best",
    diversity: float | None = None,
    window: int = 64,
    shuffle: bool = True,
    cover: bool = False,
    pool: bool = False,
    start: int | None = None,
    exclude_self: bool = False,
    forecast: float = 0.0,
    qe: QualityUtility | str | None = None,
    qe_top: int | None = None,
    coarse: Utility | PairFunction | str | None = None,
    coarse_top: int | None = None,
    method: Method | str | None = None,
    save_utilities: str | os.PathLike[str] | None = None,
    text: bool = False,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    retry_errors: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
) -> Summary:
    """Decode candidate files into `output`, as `mbrace decode` does, with any utility and pruning function.

    `inputs` are files, patterns or URLs of JSON Lines or Parquet; `output` is JSON Lines, packed or `.parquet` by
    its suffix, or with `text` the chosen texts, one per line. `utility` to `coarse_top` are as for `decode_corpus`;
    a utility may also be a name, such as "learned", and `qe` the name of a checkpoint; they then run with `threads`
    threads (0: all cores). `save_utilities` is a folder for the utilities of every record, which `Replay` reads
    (docs/formats.md).

    An `output` that exists is an error unless `resume` continues after the answers in it or `force` replaces it; a run
    is resumed only with the same settings, and with objects of the same names. A bad record stops the run, or with
    `on_error="skip"` is set aside in OUTPUT.errors.jsonl; `retry_errors`, with `resume`, tries the records set aside
    there again. `progress` is called with the number of records done since its last call; True shows a progress bar
    if stderr is a terminal.
    """
    job = DecodeJob(
        utility,
        RaceSettings(
            prune, schedule, seed, nbest, window, pool, exclude_self, start, select, diversity, method, forecast
        ),
        shuffle=shuffle,
        cover=cover,
        text=text,
        shortlist=ShortlistSettings(qe, qe_top, coarse, coarse_top),
        save_utilities=None if save_utilities is None else os.fspath(save_utilities),
    )
    paths, out = expand(inputs), os.fspath(output)
    return run_job(
        job,
        checked_input(lambda: read_items(paths), paths, output=out),
        out,
        threads=threads,
        resume=resume,
        force=force,
        retry_errors=retry_errors,
        on_error=on_error,
        progress=progress,
    )


@dataclass(frozen=True)
class DecodeJob:
    """Races over records that come with their pseudo-references."""

    utility: AnyUtility
    race: RaceSettings
    shuffle: bool = True
    cover: bool = False
    text: bool = False
    shortlist: ShortlistSettings = field(default_factory=ShortlistSettings)
    save_utilities: str | None = None  # a folder for the utilities of every record
    reads_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings that do not go together, before anything is loaded."""
        if self.cover and not self.shuffle:
            raise UserError("cover: only valid without shuffle=False")
        self.shortlist.check(self.race)
        check_method(method_of(self.race.method), nbest=self.race.nbest, keep_utilities=self.save_utilities is not None)

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        return {
            "command": "decode",
            **self.describe_races(),
            "no_shuffle": not self.shuffle,
            "text": self.text,
            "save_utilities": self.save_utilities,
            "cover": self.cover or None,  # None where older descriptions have nothing
        }

    def describe_races(self) -> dict[str, Any]:
        """What the races over given candidates depend on."""
        return {**describe_utility(self.utility), **self.race.describe(), **self.shortlist.describe()}

    def start(self, threads: int) -> DecodeWorker:
        """Load the utilities."""
        utility, others = load_utility(self.utility, threads), self.shortlist.load(threads)
        self.race.check_utility(utility)
        if self.save_utilities is not None:
            from mbrace.io.folders import UtilityFolder

            others["utility_folder"] = UtilityFolder(self.save_utilities)
        return DecodeWorker(utility, self.race, shuffle=self.shuffle, cover=self.cover, text=self.text, **others)

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        """A record of JSON."""
        return item_from(row, file, number, prefix)


@dataclass
class DecodeWorker:
    """Races records and turns the answers into lines."""

    utility: Utility
    race: RaceSettings
    sampler: Sampler | None = None
    shuffle: bool = True
    cover: bool = False
    text: bool = False
    qe: QualityUtility | None = None
    qe_top: int | None = None
    coarse: Utility | None = None
    coarse_top: int | None = None
    utility_folder: UtilityFolder | None = None
    watch: Watch | None = None  # sees every pruning decision
    summary: Summary = field(default_factory=Summary)

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome per item."""
        return answer_items(items, self.answers, self._line, skip=skip, text=self.text)

    def answers(self, records: Iterable[Record], on_error: OnError | None = None) -> Iterator[Decoded]:
        """The answers to records; a record that fails is an error, or is passed to `on_error`."""
        return decode_corpus(
            records,
            utility=self.utility,
            **self.race.options(),
            sampler=self.sampler,
            shuffle=self.shuffle,
            cover=self.cover,
            qe=self.qe,
            qe_top=self.qe_top,
            coarse=self.coarse,
            coarse_top=self.coarse_top,
            keep_utilities=self.utility_folder is not None,
            watch=self.watch,
            phases=self.summary.phases,
            on_error=on_error,
        )

    def _line(self, record: Record, answer: Decoded) -> bytes:
        self.count(record, answer)
        if self.utility_folder is not None and answer.utilities is not None:
            self.utility_folder.save(answer.utilities)
        return answer_line(answer, text=self.text, nbest=self.race.nbest)

    def count(self, record: Record, answer: Decoded) -> None:
        """Add an answer to the summary."""
        self.summary.sentences += 1
        self.summary.utility_calls += answer.utility_calls
        self.summary.pairs_scored += answer.pairs_scored
        self.summary.strings += answer.strings
        self.summary.quality_calls += answer.quality_calls or 0
        self.summary.coarse_calls += answer.coarse_calls or 0
        if not isinstance(self.utility, ChrF) or self.qe is not None or self.coarse is not None:
            self._count_outside()  # slower than all the other counts together
        self.summary.standard_calls += self._standard_calls(record, answer)

    def _standard_calls(self, record: Record, answer: Decoded) -> int:
        """|H| x |R| of standard MBR, with the pseudo-references that are listed and that the schedule allows.

        Equal hypotheses count once, as in the paper. Where the first step of a race scores all of them, it tells |H|.
        """
        race, shortened = self.race, answer.quality_calls or answer.coarse_calls
        first_step_has_all = not (race.pool or race.exclude_self or race.forecast or race.method is not None)
        if not answer.steps and not shortened:
            hypotheses = 1
        elif shortened or not first_step_has_all:
            hypotheses = len(set(record.hypotheses))
        else:
            hypotheses = answer.steps[0].utility_calls // answer.steps[0].pseudo_references
        given = record.listed(live=self.sampler is not None)
        listed = len(given) if isinstance(given, Sequence) else None  # None: as many as are wanted
        if race.schedule == "all":
            return hypotheses * (listed or 0)
        last = list(self.utility.schedule if race.schedule is None else race.schedule)[-1]
        return hypotheses * (last if listed is None else min(last, listed))

    def _count_outside(self) -> None:
        """What the utilities count themselves: texts that were cut, and requests to a server."""
        asked = {id(each): each for each in (self.utility, self.coarse) if each is not None}
        estimating = {} if self.qe is None else {id(self.qe): self.qe}
        self.summary.truncated = sum(truncated_texts(each) for each in (asked | estimating).values())
        cost = sum((utility_cost(each) for each in asked.values()), start=Cost())
        for name, count in asdict(cost).items():
            setattr(self.summary, name, count)
