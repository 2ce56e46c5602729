"""Translating files of sources: `TranslateJob`, its worker, and `translate_file` for a caller in Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mbrace.io.candidates import Item, checked_input
from mbrace.jobs.decode import DecodeJob, DecodeWorker
from mbrace.jobs.model_settings import AnyModel, describe_model, load_model
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, Summary, run_job
from mbrace.jobs.settings import RaceSettings
from mbrace.jobs.sources import source_item, source_items
from mbrace.methods import Method
from mbrace.models.hypotheses import HypothesisMaker, LiveSampler, SamplingSettings, live_candidates
from mbrace.prune import Confidence, PruningFunction, stops_by_regret
from mbrace.sampler import Schedule
from mbrace.utility import PairFunction, Utility

if TYPE_CHECKING:
    from mbrace.io.folders import UtilityFolder
    from mbrace.models.hypotheses import CandidateModel
    from mbrace.servers.server import Server


def translate_file(
    sources: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    model: CandidateModel | Server | str = "bundled",
    beam: int = 256,
    length_penalty: float = 1.0,
    epsilon: float | None = 0.02,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    sampling: str = "independent",
    utility: Utility | PairFunction | str = "chrf++",
    prune: PruningFunction | None = Confidence(),  # noqa: B008  (frozen)
    schedule: Schedule = None,
    seed: int = 0,
    nbest: int = 1,
    select: str = "best",
    diversity: float | None = None,
    window: int = 64,
    exclude_self: bool = False,
    forecast: float = 0.0,
    method: Method | str | None = None,
    save_utilities: str | os.PathLike[str] | None = None,
    text: bool = True,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    retry_errors: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
) -> Summary:
    """Translate the lines of a file into `output`, as `mbrace translate` does, with any model, utility and pruning.

    `model` is a `Seq2Seq`, a `CausalLM`, a `Server`, any object with their `beam` and `sampler`, or the name or
    folder of a translation model. `beam` hypotheses per source race against pseudo-references that are drawn by
    epsilon sampling, or by `top_k`, `top_p`, `min_p` and `sampling` as for `Seq2Seq.sample`. A `Server` samples as it
    was made to: none of these is sent to it. With `text=False` each line of `output` is the JSON
    object that `decode_file` writes. The other options are those of `decode_file`.
    """
    job = TranslateJob(
        model,
        SamplingSettings(beam, length_penalty, epsilon, temperature, sampling, top_k, top_p, min_p),
        DecodeJob(
            utility,
            RaceSettings(prune, schedule, seed, nbest, window, exclude_self, select, diversity, method, forecast),
            text=text,
            save_utilities=None if save_utilities is None else os.fspath(save_utilities),
        ),
    )
    path, out = os.fspath(sources), os.fspath(output)
    return run_job(
        job,
        checked_input(lambda: source_items(path, make_item=job.item), [path], output=out),
        out,
        threads=threads,
        resume=resume,
        force=force,
        retry_errors=retry_errors,
        on_error=on_error,
        progress=progress,
    )


@dataclass(frozen=True)
class TranslateJob:
    """Races over candidates that a model makes as they are needed."""

    model: AnyModel
    candidates: SamplingSettings
    races: DecodeJob
    reads_records: ClassVar[bool] = False

    @property
    def text(self) -> bool:
        """Whether its lines are plain text."""
        return self.races.text

    @property
    def save_utilities(self) -> str | None:
        """A folder for the utilities of every record."""
        return self.races.save_utilities

    def describe(self) -> dict[str, Any]:
        """What answers depend on."""
        made = {**describe_model(self.model), **self.candidates.describe()}
        lines = {"text": self.text, "save_utilities": self.save_utilities}
        return {"command": "translate", **self.races.describe_races(), **made, **lines}

    def start(self, threads: int) -> TranslateWorker:
        """Load the utilities and the model."""
        from mbrace.servers.server import Server

        races = self.races.start(threads)
        race = self.races.race
        model = load_model(self.model, threads, self.candidates, seed=race.seed)
        sampler: LiveSampler
        if isinstance(model, Server):
            sampler, ask, beam = model, model.hypotheses, self.candidates.beam
            hypotheses = HypothesisMaker(lambda texts, ids: list(ask(texts, beam, ids=ids)), window=race.window)
        else:
            hypotheses, sampler = live_candidates(
                model,
                self.candidates,
                races.utility,
                race.schedule,
                seed=race.seed,
                window=race.window,
                short_races=stops_by_regret(race.pruning_function()),
            )
        races.sampler = sampler
        return TranslateWorker(hypotheses, sampler, races)

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        """The record of a source, so far without hypotheses."""
        return source_item(row, file, number, prefix, columns=False)


@dataclass
class TranslateWorker:
    """Makes the hypotheses of a window, then races them against pseudo-references drawn live."""

    hypotheses: HypothesisMaker
    sampler: LiveSampler
    races: DecodeWorker

    @property
    def summary(self) -> Summary:
        """The summary of the races, with what the candidates cost."""
        summary = self.races.summary
        summary.hypothesis_seconds, summary.drawn = self.hypotheses.seconds, self.sampler.drawn
        from mbrace.servers.server import Server

        if isinstance(self.sampler, Server):
            summary.cut, summary.blank = self.sampler.cut, self.sampler.blank
        return summary

    @property
    def utility_folder(self) -> UtilityFolder | None:
        """Where the races' utilities are saved."""
        return self.races.utility_folder

    def interrupt(self) -> None:
        """End waits for a server."""
        from mbrace.servers.server import Server

        if isinstance(self.sampler, Server):
            self.sampler.interrupt()

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        """One outcome per item."""
        return self.races(self.hypotheses.items(items), skip=skip)
