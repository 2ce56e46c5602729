"""The best hypothesis by estimated quality alone: no race, no pseudo-references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mbrace.errors import LARGEST, check_whole
from mbrace.ranking import check_quality, check_source, rank
from mbrace.records import Record, check_record
from mbrace.result import Decoded, Phases
from mbrace.utility import QualityUtility
from mbrace.windows import OnError, stream


def rerank(hypotheses: Sequence[str], source: str, *, qe: QualityUtility, nbest: int = 1, id: str | int = 0) -> Decoded:
    """The hypothesis that `qe` gives the highest quality; the answer's `utility` is that quality."""
    return next(iter(rerank_corpus([Record(hypotheses, id=id, source=source)], qe=qe, nbest=nbest)))


def rerank_corpus(
    records: Iterable[Record],
    *,
    qe: QualityUtility,
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
    check_quality(qe)

    def run(group: Sequence[Record]) -> list[Decoded]:
        return [ranking.answer(nbest) for ranking in rank(group, qe, phases)]

    def check(record: Record) -> None:
        check_record(record)
        check_source(record, qe)

    return stream(records, run, window=window, group_size=window, check=check, on_error=on_error)
