"""Decoding candidate files, and reranking them by estimated quality: a job, its worker and a function for each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from mbrace.api import decode_corpus, rerank_corpus
from mbrace.errors import LARGEST, SettingError, check_whole
from mbrace.io.candidates import Item, Paths, item_from
from mbrace.io.output import answer_line, best_candidates_line, check_lines
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, RunOptions, Summary, answer_items, items_of, run_job
from mbrace.methods import check_saving
from mbrace.metrics.chrf import ChrF
from mbrace.race import Watch
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.sampler import Sampler
from mbrace.setting_fields import REMOVED, settings_from
from mbrace.settings import Network, Race, RaceOptions
from mbrace.utility import (
    PairFunction,
    QualityUtility,
    Utility,
    as_utility,
    interrupt_utility,
    truncated_texts,
    utility_cost,
)
from mbrace.windows import OnError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mbrace.io.folders import UtilityFolder


def decode_file(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    utility: AnyUtility = "chrf++",
    text: bool = False,
    top: int | None = None,
    save_utilities: str | os.PathLike[str] | None = None,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
    race: Race | None = None,
    **settings: Unpack[RaceOptions],
) -> Summary:
    """Decode candidate files into `output`, as `mbrace decode` does, with any utility and pruning function.

    `inputs` are files, patterns or URLs of JSON Lines or Parquet; `output` is JSON Lines, packed or `.parquet` by
    its suffix, or with `text` the chosen texts, one per line. With `top`, it is candidate records instead: the `top`
    best hypotheses of each record and all of its pseudo-references, for another run. `race`, or the fields of `Race` as
    keywords, and `utility` are as for `decode_corpus`; a utility may also be a name, such as "learned", and then runs
    with `threads` threads (0: all cores). `save_utilities` is a folder for the utilities of every record, which
    `Replay` reads (docs/formats.md).

    An `output` that exists is an error unless `resume` continues after the answers in it or `force` replaces it; a run
    is resumed only with the same settings, and with objects of the same names. A bad record stops the run, or with
    `on_error="skip"` is set aside in OUTPUT.errors.jsonl. `progress` is called with the number of records done since
    its last call; True shows a progress bar if stderr is a terminal.
    """
    folder = None if save_utilities is None else os.fspath(save_utilities)
    job = DecodeJob(utility, settings_from(Race, race, settings, decode_file), text, folder, top)
    how = RunOptions(threads, resume, force, on_error)
    return run_job(job, items_of(job, inputs, output), output, how, progress=progress)


@dataclass(frozen=True)
class UtilitySettings:
    """A utility by name: one of `mbrace.utilities.named.NAMED`, a function of your own, or a mixture.

    `network` is for neural ones; `options` are names and values, as text.
    """

    name: str = "chrf++"
    network: Network = Network()
    options: tuple[tuple[str, str], ...] = ()

    def describe(self) -> dict[str, Any]:
        """What scores depend on."""
        from mbrace.utilities.named import model_of, scored_options

        options = scored_options(self.name, dict(self.options))
        utility = " ".join([self.name, *(f"{name}={value}" for name, value in sorted(options.items()))])
        return {
            "utility": utility,
            "metric_model": model_of(self.name, self.network.model),
            "dtype": self.network.dtype,
        }

    def load(self, threads: int = 0) -> Utility:
        """The utility, to be run with `threads` threads (0: all cores)."""
        from mbrace.utilities.named import make_utility

        return make_utility(self.name, dict(self.options), threads=threads, **vars(self.network))


AnyUtility: TypeAlias = "UtilitySettings | Utility | PairFunction | str"


def describe_utility(utility: AnyUtility) -> dict[str, Any]:
    """What scores depend on; of a ready utility, its name."""
    if not isinstance(utility, UtilitySettings):
        utility = UtilitySettings(utility if isinstance(utility, str) else as_utility(utility).name)
    return utility.describe()


def load_utility(utility: AnyUtility, threads: int) -> Utility:
    """The utility of settings or of a name, or a ready one; refused if it reads no reference."""
    if isinstance(utility, str):
        utility = UtilitySettings(utility)
    return as_utility(utility.load(threads) if isinstance(utility, UtilitySettings) else utility)


@dataclass(frozen=True)
class DecodeJob:
    """Races over records that come with their pseudo-references."""

    utility: AnyUtility
    race: Race = Race()
    text: bool = False
    save_utilities: str | None = None  # a folder for the utilities of every record
    top: int | None = None  # write candidate records with this many of the best hypotheses
    reads_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings that do not go together, before anything is loaded."""
        check_lines(self.top, nbest=self.race.nbest, text=self.text)
        if self.race.pool:
            raise SettingError("pool", ..., REMOVED["pool"])
        if self.save_utilities is not None:
            check_saving(self.race.made_method())

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        lines = {"text": self.text, "save_utilities": self.save_utilities, "top": self.top}
        return {"command": "decode", **describe_utility(self.utility), **self.race.describe(), **lines}

    def start(self, threads: int) -> DecodeWorker:
        """Load the utility; one that reads no reference is refused."""
        loaded = load_utility(self.utility, threads)
        method, folder = self.race.made_method(), None
        if method is not None:
            method.check(loaded)
        if self.save_utilities is not None:
            from mbrace.io.folders import UtilityFolder

            folder = UtilityFolder(self.save_utilities)
        return DecodeWorker(self, loaded, folder)

    item = staticmethod(item_from)


@dataclass
class DecodeWorker:
    """Races records and turns the answers into lines."""

    job: DecodeJob
    utility: Utility
    utility_folder: UtilityFolder | None = None
    sampler: Sampler | None = None
    watch: Watch | None = None  # sees every pruning decision
    summary: Summary = field(default_factory=Summary)

    def interrupt(self) -> None:
        interrupt_utility(self.utility)

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        return answer_items(items, self.answers, self._line, skip=skip, text=self.job.text)

    def answers(self, records: Iterable[Record], on_error: OnError | None = None) -> Iterator[Decoded]:
        """The answers to records; a record that fails is an error, or is passed to `on_error`."""
        return decode_corpus(
            records,
            utility=self.utility,
            race=self.job.race if self.job.top is None else self.job.race.replace(nbest=self.job.top),
            sampler=self.sampler,
            keep_utilities=self.utility_folder is not None,
            watch=self.watch,
            phases=self.summary.phases,
            on_error=on_error,
        )

    def _line(self, record: Record, answer: Decoded) -> bytes:
        self.count(record, answer)
        if self.utility_folder is not None and answer.utilities is not None:
            self.utility_folder.save(answer.utilities)
        if self.job.top is not None:
            return best_candidates_line(record, answer)
        return answer_line(answer, text=self.job.text, nbest=self.job.race.nbest)

    def count(self, record: Record, answer: Decoded) -> None:
        """Add an answer to the summary."""
        self.summary.sentences += 1
        self.summary.utility_calls += answer.utility_calls
        self.summary.pairs_scored += answer.pairs_scored
        self.summary.strings += answer.strings
        if not isinstance(self.utility, ChrF):  # what the utility counts takes longer than all the others together
            self.summary.truncated = truncated_texts(self.utility)
            for name, count in asdict(utility_cost(self.utility)).items():
                setattr(self.summary, name, count)
        self.summary.standard_calls += self._standard_calls(record)

    def _standard_calls(self, record: Record) -> int:
        """|H| x |R| of standard MBR, with the pseudo-references that are listed and that the schedule allows.

        Equal hypotheses count once, as in the paper.
        """
        race, hypotheses = self.job.race, len(set(record.hypotheses))
        given = record.listed(live=self.sampler is not None)
        listed = len(given) if isinstance(given, Sequence) else None  # None: as many as are wanted
        if race.schedule == "all":
            return hypotheses * (listed or 0)
        last = list(self.utility.schedule if race.schedule is None else race.schedule)[-1]
        return hypotheses * (last if listed is None else min(last, listed))


# Reranking


def rerank_file(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    qe: QualityUtility | str,
    nbest: int = 1,
    window: int = 64,
    top: int | None = None,
    text: bool = False,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
) -> Summary:
    """Choose the best hypothesis of each record by estimated quality, as `mbrace rerank` does.

    `qe` is a quality utility, or the folder or hub name of a checkpoint; the rest is as for `decode_file`. With `top`,
    `output` is candidate records for `decode_file`: the `top` best hypotheses, and all pseudo-references.
    """
    job = RerankJob(qe, nbest=nbest, window=window, text=text, top=top)
    how = RunOptions(threads, resume, force, on_error)
    return run_job(job, items_of(job, inputs, output), output, how, progress=progress)


@dataclass(frozen=True)
class RerankJob:
    """A choice among the hypotheses of records that come with their sources."""

    qe: Network | QualityUtility | str
    nbest: int = 1
    window: int = 64
    text: bool = False
    top: int | None = None  # write candidate records with this many of the best hypotheses
    reads_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("window", "nbest"):
            check_whole(name, getattr(self, name), least=1, most=LARGEST)
        check_lines(self.top, nbest=self.nbest, text=self.text)

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        name = self.qe if isinstance(self.qe, str) else "" if isinstance(self.qe, Network) else self.qe.name
        qe = self.qe if isinstance(self.qe, Network) else Network(model=name)
        lines = {"nbest": self.nbest, "text": self.text, "top": self.top}
        return {"command": "rerank", "qe": qe.model, "qe_dtype": qe.dtype, **lines}

    def start(self, threads: int) -> RerankWorker:
        """Load the quality utility."""
        qe = Network(model=self.qe) if isinstance(self.qe, str) else self.qe
        if isinstance(qe, Network):
            from mbrace.utilities.named import load_quality

            options = {name: value for name, value in vars(qe).items() if name != "model"}
            qe = load_quality(qe.model or "", threads=threads, **options)
        return RerankWorker(self, qe)

    item = staticmethod(item_from)


@dataclass
class RerankWorker:
    """Ranks the hypotheses of records and turns the answers into lines."""

    job: RerankJob
    qe: QualityUtility
    summary: Summary = field(default_factory=Summary)

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        return answer_items(items, self._answers, self._line, skip=skip, text=self.job.text)

    def _answers(self, records: Iterable[Record], on_error: OnError) -> Iterator[Decoded]:
        return rerank_corpus(
            records,
            qe=self.qe,
            nbest=self.job.top or self.job.nbest,
            window=self.job.window,
            phases=self.summary.phases,
            on_error=on_error,
        )

    def _line(self, record: Record, answer: Decoded) -> bytes:
        self.summary.sentences += 1
        self.summary.strings += answer.strings
        self.summary.quality_calls += answer.quality_calls or 0
        self.summary.truncated = truncated_texts(self.qe)
        if self.job.top is not None:
            return best_candidates_line(record, answer)
        return answer_line(answer, text=self.job.text, nbest=self.job.nbest)
