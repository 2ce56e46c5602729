"""Translating files of sources: `TranslateJob`, its worker, and `translate_file` for a caller in Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from mbrace.errors import Parameter, RecordError, SettingError, require
from mbrace.io.candidates import Bad, Item, Row, read_items
from mbrace.io.compression import without_packing
from mbrace.io.reading import decode_line, is_json_line, parse_json
from mbrace.jobs.decode import AnyUtility, DecodeJob, DecodeWorker
from mbrace.jobs.run import ErrorPolicy, Outcome, Progress, RunOptions, Summary, items_of, run_job
from mbrace.models.hypotheses import HypothesisMaker, LiveSampler, live_candidates
from mbrace.records import Location, Record, record_from
from mbrace.setting_fields import settings_from, split, stable_name, table_of
from mbrace.settings import LOCAL, Connection, ModelSettings, Race, Sampling, TranslateOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mbrace.io.folders import UtilityFolder
    from mbrace.models.hypotheses import CandidateModel
    from mbrace.servers.server import Server

OF_SERVER = ("prompt", "kind", "system_prompt", "stop", "beam_search", "max_tokens", "samples_per_request")
AnyModel: TypeAlias = "ModelSettings | CandidateModel | Server | str"


def translate_file(
    sources: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    model: AnyModel = "bundled",
    utility: AnyUtility = "chrf++",
    text: bool = True,
    save_utilities: str | os.PathLike[str] | None = None,
    threads: int = 0,
    resume: bool = False,
    force: bool = False,
    on_error: ErrorPolicy = "stop",
    progress: Progress = False,
    race: Race | None = None,
    candidates: Sampling | None = None,
    **settings: Unpack[TranslateOptions],
) -> Summary:
    """Translate the lines of a file into `output`, as `mbrace translate` does, with any model, utility and pruning.

    `model` is a `Seq2Seq`, a `CausalLM`, a `Server`, any object with their `beam` and `sampler`, or the name or
    folder of a translation model. `candidates`, or the fields of `Sampling` as keywords, say how many hypotheses race
    and how pseudo-references are drawn; a `Server` samples as it was made to. With `text=False` each line of `output`
    is the JSON object that `decode_file` writes. The rest is as for `decode_file`.
    """
    of_race, of_sampling = split(settings, Race, Sampling)
    folder = None if save_utilities is None else os.fspath(save_utilities)
    races = DecodeJob(utility, settings_from(Race, race, of_race, translate_file), text, folder)
    job = TranslateJob(model, settings_from(Sampling, candidates, of_sampling, name="candidates"), races)
    how = RunOptions(threads, resume, force, on_error)
    return run_job(job, items_of(job, sources, output), output, how, progress=progress)


@dataclass(frozen=True)
class TranslateJob:
    """Races over candidates that a model makes as they are needed."""

    model: AnyModel
    candidates: Sampling
    races: DecodeJob
    reads_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse settings that make no sense for a live model, before anything is loaded."""
        if self.candidates.beam < 1:
            raise SettingError("beam", self.candidates.beam, "must be 1 or more")
        if self.races.race.schedule == "all":
            raise SettingError("schedule", "all", "a live model has no last pseudo-reference; give the sizes")
        check_sampling(self.model, self.candidates)

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
        races = self.races.describe()
        del races["no_shuffle"]  # no list is shuffled
        described = describe_model(self.model, self.candidates)
        return {**races, "command": "translate", **described, **self.candidates.describe()}

    def start(self, threads: int) -> TranslateWorker:
        """Load the utilities and the model."""
        from mbrace.servers.server import Server

        races, race = self.races.start(threads), self.races.race
        model = load_model(self.model, threads, self.candidates, seed=race.seed)
        sampler: LiveSampler
        if isinstance(model, Server):
            sampler, ask, beam = model, model.hypotheses, self.candidates.beam
            hypotheses = HypothesisMaker(
                lambda texts, ids: [found.failure or found.texts for found in ask(texts, beam, ids=ids)],
                window=race.window,
            )
        else:
            hypotheses, sampler = live_candidates(model, self.candidates, races.utility, race)
        races.sampler = sampler
        return TranslateWorker(hypotheses, sampler, races)

    def item(self, row: Row, file: str, number: int, prefix: str) -> Item:
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
        from mbrace.servers.server import Server

        if isinstance(self.sampler, Server):
            self.sampler.interrupt()
        self.races.interrupt()

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        return self.races(self.hypotheses.items(items), skip=skip)


def check_sampling(model: AnyModel, candidates: Sampling) -> None:
    """Refuse settings of sampling that a server does not get, and before it is loaded those that a model refuses."""
    if isinstance(model, ModelSettings) and model.server is not None:
        if candidates.sampling != "independent":
            raise SettingError("sampling", candidates.sampling, "only valid with a model here; not sent to a server")
        if candidates.length_penalty != 1.0 and not model.beam_search:
            raise SettingError("length_penalty", candidates.length_penalty, "only valid with beam search")
    elif isinstance(model, ModelSettings | str):
        if isinstance(model, ModelSettings) and "max_tokens" in model.chosen():
            raise SettingError("max_tokens", model.max_tokens, f"only valid with {Parameter('server')}")
        require("torch", extra="models")
        from mbrace.models.next_ids import Truncation

        tops = candidates.top_k, candidates.top_p, candidates.min_p
        Truncation(candidates.threshold, candidates.temperature, *tops)


def describe_model(model: AnyModel, candidates: Sampling) -> dict[str, Any]:
    """What outputs depend on: of a ready model its name, of a server's URL nothing that is secret.

    The keys are those of older versions, which called a server's model `server_model`.
    """
    if not isinstance(model, ModelSettings):
        model = ModelSettings(model=model if isinstance(model, str) else stable_name(model))
    found = model.describe()
    kind = "causal" if model.prompt is not None and model.server is None else "seq2seq"
    found |= {"kind": kind, "server_model": None, "server_epsilon": None, "server_kind": model.kind}
    if model.server is not None:
        from mbrace.servers.http import hide_credentials

        found |= {"model": "bundled", "server_model": model.model, "server": hide_credentials(model.server)}
        found["server_epsilon"] = candidates.epsilon or None
    found["server_beam_search"] = found.pop("beam_search")
    for name in ("samples_per_request", "max_tokens", "server_beam_search"):
        if name.removeprefix("server_") not in model.chosen():
            found[name] = None  # where older descriptions have nothing
    return found


def load_model(
    model: AnyModel, threads: int, candidates: Sampling, *, seed: int, **of_server: Any
) -> CandidateModel | Server:
    """A ready model, or one by its name or settings, to be run with `threads` threads on a CPU (0: all cores), or the
    server, told how to sample; `of_server` are other arguments of `Server`."""
    if isinstance(model, str):
        model = ModelSettings(model=model)
    if not isinstance(model, ModelSettings):
        return model
    if model.server is not None:
        from mbrace.servers.local import local_server
        from mbrace.servers.server import Server

        url = local_server(threads=threads) if model.server == LOCAL else model.server
        given = {name: getattr(model, name) for name in (*OF_SERVER, *table_of(Connection))}
        given |= {name: getattr(candidates, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        given |= {"epsilon": candidates.epsilon or None, "length_penalty": candidates.length_penalty}
        return Server(url, model.model, seed=seed, **given, **of_server)
    require("torch", extra="models")
    if threads:
        from mbrace.neural.device import limit_threads

        limit_threads(threads)
    where: dict[str, Any] = {"device": model.device, "dtype": model.dtype}
    if model.prompt is not None:
        from mbrace.models.causal import CausalLM

        return CausalLM(model.model, prompt=model.prompt, stop=model.stop, **where)
    from mbrace.models.seq2seq import Seq2Seq

    where |= {"source_language": model.source_language, "target_language": model.target_language}
    return Seq2Seq(model.model, prefix=model.source_prefix, **where)


def read_sources(path: str) -> Iterator[tuple[str, str | None]]:
    """The sources of a file, each with its reference if there is one."""
    for item in read_items([path], source_item, records=False):
        if isinstance(item, Bad):
            raise item.error()
        yield item.source or "", item.reference


def source_item(row: Row, file: str, number: int, prefix: str = "", *, columns: bool = True) -> Item:
    """The source on a line; with `columns`, a .tsv has sources in its first column and references in its second.

    Its id is the line number, from 1 as for every other input, after `prefix` if there is one. A line of JSON Lines or
    a row of Parquet has its `source`, and may have an `id` and a `reference`. Where the name of the file does not say
    which it is, a line that is an object with `source` is JSON.
    """
    location, identity = Location(file, number), f"{prefix}{number}" if prefix else number
    try:
        if not isinstance(row, bytes) or is_json_line(row, file, ("source",)):
            return _json_source(parse_json(row, location) if isinstance(row, bytes) else row, location, identity)
        source, reference = decode_line(row, location).removesuffix("\n").removesuffix("\r"), ""
    except RecordError as error:
        return Bad(location, None, error.reason)
    if columns and without_packing(file).lower().endswith(".tsv"):
        source, reference = [*source.split("\t"), ""][:2]
    return Record((), id=identity, source=source, reference=reference or None, location=location)


def _json_source(fields: Any, location: Location, identity: str | int) -> Record:
    """The source of a JSON object, with its id and reference where it has them."""
    if not isinstance(fields, dict) or not isinstance(fields.get("source"), str):
        reason = "no `source` in this line of JSON; give one, or plain text in a file of that name"
        raise RecordError(location, reason)
    return replace(record_from(fields | {"hypotheses": [""]}, location=location, default_id=identity), hypotheses=())
