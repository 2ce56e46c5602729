"""Jobs and parts of an experiment (see parts.py) and their files: arrays of numbers and JSON, no pickled objects."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.experiments.tables import pseudo_references_of
from mbrace.experiments.trials import Outcomes
from mbrace.records import Record


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
        return self.split != "test"


@dataclass(frozen=True)
class Scored:
    """A utility's tables of some sentences, as `compute` gives them, under the label of its results."""

    label: str
    name: str
    schedule: tuple[int, ...]
    tables: Sequence[NDArray[np.float32]]


@dataclass(frozen=True)
class Job:
    """Some sentences of a set, from number `first` on, and the tables already computed for them."""

    set: CandidateSet
    first: int
    records: Sequence[Record]
    scored: Sequence[Scored] = ()

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
        "scored": [[each.label, each.name, each.schedule] for each in job.scored],
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
        Scored(label, name, tuple(schedule), [arrays[f"{which}.{number}"] for number in range(len(records))])
        for which, (label, name, schedule) in enumerate(header["scored"])
    ]
    return Job(CandidateSet(**header["set"]), header["first"], records, scored)


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
