"""Records, a job that misbehaves and what one machine makes of it, for tests of clusters."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cli_helpers import Row

import mbrace
from mbrace.cluster import Manifest
from mbrace.errors import UserError
from mbrace.io.candidates import Item, item_from, read_items
from mbrace.io.output import Output
from mbrace.jobs.decode import DecodeJob, DecodeWorker
from mbrace.jobs.run import Outcome, Summary, run_worker
from mbrace.settings import Race


def small(demo_rows: list[Row]) -> list[Row]:
    """Forty records of a few hypotheses."""
    return [
        {
            "id": f"s{n}",
            "hypotheses": demo_rows[n]["hypotheses"][:6],
            "pseudo_references": demo_rows[n]["hypotheses"][6:20],
        }
        for n in range(40)
    ]


@dataclass
class Misbehaving:
    """A decoder that meets orders in the text of a record: to die, to raise, or to take its time."""

    decoder: DecodeWorker
    folder: str
    summary: Summary

    def __call__(self, items: Iterable[Item], *, skip: bool) -> Iterator[Outcome]:
        def obeyed() -> Iterator[Item]:
            for item in items:
                order = (getattr(item, "source", None) or "").split()
                if order[:1] == ["die"]:
                    self._die(int(order[1]))
                if order[:1] == ["wait"]:
                    time.sleep(float(order[1]))
                yield item

        return self.decoder(obeyed(), skip=skip)

    def _die(self, times: int) -> None:
        """End this process at once, as often as was ordered."""
        for attempt in range(times):
            try:
                os.close(os.open(f"{self.folder}/died-{attempt}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


def picky(hypothesis: str, reference: str) -> float:
    if hypothesis == "poison":
        raise RuntimeError("refused")
    return float(len(set(hypothesis.split()) & set(reference.split())))


@dataclass(frozen=True)
class Work:
    """Work for tests: a decoder with a Python utility."""

    folder: str
    text: bool = False
    seed: int = 0
    reads_records: bool = True

    def describe(self) -> Row:
        return {"seed": self.seed}

    def start(self, threads: int) -> Misbehaving:
        if self.seed < 0:
            raise UserError("seed: cannot be loaded")
        decoder = DecodeJob(
            mbrace.Pairwise(picky), Race(prune=mbrace.Bottom(0.3), schedule=[2, 4, 8], seed=self.seed), self.text
        ).start(0)
        return Misbehaving(decoder, self.folder, decoder.summary)

    def item(self, row: bytes, file: str, number: int, prefix: str) -> Item:
        return item_from(row, file, number, prefix=prefix)


def on_one_machine(work: Work, inputs: list[str], output: Path) -> None:
    """The run that a cluster's must equal."""
    with Output(str(output), text=work.text) as out:
        decoder = DecodeJob(
            mbrace.Pairwise(picky), Race(prune=mbrace.Bottom(0.3), schedule=[2, 4, 8], seed=work.seed), work.text
        ).start(0)
        run_worker(decoder, read_items(inputs), out, skip=True)


def joined(folder: Path) -> bytes:
    """The shards one after another."""
    manifest = Manifest.read(folder)
    assert manifest.complete
    return b"".join(Path(path).read_bytes() for path in manifest.paths(complete=True))


def errors(output: Path) -> bytes | None:
    path = Path(f"{output}.errors.jsonl")
    return path.read_bytes() if path.exists() else None
