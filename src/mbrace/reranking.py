"""The best hypothesis by estimated quality alone: no race, no pseudo-references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mbrace.decoded import Decoded, Phases
from mbrace.errors import UserError
from mbrace.ranking import check_quality, check_source, rank
from mbrace.records import Record, check_record
from mbrace.utility import QualityUtility
from mbrace.windows import OnError, stream


def rerank(hypotheses: Sequence[str], source: str, *, qe: QualityUtility, nbest: int = 1, id: str | int = 0) -> Decoded:
    """The hypothesis of the highest quality that `qe` estimates; the answer's `utility` is its quality."""
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
    """Answer records as they come, `window` of them estimated together, in order; pseudo-references are not read.

    A record that fails stops the run after the answers before it were given, or with `on_error` is handed to that
    function and left out.
    """
    if window < 1 or nbest < 1:
        raise UserError(f"window {window}, nbest {nbest}: both must be 1 or more")
    check_quality(qe)

    def run(group: Sequence[Record]) -> list[Decoded]:
        return [ranking.answer(nbest) for ranking in rank(group, qe, phases)]

    def check(record: Record) -> None:
        check_record(record)
        check_source(record, qe)

    return stream(records, run, window=window, group_size=window, check=check, on_error=on_error)
