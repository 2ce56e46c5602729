"""Experiments in parts, for more candidates than can be kept: a few sentences race at a time, and only outcomes stay.

A process that generates candidates writes job files (records, and the tables of utilities that need its GPU). Any
number of worker processes claim jobs, add chrF++, run all trials and write a part for each. `collect` joins the parts
of a set into what `mbrace experiment` would have written. The numbers are the same: the same functions compute them.
Files hold arrays of numbers and JSON, no pickled objects.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError
from mbrace.experiments.experiment import settings_for
from mbrace.experiments.races import record_sentence, save_races, spread_evenly
from mbrace.experiments.tables import (
    CandidateFile,
    Facts,
    Table,
    about_outcomes,
    compute,
    facts,
    other_scores,
    pseudo_references_of,
    slug,
)
from mbrace.experiments.trials import RACING, SCORE_BY, SIZES, STANDARD, Outcomes, run_part, table_settings
from mbrace.io.atomic import replace_file
from mbrace.metrics.bleu import BLEU
from mbrace.metrics.chrf import ChrF
from mbrace.records import Record
from mbrace.utilities.named import Kind
from mbrace.utility import Utility


@dataclass(frozen=True)
class CandidateSet:
    """One split of one pair, of `sentences` sentences; if it is for figures, the races of `races` are recorded."""

    name: str
    split: str
    sentences: int
    trials: int = 10
    seed: int = 0
    races: int = 12

    @property
    def for_figures(self) -> bool:
        """Whether all settings are raced, or those of the test table only."""
        return self.split == "valid"


@dataclass(frozen=True)
class Scored:
    """A utility's tables of some sentences, as `compute` gives them, under the label of its results."""

    label: str
    kind: Kind
    options: str  # of `mbrace decode`, that choose the utility
    name: str
    schedule: tuple[int, ...]
    tables: Sequence[NDArray[np.float32]]
    beams: Mapping[str, Sequence[float]]  # of each beam search of the job, each sentence's score


@dataclass(frozen=True)
class Job:
    """Some sentences of a set, from number `first` on, the tables already computed for them, and what beam search
    answers: "beam 5", a text for each sentence."""

    set: CandidateSet
    first: int
    records: Sequence[Record]
    scored: Sequence[Scored] = ()
    beams: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Sorts by set, validation last, then by number: `de-en.test.00120`."""
        return f"{self.set.name}.{self.set.split}.{self.first:05d}"


def pack_job(job: Job) -> bytes:
    """The bytes of a job's file."""
    header = {
        "set": asdict(job.set),
        "first": job.first,
        "records": [
            [r.id, r.source, r.reference, list(r.hypotheses), list(pseudo_references_of(r))] for r in job.records
        ],
        "scored": [[each.label, each.kind, each.options, each.name, each.schedule, each.beams] for each in job.scored],
        "beams": job.beams,
    }
    tables = {
        f"{which}.{number}": table for which, each in enumerate(job.scored) for number, table in enumerate(each.tables)
    }
    return _pack(header, tables)


def unpack_job(data: bytes) -> Job:
    """What `pack_job` packed."""
    header, arrays = _unpack(data)
    records = [
        Record(hypotheses, draws, id=name, source=source, reference=reference)
        for name, source, reference, hypotheses, draws in header["records"]
    ]
    scored = [
        Scored(*words, tuple(schedule), [arrays[f"{which}.{number}"] for number in range(len(records))], beams)
        for which, (*words, schedule, beams) in enumerate(header["scored"])
    ]
    return Job(CandidateSet(**header["set"]), header["first"], records, scored, header["beams"])


def pack_part(part: Sequence[Outcomes]) -> bytes:
    """The bytes of the file of a part: the outcomes of a job, of one utility each."""
    arrays = {
        f"{which}.{name}": array for which, outcomes in enumerate(part) for name, array in outcomes.arrays().items()
    }
    return _pack({"utilities": len(part)}, arrays)


def unpack_part(data: bytes) -> list[Outcomes]:
    """What `pack_part` packed."""
    header, arrays = _unpack(data)
    own = [
        {name.removeprefix(f"{which}."): array for name, array in arrays.items() if name.startswith(f"{which}.")}
        for which in range(header["utilities"])
    ]
    return [Outcomes.of_arrays(stored) for stored in own]


def _pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    out = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode("ascii"), dtype=np.uint8)  # any text is ASCII in JSON
    np.savez(out, allow_pickle=False, header=text, **arrays)
    return out.getvalue()


def _unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        return json.loads(stored["header"].tobytes()), {name: stored[name] for name in stored.files if name != "header"}


def race_job(job: Job) -> list[Outcomes]:
    """Score the records by chrF++, then run all trials of every utility; each decision is scored by all metrics.

    The `about` of the outcomes of each utility has what `collect` needs: facts, recorded races and digests.
    """
    started = time.perf_counter()
    records, chosen = job.records, job.set
    lexical = ChrF(threads=1)
    own = compute(records, lexical), score_beams(job.beams, records, lexical)
    scored = [Scored("chrF++", "string", "", lexical.name, lexical.schedule, *own), *job.scored]
    metrics: dict[str, Utility] = {"chrF2": ChrF(word_order=0, threads=1), "BLEU": BLEU(threads=1)}
    lexical_scores = [other_scores(record, metrics) for record in records]
    lexical_beams = {name: score_beams(job.beams, records, metric) for name, metric in metrics.items()}
    built = time.perf_counter()
    recorded = set(spread_evenly(chosen.sentences, chosen.races)) if chosen.for_figures else set()
    found = []
    for one in scored:
        others = [other for other in scored if other is not one]
        stored = [
            Table(
                replace(record, source=None),
                table,
                {other.label: other.tables[index][:, -1] for other in others} | lexical_scores[index],
            )
            for index, (record, table) in enumerate(zip(records, one.tables, strict=True))
        ]
        settings = settings_for(one.schedule, one.kind, for_figures=chosen.for_figures)
        table, sizes = table_settings(one.schedule, one.kind), SIZES if chosen.for_figures else ()
        raced = run_part(stored, one.name, one.schedule, settings, table, sizes, chosen.trials, chosen.seed)
        of_beams = {"score": one.beams} | {f"{SCORE_BY}{other.label}": other.beams for other in others}
        of_beams |= {f"{SCORE_BY}{name}": scores for name, scores in lexical_beams.items()}
        raced.baselines = {
            beam: {measure: np.asarray(scores[beam], np.float32) for measure, scores in of_beams.items()}
            for beam in job.beams
        }
        raced.about = {
            "set": asdict(chosen),
            "label": one.label,
            "kind": one.kind,
            "options": one.options,
            "utility": one.name,
            "schedule": one.schedule,
            "facts": [asdict(facts(table)) for table in stored],
            "races": [
                record_sentence(table, record, one.name, one.schedule, chosen.seed)
                for index, (table, record) in enumerate(zip(stored, records, strict=True), job.first)
                if index in recorded
            ],
            "digests": [record_digest(record) for record in records],
            "answers": answers_of(raced, records),
        }
        found.append(raced)
    seconds = {"tables": built - started, "races": time.perf_counter() - built}
    for raced in found:
        raced.about["seconds"] = seconds
    return found


def answers_of(raced: Outcomes, records: Sequence[Record]) -> list[dict[str, Any]]:
    """What standard MBR and alpha = 0.99 answer in the first trial, for people to compare."""
    systems = {"standard": raced.settings.index(STANDARD), "racing": raced.settings.index(RACING)}
    choice = raced.measures["choice"]
    return [
        {"id": record.id, "source": record.source, "reference": record.reference}
        | {name: record.hypotheses[int(choice[row, index, 0])] for name, row in systems.items()}
        for index, record in enumerate(records)
    ]


def score_beams(
    beams: Mapping[str, Sequence[str]], records: Sequence[Record], metric: Utility
) -> dict[str, list[float]]:
    """The scores of what each beam search answered against the human references."""
    references, sources = [record.reference or "" for record in records], [record.source or "" for record in records]
    return {name: metric.pairs(texts, references, sources).tolist() for name, texts in beams.items()}


def record_digest(record: Record) -> str:
    """SHA-256 of a record's texts as a JSON line."""
    texts = [record.id, record.source, record.reference, list(record.hypotheses), list(pseudo_references_of(record))]
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


class JobFolder:
    """Job files and parts in one folder. A job is claimed by renaming it, so no two workers take the same."""

    def __init__(self, folder: Path) -> None:
        self.jobs, self.parts = folder / "jobs", folder / "parts"
        for path in (self.jobs, self.parts):
            path.mkdir(parents=True, exist_ok=True)

    def add(self, job: Job) -> None:
        """Write a job for the workers. It is not synced to disk, since it does not live long."""
        path = self.jobs / f"{job.file_name}.new"
        path.write_bytes(pack_job(job))
        path.rename(path.with_suffix(".job"))

    def waiting(self) -> int:
        """How many jobs no worker has claimed."""
        return sum(1 for _ in self.jobs.glob("*.job"))

    def open(self) -> int:
        """How many jobs are not finished."""
        return sum(1 for path in self.jobs.iterdir() if path.suffix in (".job", ".claimed"))

    def known(self, job_name: str) -> bool:
        """Whether the job is finished, claimed or waiting."""
        paths = (self.parts / f"{job_name}.part", self.jobs / f"{job_name}.job", self.jobs / f"{job_name}.claimed")
        return any(path.exists() for path in paths)

    def release(self) -> None:
        """Make the jobs of workers that have died available again; call it when no worker is running."""
        for path in self.jobs.glob("*.claimed"):
            path.rename(path.with_suffix(".job"))

    def claim(self) -> Path | None:
        """The path of the first job that no other worker has claimed; the long jobs of validation sets come first."""
        waiting = sorted(self.jobs.glob("*.job"), key=lambda path: (".valid." not in path.name, path.name))
        for path in waiting:
            with contextlib.suppress(FileNotFoundError):  # another worker claimed it first
                return path.rename(path.with_suffix(".claimed"))
        return None

    def work(self) -> str | None:
        """Claim one job, write its part and delete it; its name, or None if there was none.

        A job that fails is kept as NAME.failed, with the reason in NAME.error.
        """
        path = self.claim()
        if path is None:
            return None
        try:
            job = unpack_job(path.read_bytes())
            replace_file(self.parts / f"{path.stem}.part", pack_part(race_job(job)))
        except Exception as error:
            path.with_suffix(".error").write_text(f"{type(error).__name__}: {error}\n")
            path.rename(path.with_suffix(".failed"))
            return f"{path.stem}: FAILED: {type(error).__name__}: {error}"
        path.unlink()
        return path.stem

    def read(self, name: str, split: str) -> Iterator[list[Outcomes]]:
        """The parts of a set that have been written, in order."""
        for path in sorted(self.parts.glob(f"{name}.{split}.*.part")):
            yield unpack_part(path.read_bytes())


def collect(folder: JobFolder, name: str, split: str, out: Path, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Write the outcomes of a set under `out`/data from the parts written so far; returns counts and digests.

    `extra` is added to each file's `about`. A label that some parts lack gets the sentences of the other parts.
    """
    parts = list(folder.read(name, split))
    if not parts:
        raise UserError(f"{name}.{split}: no parts; run the workers first")
    chosen = CandidateSet(**parts[0][0].about["set"])
    digests = [digest for part in parts for digest in part[0].about["digests"]]
    whole = hashlib.sha256("".join(digests).encode()).hexdigest()
    file = CandidateFile(path=f"{name}.{split}", name=name, split=split, digest=whole)
    by_label: dict[str, list[Outcomes]] = {}
    for raced in itertools.chain.from_iterable(parts):
        by_label.setdefault(raced.about["label"], []).append(raced)
    for label, own in by_label.items():
        metrics = set.intersection(*(set(raced.other_scores) for raced in own))
        for raced in own:
            raced.other_scores = {name: scores for name, scores in raced.other_scores.items() if name in metrics}
        outcomes = Outcomes.join(own)
        sentences = [Facts(**each) for raced in own for each in raced.about["facts"]]
        options: dict[str, Any] = {name: own[0].about[name] for name in ("label", "options", "utility", "schedule")}
        outcomes.about = about_outcomes(file, sentences, **options, trials=chosen.trials, seed=chosen.seed) | {
            "key": "",
            "kind": own[0].about["kind"],
            "seconds": {
                kind: round(sum(raced.about["seconds"][kind] for raced in own), 1) for kind in ("tables", "races")
            },
            "workers": 1,
            **extra,
        }
        target = out / "data" / f"{name}.{split}.{slug(label)}.npz"
        outcomes.save(target)
        answers = [json.dumps(answer, ensure_ascii=False) + "\n" for raced in own for answer in raced.about["answers"]]
        (out / "answers").mkdir(exist_ok=True)
        (out / "answers" / f"{name}.{split}.{slug(label)}.jsonl").write_text("".join(answers), encoding="utf-8")
        if races := [race for raced in own for race in raced.about["races"]]:
            save_races(target, outcomes.about, races)
    return {"sentences": len(digests), "of": chosen.sentences, "sha256": whole, "records": [d[:16] for d in digests]}
