"""Decoding candidate files: `DecodeJob`, its worker, and `decode_file` for a caller in Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mbrace.api import decode_corpus
from mbrace.errors import UserError
from mbrace.io.candidates import Item, Paths, checked_input, expand, item_from, read_items
from mbrace.io.output import answer_line, best_candidates_line, check_top
from mbrace.jobs.outcomes import answer_items
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, Summary, run_job
from mbrace.jobs.settings import AnyUtility, RaceSettings, describe_utility, load_utility
from mbrace.methods import Method, check_saving, method_of
from mbrace.metrics.chrf import ChrF
from mbrace.prune import Confidence, PruningFunction
from mbrace.race import Watch
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.sampler import Sampler, Schedule
from mbrace.utility import PairFunction, Utility, truncated_texts, utility_cost
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
    exclude_self: bool = False,
    forecast: float = 0.0,
    method: Method | str | None = None,
    save_utilities: str | os.PathLike[str] | None = None,
    top: int | None = None,
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
    its suffix, or with `text` the chosen texts, one per line. With `top`, it is candidate records instead: the `top`
    best hypotheses of each record and all of its pseudo-references, for another run. `utility` to `method` are as for
    `decode_corpus`; a utility may also be a name, such as "learned", and then runs with `threads` threads (0: all
    cores). `save_utilities` is a folder for the utilities of every record, which `Replay` reads (docs/formats.md).

    An `output` that exists is an error unless `resume` continues after the answers in it or `force` replaces it; a run
    is resumed only with the same settings, and with objects of the same names. A bad record stops the run, or with
    `on_error="skip"` is set aside in OUTPUT.errors.jsonl; `retry_errors`, with `resume`, tries the records set aside
    there again. `progress` is called with the number of records done since its last call; True shows a progress bar
    if stderr is a terminal.
    """
    job = DecodeJob(
        utility,
        RaceSettings(prune, schedule, seed, nbest, window, exclude_self, select, diversity, method, forecast),
        shuffle=shuffle,
        cover=cover,
        text=text,
        save_utilities=None if save_utilities is None else os.fspath(save_utilities),
        top=top,
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
    save_utilities: str | None = None  # a folder for the utilities of every record
    top: int | None = None  # write candidate records with this many of the best hypotheses
    reads_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings that do not go together, before anything is loaded."""
        if self.cover and not self.shuffle:
            raise UserError("cover: only valid without shuffle=False")
        check_top(self.top, nbest=self.race.nbest, text=self.text)
        if self.save_utilities is not None:
            check_saving(method_of(self.race.method))

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        return {
            "command": "decode",
            **self.describe_races(),
            "no_shuffle": not self.shuffle,
            "text": self.text,
            "save_utilities": self.save_utilities,
            "cover": self.cover or None,  # None where older descriptions have nothing
            "top": self.top,
        }

    def describe_races(self) -> dict[str, Any]:
        """What the races over given candidates depend on."""
        return {**describe_utility(self.utility), **self.race.describe()}

    def start(self, threads: int) -> DecodeWorker:
        """Load the utility."""
        utility, others = load_utility(self.utility, threads), dict[str, Any]()
        self.race.check_utility(utility)
        if self.save_utilities is not None:
            from mbrace.io.folders import UtilityFolder

            others["utility_folder"] = UtilityFolder(self.save_utilities)
        others |= {"text": self.text, "top": self.top}
        return DecodeWorker(utility, self.race, shuffle=self.shuffle, cover=self.cover, **others)

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
    top: int | None = None
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
            **self.race.options() | ({} if self.top is None else {"nbest": self.top}),
            sampler=self.sampler,
            shuffle=self.shuffle,
            cover=self.cover,
            keep_utilities=self.utility_folder is not None,
            watch=self.watch,
            phases=self.summary.phases,
            on_error=on_error,
        )

    def _line(self, record: Record, answer: Decoded) -> bytes:
        self.count(record, answer)
        if self.utility_folder is not None and answer.utilities is not None:
            self.utility_folder.save(answer.utilities)
        if self.top is not None:
            return best_candidates_line(record, answer)
        return answer_line(answer, text=self.text, nbest=self.race.nbest)

    def count(self, record: Record, answer: Decoded) -> None:
        """Add an answer to the summary."""
        self.summary.sentences += 1
        self.summary.utility_calls += answer.utility_calls
        self.summary.pairs_scored += answer.pairs_scored
        self.summary.strings += answer.strings
        if not isinstance(self.utility, ChrF):
            self._count_outside()  # slower than all the other counts together
        self.summary.standard_calls += self._standard_calls(record, answer)

    def _standard_calls(self, record: Record, answer: Decoded) -> int:
        """|H| x |R| of standard MBR, with the pseudo-references that are listed and that the schedule allows.

        Equal hypotheses count once, as in the paper. Where the first step of a race scores all of them, it tells |H|.
        """
        race = self.race
        first_step_has_all = not (race.exclude_self or race.forecast or race.method is not None)
        if not answer.steps:
            hypotheses = 1
        elif not first_step_has_all:
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
        """What the utility counts itself: texts that were cut, and requests to a server."""
        self.summary.truncated = truncated_texts(self.utility)
        for name, count in asdict(utility_cost(self.utility)).items():
            setattr(self.summary, name, count)
