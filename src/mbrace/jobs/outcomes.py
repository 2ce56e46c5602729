"""From items to outcomes: records are answered in order, and bad items keep their position."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mbrace.io.candidates import Bad, Item, bad_from
from mbrace.jobs.run import Outcome
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.windows import OnError


@dataclass(frozen=True)
class _NumberedRecord(Record):
    """A record with its position among the items of a run."""

    number: int = -1


def answer_items(
    items: Iterable[Item],
    answer: Callable[[Iterable[Record], OnError], Iterable[Decoded]],
    line: Callable[[Record, Decoded], bytes],
    *,
    skip: bool,
    text: bool,
) -> Iterator[Outcome]:
    """One outcome per item: `answer` decodes the records, `line` turns an answer into a line.

    A bad item is an error, or set aside with `skip`; with `text` it then leaves an empty line.
    """
    line_of_bad = b"\n" if text else None  # text has one line per source
    pending: deque[tuple[int, Item]] = deque()  # positions and items that were read and have no outcome yet
    failed: dict[int, Bad] = {}  # by position

    def read() -> Iterator[Record]:
        for number, item in enumerate(items):
            if isinstance(item, Bad):
                if not skip:
                    raise item.error()
                failed[number] = item
            pending.append((number, item))
            if isinstance(item, Record):
                yield _NumberedRecord(**vars(item), number=number)

    def on_error(record: Record, error: Exception) -> None:
        assert isinstance(record, _NumberedRecord)
        bad = failed[record.number] = bad_from(record, error)
        if not skip or isinstance(error, ImportError):  # a missing package is not the record's fault
            raise bad.error() if record.location is not None else error

    def outcomes_of_failed() -> Iterator[Outcome]:
        while pending and pending[0][0] in failed:
            yield line_of_bad, failed.pop(pending.popleft()[0])

    for found in answer(read(), on_error):
        yield from outcomes_of_failed()
        _, record = pending.popleft()
        assert isinstance(record, Record)
        yield line(record, found), None
    yield from outcomes_of_failed()
