"""From items to outcomes: records are answered in order, and bad items keep their position."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from mbrace.io.candidates import Bad, Item, bad_from
from mbrace.jobs.run import Outcome
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.windows import OnError


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
    numbers: dict[int, deque[int]] = {}  # positions of the records that have no outcome yet, by identity

    def read() -> Iterator[Record]:
        for number, item in enumerate(items):
            if isinstance(item, Bad):
                if not skip:
                    raise item.error()
                failed[number] = item
            pending.append((number, item))
            if isinstance(item, Record):
                numbers.setdefault(id(item), deque()).append(number)
                yield item

    def take_number(record: Record) -> int:
        """The position of a record, which is forgotten."""
        waiting = numbers[id(record)]
        number = waiting.popleft()
        if not waiting:
            del numbers[id(record)]
        return number

    def on_error(record: Record, error: Exception) -> None:
        bad = failed[take_number(record)] = bad_from(record, error)
        if not skip or isinstance(error, ImportError):  # a missing package is not the record's fault
            raise bad.error() if record.location is not None else error

    def outcomes_of_failed() -> Iterator[Outcome]:
        while pending and pending[0][0] in failed:
            yield line_of_bad, failed.pop(pending.popleft()[0])

    for found in answer(read(), on_error):
        yield from outcomes_of_failed()
        _, record = pending.popleft()
        assert isinstance(record, Record)
        take_number(record)
        yield line(record, found), None
    yield from outcomes_of_failed()
