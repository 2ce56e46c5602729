"""Hypotheses ranked by their quality, estimated from the source without a reference."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import Parameter, UserError
from mbrace.records import Record
from mbrace.result import Candidate, Decoded, Phases
from mbrace.utility import QualityUtility


@dataclass(frozen=True)
class Ranking:
    """The distinct hypotheses of a record, best first: the index of each one's first copy, and their qualities."""

    record: Record
    indices: NDArray[np.int64]
    qualities: NDArray[np.floating]

    def answer(self, nbest: int) -> Decoded:
        """The answer that lists the `nbest` best."""
        best = [
            Candidate(self.record.hypotheses[index], index, float(quality))
            for index, quality in zip(self.indices[:nbest].tolist(), self.qualities[:nbest], strict=True)
        ]
        return Decoded(
            id=self.record.id,
            text=best[0].text,
            index=best[0].index,
            utility=best[0].utility,
            utility_calls=0,
            pairs_scored=0,
            pseudo_references=0,
            steps=(),
            nbest=tuple(best),
            strings=len(self.indices),
            quality_calls=len(self.indices),
        )


def rank(records: Sequence[Record], qe: QualityUtility, phases: Phases | None = None) -> list[Ranking]:
    """The ranking of every record, by one call of `qe` for all; equal strings of a record are estimated once."""
    firsts = [first_copies(record) for record in records]
    texts = [record.hypotheses[index] for record, first in zip(records, firsts, strict=True) for index in first]
    sources = [check_source(record, qe) for record, first in zip(records, firsts, strict=True) for _ in first]
    began = time.perf_counter()
    found = np.asarray(qe.quality(texts, sources))
    if phases is not None:
        phases.quality += time.perf_counter() - began
    if found.shape != (len(texts),):
        raise UserError(f"utility {qe.name}: returned shape {found.shape} for {len(texts)} hypotheses")
    rankings, begin = [], 0
    for record, first in zip(records, firsts, strict=True):
        qualities = found[begin : begin + len(first)]
        begin += len(first)
        wrong = np.flatnonzero(~np.isfinite(qualities))
        if len(wrong):
            text = record.hypotheses[first[wrong[0]]]
            raise record.error(
                f"utility {qe.name}: returned {qualities[wrong[0]]} for hypothesis {text[:60]!r}; "
                "a utility must return finite numbers"
            )
        order = np.argsort(-qualities, kind="stable")
        rankings.append(Ranking(record, np.array(first)[order], qualities[order]))
    return rankings


def check_quality(qe: object) -> None:
    """Refuse an object that is not a quality utility."""
    if not isinstance(qe, QualityUtility):
        name = getattr(qe, "name", None) or repr(qe)
        raise UserError(f"qe {name}: cannot estimate quality from the source; give a quality utility such as CometKiwi")


def check_source(record: Record, qe: QualityUtility) -> str:
    """The source of a record; refused if it is missing or empty."""
    if record.source is None or not record.source.strip():
        found = "missing" if record.source is None else "empty"
        raise record.error(
            f"source: {found}; {qe.name} estimates from the source: give one, or {Parameter('on_error', 'skip')}"
        )
    return record.source


def first_copies(record: Record) -> list[int]:
    """The index of the first copy of each distinct hypothesis."""
    first: dict[str, int] = {}
    for index, text in enumerate(record.hypotheses):
        first.setdefault(text, index)
    return list(first.values())
