"""What travels through a cluster: blocks of input lines, and what workers make of them; the readers and the workers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from mbrace.errors import ServiceError, UserError, require
from mbrace.io.candidates import Item, lines_of
from mbrace.io.reading import shown_path, without_blank_end
from mbrace.jobs.run import Job, Summary, Worker
from mbrace.records import Record, digest
from mbrace.result import Phases

NOT_SPENT = ("kept", "skipped", "seconds", "phases", "signal")  # of a summary: what the driver counts, or adds apart
COUNTS = tuple(each.name for each in fields(Summary) if each.name not in NOT_SPENT)
TRIES = 4  # how often a block that kills its worker is given to another, before the run gives up
OTHER_LINES = (
    "resume=True: the lines from here on are not those that the output was made from; "
    "give the same input, or force=True to start over"
)
MAX_BYTES = 64 << 20  # a shard ends early at this much input, so that long records do not fill memory


@dataclass(frozen=True)
class Block:
    """Lines of an input file, from `first_line` on. Which lines make a block depends on the file alone, not on the
    workers."""

    input: int  # the index of the file among the inputs
    number: int  # of the block in its file
    first_line: int
    data: bytes
    digest: str = ""  # of the data
    failure: str = ""  # why there is no data: what stops the run


@dataclass(frozen=True)
class Result:
    """What became of a block: `lines` to write, `errors` set aside, `ids` as 64-bit digests (0: no record)."""

    input: int
    number: int
    first_line: int
    count: int = 0  # input lines
    lines: bytes = b""
    errors: bytes = b""
    ids: bytes = b""
    costs: list[float] = field(default_factory=list)
    failure: str = ""  # what stops the run
    of_service: bool = False  # a server or the network failed, not a record
    digest: str = ""  # of the input lines


def blocks(
    path: str, input_index: int, *, size: int, done: Mapping[int, str], records: bool = False
) -> Iterator[Block]:
    """The blocks of a file, `size` lines each; those already `done` with the same digest are skipped ("": any).

    At the end of a file of `records`, blank lines are left out.
    """
    lines: list[bytes] = []
    first, number, taken = 1, 0, 0

    def block() -> Iterator[Block]:
        data = b"".join(lines)
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if number not in done:
            yield Block(input_index, number, first, data, digest)
        elif done[number] not in ("", digest):
            yield Block(input_index, number, first, b"", digest, f"{path}:{first}: {OTHER_LINES}")

    found = lines_of(path)
    for line in without_blank_end(found) if records else found:
        lines.append(line)
        taken += len(line)
        if len(lines) == size or taken >= MAX_BYTES:
            yield from block()
            first, number, lines, taken = first + len(lines), number + 1, [], 0
    if lines:
        yield from block()


def process_block(block: Block, worker: Worker, job: Job, *, path: str, prefix: str, skip: bool) -> Result:
    """Give a block to a worker and gather what comes out."""
    raw = _split(block.data)
    digests = np.zeros(len(raw), dtype=np.uint64)

    def items() -> Iterator[Item]:
        for position, row in enumerate(raw):
            item = job.item(row, shown_path(path), block.first_line + position, prefix)
            if isinstance(item, Record):
                digests[position] = digest(item.id) or 1  # 0: no record
            yield item

    before = costs(worker)
    lines: list[bytes] = []
    errors: list[bytes] = []
    failure, of_service = "", False
    try:
        for line, bad in worker(items(), skip=skip):
            if line is not None:
                lines.append(line)
            if bad is not None:
                errors.append(bad.to_line())
    except UserError as error:
        failure, of_service = str(error), isinstance(error, ServiceError)
    spent = [now - then for now, then in zip(costs(worker), before, strict=True)]
    return Result(
        input=block.input,
        number=block.number,
        first_line=block.first_line,
        count=len(raw),
        lines=b"".join(lines),
        errors=b"".join(errors),
        ids=digests.tobytes(),
        costs=spent,
        failure=failure,
        of_service=of_service,
        digest=block.digest,
    )


def failed(block: Block, reason: str) -> Result:
    """The result of a block that stops the run."""
    return Result(block.input, block.number, block.first_line, failure=reason)


def _split(data: bytes) -> list[bytes]:
    """The lines of a block; only line feeds end a line."""
    return [line + b"\n" for line in data.removesuffix(b"\n").split(b"\n")]


def costs(worker: Worker) -> list[float]:
    """What a worker has spent so far: the counts of its summary, then its seconds by phase."""
    summary = worker.summary
    return [*(float(getattr(summary, name)) for name in COUNTS), *asdict(summary.phases).values()]


def add_costs(summary: Summary, spent: Sequence[float]) -> None:
    """Add what a block cost to the summary of the run."""
    for name, count in zip(COUNTS, spent, strict=False):
        before = getattr(summary, name)
        setattr(summary, name, before + type(before)(count))  # a whole number, or seconds
    summary.phases.add(Phases(*spent[len(COUNTS) :]), share=1)


@dataclass(frozen=True)
class Reader:
    """A task that reads a file and yields its blocks."""

    size: int
    records: bool

    def __call__(self, batch: Any) -> Iterator[Any]:
        for row in batch.to_pylist():
            done = dict(zip(row["done"], row["digests"], strict=True))
            try:
                for block in blocks(row["path"], row["input"], size=self.size, done=done, records=self.records):
                    yield _table([asdict(block)])
            except UserError as error:  # such as a file that is cut off: reported by the driver, without Ray's words
                yield _table([asdict(Block(row["input"], -1, 0, b"", failure=str(error)))])


class Actor:
    """A worker: started once, given block after block. When it dies, Ray starts another, which gets the block again."""

    def __init__(
        self, job: Job, paths: list[str], prefixes: list[str], threads: int, skip: bool, registry: Any
    ) -> None:
        self._job, self._paths, self._prefixes, self._skip, self._registry = job, paths, prefixes, skip, registry
        ray = require("ray", extra="cluster")
        ray.get(registry.add.remote(ray.get_runtime_context().current_actor))
        self._worker: Worker | None = None
        self._failure = ""
        try:
            self._worker = job.start(threads)
        except UserError as error:  # reported with the first block: Ray would restart an actor that cannot start
            self._failure = str(error)

    def __call__(self, batch: Any) -> Any:
        return _table([asdict(self._result(Block(**row))) for row in batch.to_pylist()])

    def _result(self, block: Block) -> Result:
        path, prefix = self._paths[block.input], self._prefixes[block.input]
        if block.failure:
            return failed(block, block.failure)
        if self._worker is None:
            return failed(block, self._failure)
        if require("ray", extra="cluster").get(self._registry.count.remote((block.input, block.number))) > TRIES:
            lines = f"{path}:{block.first_line}"
            return failed(block, f"{lines}: the block that starts here ended its worker {TRIES} times; see Ray's logs")
        return process_block(block, self._worker, self._job, path=path, prefix=prefix, skip=self._skip)


class Registry:
    """An actor on the driver's machine that knows the workers, and how often each block was started: one that kills its
    worker is not tried forever."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}
        self._workers: list[Any] = []

    def add(self, worker: Any) -> None:
        self._workers.append(worker)

    def workers(self) -> list[Any]:
        return self._workers

    def count(self, block: tuple[int, int]) -> int:
        self._counts[block] = self._counts.get(block, 0) + 1
        return self._counts[block]


def _table(rows: list[dict[str, Any]]) -> Any:
    return require("pyarrow", extra="cluster").Table.from_pylist(rows)
