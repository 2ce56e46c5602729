"""A whole decoding run: records in, answers written as they come, a summary of what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mbrace.decode import decode_corpus
from mbrace.files import skip
from mbrace.output import Output, answer_line
from mbrace.prune import PruningFunction
from mbrace.race import Phases
from mbrace.records import Record
from mbrace.sampler import Sampler
from mbrace.schedule import Schedule
from mbrace.utility import Utility


@dataclass
class Summary:
    """What a run did: sentences, calls against those standard MBR would make, seconds by phase."""

    sentences: int = 0
    kept: int = 0  # answers found in the output on resume
    utility_calls: int = 0
    pairs_scored: int = 0
    standard_calls: int = 0  # |H| x |R| with the sizes the schedule allows
    seconds: float = 0.0
    phases: Phases = field(default_factory=Phases)


def decode_job(
    records: Iterable[Record],
    output: Output,
    *,
    utility: Utility,
    prune: PruningFunction | None,
    schedule: Schedule = None,
    seed: int = 0,
    nbest: int = 1,
    window: int = 64,
    sampler: Sampler | None = None,
    shuffle: bool = True,
    text: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> Summary:
    """Decode `records` into `output`, going on after the answers it holds already."""
    summary = Summary(kept=len(output.done))
    started = time.perf_counter()
    advance(summary.kept)
    sizes: list[int] = []  # the calls standard MBR would make for the records in flight

    def remember(source: Iterable[Record]) -> Iterable[Record]:
        for record in source:
            sizes.append(_standard_calls(record, schedule, utility))
            yield record

    answers = decode_corpus(
        remember(skip(records, output.done)),
        utility=utility,
        prune=prune,
        schedule=schedule,
        seed=seed,
        nbest=nbest,
        window=window,
        sampler=sampler,
        shuffle=shuffle,
        phases=summary.phases,
    )
    for answer in answers:
        output.write(answer_line(answer, text=text, nbest=nbest))
        summary.sentences += 1
        summary.utility_calls += answer.utility_calls
        summary.pairs_scored += answer.pairs_scored
        summary.standard_calls += sizes.pop(0)
        if not sizes or summary.sentences % window == 0:
            output.flush()
        advance(1)
    summary.seconds = time.perf_counter() - started
    return summary


def _standard_calls(record: Record, schedule: Schedule, utility: Utility) -> int:
    given = record.pseudo_references
    listed = len(given) if isinstance(given, Sequence) else None
    if schedule == "all":
        return len(record.hypotheses) * (listed or 0)
    last = list(utility.schedule if schedule is None else schedule)[-1]
    return len(record.hypotheses) * (last if listed is None else min(last, listed))
